"""What a reward model may learn beside the preference: how good a chosen answer is by dimensions of the rubric.

Output 0 of the head is the preference, outputs 1 to K regress the scores that labels gave. Squared error on chosen answers
alone, as nobody scored the rejected ones. Source: Wang et al. 2024 (HelpSteer2), section 4, regression reward models.
A score s from 1 to 5 is learnt as (s − 3) / 2, from −1 to 1, so its error is of the order of the Bradley-Terry loss.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from include.domain.errors import SpecError
from include.runtime.job import Job
from include.runtime.reward_model import HALF_SCALE, MIDDLE, PREFERENCE
from include.training.pairs.rows import PairsError, TokenPair
from include.transforms.dimension_scores import DimensionScore, read_scores

DIMENSION_KEYS = ("dimensions", "dimension_weight")
WEIGHT = 0.1
"""A guess of the middle score leaves an error of 0.25 to 1, a guessed preference one of 0.69: a tenth keeps the preference in front."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True)
class Dimensions:
    """The dimensions that are learnt, the weight of their loss, and pair id → a score for each, NaN where nobody gave one."""

    names: tuple[str, ...] = ()
    weight: float = WEIGHT
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, train: Sequence[TokenPair]) -> "Dimensions":
        """config.dimensions with the scores of the input `preferences`.

        Raises:
            SpecError: names that cannot be outputs, or a weight that is not above 0.
            PairsError: a dimension of which no training pair has a score.
        """
        names = tuple(job.config.texts("dimensions", []))
        weight = job.config.number("dimension_weight", WEIGHT)
        if not names:
            if "dimension_weight" in job.config:
                raise SpecError("config.dimension_weight weighs config.dimensions, and there are none")
            return cls()
        if len(set(names)) != len(names) or PREFERENCE in names or not all(map(_NAME.match, names)):
            raise SpecError(
                f"config.dimensions {list(names)}: give different names of letters, digits, '_', '.' and '-', none of them {PREFERENCE}"
            )
        if not 0 < weight < math.inf:
            raise SpecError(f"config.dimension_weight {weight} must be above 0: at 0 no dimension is learnt")
        given = read_scores(job.input("preferences"))
        _check_scored(names, given, train)
        found: dict[str, list[float]] = {}
        for score in given:
            if score.dimension in names:
                found.setdefault(score.pair_id, [math.nan] * len(names))[names.index(score.dimension)] = score.score
        return cls(names, weight, {pair_id: tuple(of_pair) for pair_id, of_pair in found.items()})

    def given(self, pair: TokenPair) -> tuple[float, ...]:
        """A score from 1 to 5 for each dimension, NaN where nobody gave one."""
        return self.scores.get(pair.pair_id, (math.nan,) * len(self.names))

    def weights(self, pairs: Sequence[TokenPair]) -> list[float]:
        """What each score of `pairs` weighs: as much as its pair."""
        return [pair.weight for pair in pairs for score in self.given(pair) if not math.isnan(score)]

    def error(self, pairs: Sequence[TokenPair], predicted_PK: Tensor) -> Tensor:
        """Σ weight × (output − (s − 3) / 2)² over the scores that chosen answers have."""
        given_PK = torch.tensor([self.given(pair) for pair in pairs], dtype=predicted_PK.dtype, device=predicted_PK.device)
        weights_P1 = torch.tensor([[pair.weight] for pair in pairs], dtype=predicted_PK.dtype, device=predicted_PK.device)
        missing_PK = given_PK.isnan()
        off_PK = (predicted_PK - (given_PK - MIDDLE) / HALF_SCALE).masked_fill(missing_PK, 0.0)
        return (weights_P1 * off_PK**2).sum()


def _check_scored(names: Sequence[str], given: Sequence[DimensionScore], train: Sequence[TokenPair]) -> None:
    """Refuses a dimension without a training score: its output would mean nothing."""
    of_train = {pair.pair_id for pair in train}
    counts = Counter(score.dimension for score in given if score.pair_id in of_train)
    if not given:
        raise PairsError(
            f"config.dimensions asks for {', '.join(names)}, and the dataset has 0 scores: its labels gave none, or it was built "
            "before scores were kept (a version with one more label has them)"
        )
    if without := [name for name in names if not counts[name]]:
        known = ", ".join(f"{name} {n}" for name, n in sorted(counts.items())) or "none"
        raise PairsError(
            f"config.dimensions: {without[0]} has 0 scores on {len(train)} training pairs, so it cannot be learnt; scores on them: {known}"
        )
