"""How well the scores of dimensions are foretold on pairs never learnt from, beside always saying the training mean."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from include.runtime.reward_model import points
from include.training.pairs.rows import TokenPair
from include.training.reward.dimensions import Dimensions
from include.training.reward.pair_scores import MemberScores


@dataclass(frozen=True)
class HeldDimension:
    """One dimension on the hold-out pairs that have a score for it.

    given, said: points from 1 to 5, by the labels and by the model (an ensemble's mean), pair by pair.
    usual: the mean over training pairs; the baseline says it of every answer.
    """

    name: str
    pairs: Sequence[TokenPair]
    given: Sequence[float]
    said: Sequence[float]
    usual: float

    @cached_property
    def errors(self) -> list[float]:
        """Absolute, in points."""
        return [abs(a - b) for a, b in zip(self.said, self.given, strict=True)]

    @cached_property
    def usual_errors(self) -> list[float]:
        """The baseline's."""
        return [abs(self.usual - given) for given in self.given]

    @property
    def figures(self) -> dict[str, float]:
        """scored (pairs), then error and baseline_error in points where there are any, correlation where it is defined."""
        told = {"scored": float(len(self.pairs))}
        if self.pairs:
            told |= {"error": _mean(self.errors), "baseline_error": _mean(self.usual_errors)}
        both = correlation(self.given, self.said)
        return told if both is None else {**told, "correlation": both}


def held_dimensions(
    dimensions: Dimensions, train: Sequence[TokenPair], held: Sequence[TokenPair], members: Sequence[MemberScores]
) -> list[HeldDimension]:
    """Every dimension on the pairs `held`; [] where the reward model has none."""
    found = []
    for at, name in enumerate(dimensions.names):
        learnt = [score for pair in train if not math.isnan(score := dimensions.given(pair)[at])]
        scored = [index for index, pair in enumerate(held) if not math.isnan(dimensions.given(pair)[at])]
        given = [dimensions.given(held[index])[at] for index in scored]
        said = [points(_mean([member.held.dimensions[index][at] for member in members])) for index in scored]
        found.append(HeldDimension(name, [held[index] for index in scored], given, said, _mean(learnt)))
    return found


def dimension_figures(held: Sequence[HeldDimension]) -> dict[str, float]:
    """Flat: holdout_dimension_<name>_<figure>."""
    return {f"holdout_dimension_{one.name}_{name}": value for one in held for name, value in one.figures.items()}


def dimension_report(held: Sequence[HeldDimension]) -> Mapping[str, Mapping[str, float]]:
    """The same by name, with the training mean that the baseline says."""
    return {one.name: {**one.figures, "training_mean": one.usual} for one in held}


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r; None where one of them does not vary, or there are fewer than two."""
    if len(first) < 2:
        return None
    a, b = _mean(first), _mean(second)
    spread = math.fsum((x - a) ** 2 for x in first) * math.fsum((y - b) ** 2 for y in second)
    if not spread > 0:
        return None
    return math.fsum((x - a) * (y - b) for x, y in zip(first, second, strict=True)) / math.sqrt(spread)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
