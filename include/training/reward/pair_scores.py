"""Scores of both sides of pairs: of one reward model, of each member of an ensemble, and of the members put together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from include.runtime.reward_stats import RewardNormaliser, combine
from include.training.pairs.losses import bradley_terry, pair_credit


@dataclass(frozen=True)
class PairScores:
    """Scores of chosen and rejected answers, pair by pair; of the chosen ones also the outputs for dimensions, where there are any."""

    chosen: Sequence[float]
    rejected: Sequence[float]
    dimensions: Sequence[Sequence[float]] = ()

    @property
    def credit(self) -> list[float]:
        """1 where the chosen answer has the greater score, 0 where the rejected has, ½ at a draw."""
        return credit(self.chosen, self.rejected)

    @property
    def margins(self) -> list[float]:
        return [a - b for a, b in zip(self.chosen, self.rejected, strict=True)]


@dataclass(frozen=True)
class MemberScores:
    """One member of an ensemble (of one, mostly): its seed, its statistics, and its raw scores of validation and hold-out pairs."""

    seed: int
    best_step: int
    normaliser: RewardNormaliser
    validated: PairScores
    held: PairScores


def together(members: Sequence[MemberScores], side: str, how: str) -> PairScores:
    """The members' scores of `side` (validated or held), each in its own deviations, as their mean or minimum; not clipped."""
    raw: list[PairScores] = [getattr(member, side) for member in members]

    def of(which: str) -> list[float]:
        rows = zip(*(getattr(scores, which) for scores in raw), strict=True)
        return [combine([member.normaliser.normalise(v) for member, v in zip(members, row, strict=True)], how) for row in rows]

    return PairScores(of("chosen"), of("rejected"))


def credit(chosen: Sequence[float], rejected: Sequence[float]) -> list[float]:
    return pair_credit(torch.tensor(chosen, dtype=torch.float64), torch.tensor(rejected, dtype=torch.float64)).tolist()


def validation_accuracy(scores: PairScores) -> dict[str, float]:
    """Accuracy, Bradley-Terry loss and margin of pairs, each a mean over them."""
    chosen, rejected = (torch.tensor(side, dtype=torch.float64) for side in (scores.chosen, scores.rejected))
    return {
        "accuracy": math.fsum(scores.credit) / len(scores.chosen),
        "loss": float(bradley_terry(chosen, rejected).mean()),
        "margin": float((chosen - rejected).mean()),
    }
