"""Losses over pairs: Bradley-Terry for reward models, DPO and its variants for policies.

All take one number a pair and side (shape P) and give one loss a pair, so that whoever calls decides how to average:
a pair of weight w counts w times, whatever the micro-batch it fell into.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor


def bradley_terry(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """−log σ(r_chosen − r_rejected), a pair each. Source: Bradley & Terry 1952, as used by Ouyang et al. 2022, eq. 1."""
    return -functional.logsigmoid(chosen_P - rejected_P)


@dataclass(frozen=True)
class PairLogProbs:
    """Log-probabilities of whole answers, natural logarithm; each of shape P (pairs).

    Sums over answer tokens, or means over them where the objective averages tokens.
    reference_point: of the whole batch, for kto alone (see `mismatched`), nats.
    """

    policy_chosen: Tensor
    policy_rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    reference_point: float = 0.0

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
    """Which loss over pairs; h is the margin (chosen minus rejected of log π/ref), c and r are log π/ref of each.

    sigmoid: −(1−ε) log σ(βh) − ε log σ(−βh). Source: Rafailov et al. 2023, eq. 7; ε > 0 is cDPO (Mitchell 2023):
        the share of labels believed to be flipped.
    robust: (−(1−ε) log σ(βh) + ε log σ(−βh)) / (1−2ε): unbiased when a share ε is flipped. Source: Ray Chowdhury et al. 2024, eq. 12.
    hinge: max(0, 1 − βh). Source: Zhao et al. 2023 (SLiC), on log-ratios.
    exo_pair: KL from (σ(βh), σ(−βh)) to (1−ε, ε); ε must be above 0. Source: Ji et al. 2024, eq. 16.
    apo_zero: 1 − σ(βc) + σ(βr); apo_down: σ(βc) + 1 − σ(βh). Source: D'Oosterlinck et al. 2024, eq. 7 and 8.
    nca_pair: −log σ(βc) − ½ log σ(−βc) − ½ log σ(−βr). Source: Chen et al. 2024, NCA.
    sppo_hard: (c − 1/(2β))² + (r + 1/(2β))². Source: Wu et al. 2024, eq. 4.8 with certain labels.
    ipo: (h − 1/(2β))². Source: Azar et al. 2023, eq. 17, over means a token, as its authors advise for language models.
    sigmoid_norm: −log σ(βh) over means a token, so that a long answer weighs no more than a short one.
    simpo: −log σ(β(p_chosen − p_rejected) − γ) with p the policy's own mean log-probability a token: no reference is in it.
        Source: Meng et al. 2024, eq. 6.
    orpo: β times −log σ of the log odds ratio, odds of a mean log-probability p being exp(p)/(1 − exp(p)): no reference is in it; its
        other half is the chosen answers' own loss, `nll_weight`. Source: Hong et al. 2024, eq. 6.
    bco_pair: −log σ(βc) − log σ(−βr): each answer by itself, a binary classification. Source: Jung et al. 2024, without their running shift
        of rewards, as TRL 1.16 has it.
    kto: the mean of w_d (1 − σ(β(c − z))) and w_u (1 − σ(β(z − r))), z being the batch's `reference_point`. Source: Ethayarajh et al.
        2024, eq. 7. A pair gives two single labels: its chosen answer is desirable, its rejected one undesirable.
    desirable_weight, undesirable_weight: w_d and w_u of kto.
    nll_weight: adds so many times the mean negative log-probability of the chosen answers' tokens (Pang et al. 2024, RPO).
    simpo_gamma: the margin γ that simpo asks for.
    """

    beta: float
    loss: str = "sigmoid"
    label_smoothing: float = 0.0
    nll_weight: float = 0.0
    simpo_gamma: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in DPO_LOSSES:
            raise ValueError(f"dpo loss {self.loss!r} is none of {', '.join(DPO_LOSSES)}")
        if self.beta <= 0:
            raise ValueError(f"dpo beta {self.beta} must be above 0: at 0 the reference means nothing")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing {self.label_smoothing} must be in [0, 0.5): at 0.5 the labels say nothing")
        if self.label_smoothing and self.loss not in SMOOTHED:
            raise ValueError(f"label_smoothing belongs to the losses {', '.join(SMOOTHED)}; {self.loss} has none")
        if self.loss == "exo_pair" and not self.label_smoothing:
            raise ValueError(
                "exo_pair needs label_smoothing above 0 (its authors take 0.001): it is the logarithm of that share that it learns"
            )
        if self.nll_weight < 0:
            raise ValueError(f"nll_weight {self.nll_weight} must not be below 0: it would unlearn the chosen answers")
        if self.loss == "orpo" and not self.nll_weight:
            raise ValueError("orpo without nll_weight is half of its objective: its authors take 1")
        if self.simpo_gamma < 0 or (self.simpo_gamma and self.loss != "simpo"):
            raise ValueError(f"simpo_gamma {self.simpo_gamma} belongs to the loss simpo, and is not below 0")
        weights = (self.desirable_weight, self.undesirable_weight)
        if min(weights) <= 0 or (weights != (1.0, 1.0) and self.loss != "kto"):
            raise ValueError(f"desirable_weight and undesirable_weight {weights} belong to the loss kto, and are above 0")

    @property
    def has_reference_point(self) -> bool:
        """Whether the loss looks at mismatched answers too."""
        return self.loss == "kto"

    @property
    def averages_tokens(self) -> bool:
        return self.loss in MEANS

    def __call__(self, pairs: PairLogProbs) -> Tensor:
        """The loss of each pair, shape P."""
        return _LOSSES[self.loss](self, pairs)

    def implicit_rewards(self, pairs: PairLogProbs) -> tuple[Tensor, Tensor]:
        """β log π/ref of chosen and rejected, without gradient."""
        return self.beta * pairs.advantage_of_chosen.detach(), self.beta * pairs.advantage_of_rejected.detach()


def _sigmoid(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    scaled_P = of.beta * pairs.margin
    right_P = functional.logsigmoid(scaled_P)
    if not of.label_smoothing:
        return -right_P
    return -(1 - of.label_smoothing) * right_P - of.label_smoothing * functional.logsigmoid(-scaled_P)


def _robust(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    flipped, scaled_P = of.label_smoothing, of.beta * pairs.margin
    right_P, wrong_P = functional.logsigmoid(scaled_P), functional.logsigmoid(-scaled_P)
    return (-(1 - flipped) * right_P + flipped * wrong_P) / (1 - 2 * flipped)


def _hinge(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    return torch.relu(1 - of.beta * pairs.margin)


def _exo_pair(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    scaled_P, flipped = of.beta * pairs.margin, of.label_smoothing
    right_P, wrong_P = functional.logsigmoid(scaled_P), functional.logsigmoid(-scaled_P)
    return right_P.exp() * (right_P - math.log(1 - flipped)) + wrong_P.exp() * (wrong_P - math.log(flipped))


def _apo_zero(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    return 1 - torch.sigmoid(of.beta * pairs.advantage_of_chosen) + torch.sigmoid(of.beta * pairs.advantage_of_rejected)


def _apo_down(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    return torch.sigmoid(of.beta * pairs.advantage_of_chosen) + 1 - torch.sigmoid(of.beta * pairs.margin)


def _nca_pair(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    chosen_P, rejected_P = of.beta * pairs.advantage_of_chosen, of.beta * pairs.advantage_of_rejected
    return -functional.logsigmoid(chosen_P) - 0.5 * (functional.logsigmoid(-chosen_P) + functional.logsigmoid(-rejected_P))


def _sppo_hard(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    half = 1 / (2 * of.beta)
    return (pairs.advantage_of_chosen - half) ** 2 + (pairs.advantage_of_rejected + half) ** 2


def _ipo(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    return (pairs.margin - 1 / (2 * of.beta)) ** 2


def _simpo(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    return -functional.logsigmoid(of.beta * (pairs.policy_chosen - pairs.policy_rejected) - of.simpo_gamma)


def _orpo(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    chosen_P, rejected_P = pairs.policy_chosen, pairs.policy_rejected
    odds_P = (chosen_P - rejected_P) - (torch.log1p(-chosen_P.exp()) - torch.log1p(-rejected_P.exp()))
    return -of.beta * functional.logsigmoid(odds_P)


def _bco_pair(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    return -functional.logsigmoid(of.beta * pairs.advantage_of_chosen) - functional.logsigmoid(-of.beta * pairs.advantage_of_rejected)


def _kto(of: DpoObjective, pairs: PairLogProbs) -> Tensor:
    desirable_P = 1 - torch.sigmoid(of.beta * (pairs.advantage_of_chosen - pairs.reference_point))
    undesirable_P = 1 - torch.sigmoid(of.beta * (pairs.reference_point - pairs.advantage_of_rejected))
    return (of.desirable_weight * desirable_P + of.undesirable_weight * undesirable_P) / 2


_LOSSES: Mapping[str, Callable[[DpoObjective, PairLogProbs], Tensor]] = {
    "sigmoid": _sigmoid,
    "ipo": _ipo,
    "robust": _robust,
    "hinge": _hinge,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
    "sigmoid_norm": _sigmoid,
    "exo_pair": _exo_pair,
    "nca_pair": _nca_pair,
    "sppo_hard": _sppo_hard,
    "simpo": _simpo,
    "orpo": _orpo,
    "bco_pair": _bco_pair,
    "kto": _kto,
}
DPO_LOSSES = tuple(_LOSSES)
SMOOTHED = ("sigmoid", "robust", "exo_pair")
MEANS = ("ipo", "sigmoid_norm", "simpo", "orpo")
"""Losses over means a token; all others are over sums."""


def pair_credit(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """1 where the chosen side has the greater number, 0 where the rejected has, 0.5 where they are equal."""
    return torch.where(chosen_P == rejected_P, 0.5, (chosen_P > rejected_P).double())
