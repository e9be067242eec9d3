"""Losses over pairs: Bradley-Terry for reward models, DPO and its two variants for policies.

All take one number a pair and side (shape P) and give one loss a pair, so that whoever calls decides how to average:
a pair of weight w counts w times, whatever the micro-batch it fell into.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

DPO_LOSSES = ("sigmoid", "ipo")


def bradley_terry(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """−log σ(r_chosen − r_rejected), a pair each. Source: Bradley & Terry 1952, as used by Ouyang et al. 2022, eq. 1."""
    return -functional.logsigmoid(chosen_P - rejected_P)


@dataclass(frozen=True)
class PairLogProbs:
    """Log-probabilities of whole answers, natural logarithm; each of shape P (pairs).

    Sums over answer tokens for the sigmoid loss, means over answer tokens for IPO.
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
    """Which loss over the margin h.

    sigmoid: −(1−ε) log σ(βh) − ε log σ(−βh). Source: Rafailov et al. 2023, eq. 7; ε > 0 is cDPO (Mitchell 2023):
        the share of labels believed to be flipped.
    ipo: (h − 1/(2β))². Source: Azar et al. 2023, eq. 17, over means a token, as its authors advise for language models.
    """

    beta: float
    loss: str = "sigmoid"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.loss not in DPO_LOSSES:
            raise ValueError(f"dpo loss {self.loss!r} is none of {', '.join(DPO_LOSSES)}")
        if self.beta <= 0:
            raise ValueError(f"dpo beta {self.beta} must be above 0: at 0 the reference means nothing")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing {self.label_smoothing} must be in [0, 0.5): at 0.5 the labels say nothing")
        if self.loss == "ipo" and self.label_smoothing:
            raise ValueError("label_smoothing belongs to the sigmoid loss; ipo has none")

    @property
    def averages_tokens(self) -> bool:
        return self.loss == "ipo"

    def __call__(self, pairs: PairLogProbs) -> Tensor:
        """The loss of each pair, shape P."""
        margin_P = pairs.margin
        if self.loss == "ipo":
            return (margin_P - 1 / (2 * self.beta)) ** 2
        right_P = functional.logsigmoid(self.beta * margin_P)
        if not self.label_smoothing:
            return -right_P
        flipped_P = functional.logsigmoid(-self.beta * margin_P)
        return -(1 - self.label_smoothing) * right_P - self.label_smoothing * flipped_P

    def implicit_rewards(self, pairs: PairLogProbs) -> tuple[Tensor, Tensor]:
        """β log π/ref of chosen and rejected, without gradient."""
        return self.beta * pairs.advantage_of_chosen.detach(), self.beta * pairs.advantage_of_rejected.detach()


def pair_credit(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """1 where the chosen side has the greater number, 0 where the rejected has, 0.5 where they are equal."""
    return torch.where(chosen_P == rejected_P, 0.5, (chosen_P > rejected_P).double())
