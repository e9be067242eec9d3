"""Losses over pairs: Bradley-Terry for reward models, DPO and its variants for policies.

All take one number a pair and side (shape P) and give one loss a pair, so that whoever calls decides how to average:
a pair of weight w counts w times, whatever the micro-batch it fell into.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

DPO_LOSSES = ("sigmoid", "ipo", "robust", "hinge", "apo_zero", "sigmoid_norm")
SMOOTHED = ("sigmoid", "robust")


def bradley_terry(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """−log σ(r_chosen − r_rejected), a pair each. Source: Bradley & Terry 1952, as used by Ouyang et al. 2022, eq. 1."""
    return -functional.logsigmoid(chosen_P - rejected_P)


@dataclass(frozen=True)
class PairLogProbs:
    """Log-probabilities of whole answers, natural logarithm; each of shape P (pairs).

    Sums over answer tokens, or means over them where the objective averages tokens.
    """

    policy_chosen: Tensor
    policy_rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor

    @property
    def advantage_of_chosen(self) -> Tensor:
        """log π/ref of the chosen answer."""
        return self.policy_chosen - self.reference_chosen

    @property
    def advantage_of_rejected(self) -> Tensor:
        """log π/ref of the rejected answer."""
        return self.policy_rejected - self.reference_rejected

    @property
    def margin(self) -> Tensor:
        """How much more the policy prefers the chosen answer than the reference does."""
        return self.advantage_of_chosen - self.advantage_of_rejected


@dataclass(frozen=True)
class DpoObjective:
    """Which loss over the margin h (chosen minus rejected of log π/ref).

    sigmoid: −(1−ε) log σ(βh) − ε log σ(−βh). Source: Rafailov et al. 2023, eq. 7; ε > 0 is cDPO (Mitchell 2023):
        the share of labels believed to be flipped.
    robust: (−(1−ε) log σ(βh) + ε log σ(−βh)) / (1−2ε): unbiased when a share ε is flipped. Source: Ray Chowdhury et al. 2024, eq. 12.
    hinge: max(0, 1 − βh). Source: Zhao et al. 2023 (SLiC), on log-ratios.
    apo_zero: 1 − σ(β log π/ref of chosen) + σ(β log π/ref of rejected). Source: D'Oosterlinck et al. 2024, eq. 7.
    ipo: (h − 1/(2β))². Source: Azar et al. 2023, eq. 17, over means a token, as its authors advise for language models.
    sigmoid_norm: −log σ(βh) over means a token, so that a long answer weighs no more than a short one.
    nll_weight: adds so many times the mean negative log-probability of the chosen answers' tokens (Pang et al. 2024, RPO).
    """

    beta: float
    loss: str = "sigmoid"
    label_smoothing: float = 0.0
    nll_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.loss not in DPO_LOSSES:
            raise ValueError(f"dpo loss {self.loss!r} is none of {', '.join(DPO_LOSSES)}")
        if self.beta <= 0:
            raise ValueError(f"dpo beta {self.beta} must be above 0: at 0 the reference means nothing")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing {self.label_smoothing} must be in [0, 0.5): at 0.5 the labels say nothing")
        if self.label_smoothing and self.loss not in SMOOTHED:
            raise ValueError(f"label_smoothing belongs to the losses {' and '.join(SMOOTHED)}; {self.loss} has none")
        if self.nll_weight < 0:
            raise ValueError(f"nll_weight {self.nll_weight} must not be below 0: it would unlearn the chosen answers")

    @property
    def averages_tokens(self) -> bool:
        return self.loss in ("ipo", "sigmoid_norm")

    def __call__(self, pairs: PairLogProbs) -> Tensor:
        """The loss of each pair, shape P."""
        scaled_P = self.beta * pairs.margin
        match self.loss:
            case "ipo":
                return (pairs.margin - 1 / (2 * self.beta)) ** 2
            case "hinge":
                return torch.relu(1 - scaled_P)
            case "apo_zero":
                return 1 - torch.sigmoid(self.beta * pairs.advantage_of_chosen) + torch.sigmoid(self.beta * pairs.advantage_of_rejected)
            case "robust":
                flipped = self.label_smoothing
                right_P, wrong_P = functional.logsigmoid(scaled_P), functional.logsigmoid(-scaled_P)
                return (-(1 - flipped) * right_P + flipped * wrong_P) / (1 - 2 * flipped)
        right_P = functional.logsigmoid(scaled_P)
        if not self.label_smoothing:
            return -right_P
        return -(1 - self.label_smoothing) * right_P - self.label_smoothing * functional.logsigmoid(-scaled_P)

    def implicit_rewards(self, pairs: PairLogProbs) -> tuple[Tensor, Tensor]:
        """β log π/ref of chosen and rejected, without gradient."""
        return self.beta * pairs.advantage_of_chosen.detach(), self.beta * pairs.advantage_of_rejected.detach()


def pair_credit(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """1 where the chosen side has the greater number, 0 where the rejected has, 0.5 where they are equal."""
    return torch.where(chosen_P == rejected_P, 0.5, (chosen_P > rejected_P).double())
