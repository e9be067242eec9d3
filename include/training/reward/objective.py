"""What a reward model's step minimises: loss = Bradley-Terry + dimension_weight × mean squared error of dimensions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from include.training.pairs.losses import bradley_terry
from include.training.pairs.rows import TokenPair
from include.training.reward.dimensions import Dimensions


@dataclass(frozen=True)
class WholeStep:
    """Of all ranks and micro-batches: the number of pairs, and what they and their scores weigh together."""

    pairs: int
    weight: float
    scored: float


def by_label(outputs: torch.Tensor) -> torch.Tensor:
    """N × labels, also where the head has one."""
    return outputs[:, None] if outputs.dim() == 1 else outputs


def measured(
    pairs: Sequence[TokenPair], step: WholeStep, dimensions: Dimensions, outputs: torch.Tensor
) -> tuple[torch.Tensor, Mapping[str, float]]:
    """Loss and figures of a micro-batch, as its share of the whole step."""
    scores = by_label(outputs)[:, 0]
    chosen_P, rejected_P = scores[: len(pairs)], scores[len(pairs) :]
    weights_P = torch.tensor([pair.weight for pair in pairs], device=scores.device)
    share = (bradley_terry(chosen_P, rejected_P) * weights_P).sum() / step.weight
    figures = {
        "accuracy": float((chosen_P > rejected_P).sum()) / step.pairs,
        "margin": float((chosen_P - rejected_P).detach().sum()) / step.pairs,
        "tokens": sum(len(pair.chosen) + len(pair.rejected) for pair in pairs),
    }
    if dimensions.names:
        error = dimensions.error(pairs, outputs[: len(pairs), 1:]) / (step.scored or 1.0)
        figures |= {"dimension_loss": float(error.detach()), "dimension_scores": len(dimensions.weights(pairs))}
        share = share + dimensions.weight * error
    return share, {"loss": float(share.detach()), **figures}
