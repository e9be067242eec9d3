"""Normalising raw rewards: only differences of a reward model mean anything, so each is measured in its own deviations."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from include.domain.errors import IntegrityError
from include.domain.members import members_among

REWARD_JSON = "reward.json"
EPSILON = 1e-8
CLIP = 5.0


@dataclass(frozen=True)
class RunningStats:
    """Count, mean and sum of squared deviations of the numbers seen, in double precision."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "RunningStats":
        """Of these numbers; two passes, exactly rounded sums."""
        if not values:
            return cls()
        mean = math.fsum(values) / len(values)
        return cls(len(values), mean, math.fsum((value - mean) ** 2 for value in values))

    def merge(self, other: "RunningStats") -> "RunningStats":
        """Of both together, as if seen at once. Source: Chan, Golub & LeVeque 1979, the pairwise update."""
        count = self.count + other.count
        if not count:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        return RunningStats(count, mean, self.squares + other.squares + delta**2 * self.count * other.count / count)

    @property
    def std(self) -> float:
        """Of the population (divided by n)."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


@dataclass(frozen=True)
class RewardNormaliser:
    """(raw − mean) / (std + ε), and the clip that follows once members of an ensemble are put together."""

    stats: RunningStats
    epsilon: float = EPSILON
    clip: float = CLIP

    def normalise(self, raw: float) -> float:
        """`raw` in standard deviations; NaN stays NaN: a missing reward is not 0."""
        return (raw - self.stats.mean) / (self.stats.std + self.epsilon)

    def clipped(self, value: float) -> float:
        return min(max(value, -self.clip), self.clip) if math.isfinite(value) else value

    def seen(self, raw: Sequence[float]) -> "RewardNormaliser":
        """With these raw rewards merged in; those that are missing (not finite) are left out."""
        return replace(self, stats=self.stats.merge(RunningStats.of([value for value in raw if math.isfinite(value)])))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "align/reward/v1",
            "mean": self.stats.mean,
            "std": self.stats.std,
            "count": self.stats.count,
            "squares": self.stats.squares,
            "epsilon": self.epsilon,
            "clip": self.clip,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RewardNormaliser":
        if value.get("schema") != "align/reward/v1":
            raise IntegrityError(f"{REWARD_JSON} has schema {value.get('schema')!r}, expected 'align/reward/v1'")
        count, std = int(value["count"]), float(value["std"])
        if count < 2 or not std > 0:
            raise IntegrityError(f"{REWARD_JSON}: {count} scores with deviation {std} cannot normalise anything")
        # `squares` gives back the very numbers; without it (older folders) they are those of the deviation, to rounding.
        squares = float(value.get("squares", std**2 * count))
        return cls(RunningStats(count, float(value["mean"]), squares), float(value["epsilon"]), float(value["clip"]))

    def write(self, folder: Path, also: Mapping[str, float] | None = None) -> None:
        """`also`: further figures that are to stand beside the statistics."""
        (folder / REWARD_JSON).write_text(json.dumps({**(also or {}), **self.to_json()}, indent=1, sort_keys=True) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> "RewardNormaliser":
        path = folder / REWARD_JSON
        if not path.is_file():
            raise IntegrityError(f"{path} is missing: not a reward model of this project (its scores cannot be normalised)")
        return cls.from_json(json.loads(path.read_text("utf-8")))


def member_inputs(names: Iterable[str]) -> list[str]:
    """Those of `names` that are members of a reward ensemble, in order: reward_model, reward_model_2, …"""
    return members_among(names, "reward_model")


def ensemble_score(raw: Sequence[float], normalisers: Sequence[RewardNormaliser], how: str, clip: float) -> float:
    """Each member's raw score in its own deviations, then their mean or minimum, then the clip; NaN when any is missing."""
    value = combine([normaliser.normalise(score) for normaliser, score in zip(normalisers, raw, strict=True)], how)
    return min(max(value, -clip), clip) if math.isfinite(value) else math.nan


def combine(member_scores: Sequence[float], how: str) -> float:
    """Mean or minimum over an ensemble's normalised scores of one answer; NaN when any is missing."""
    if any(not math.isfinite(score) for score in member_scores):
        return math.nan
    if how == "minimum":
        return min(member_scores)
    if how == "mean":
        return math.fsum(member_scores) / len(member_scores)
    raise ValueError(f"reward.combine {how!r} is none of mean, minimum")
