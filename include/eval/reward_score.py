"""What a reward model thinks of the answers: rises with the policy's training; a gate asks whether quality rises with it.

Where it has learnt dimensions of the rubric, their scores are told too, in points from 1 to 5.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.eval.answers import Answer
from include.eval.errors import EvaluationError
from include.runtime.reward_model import dimensions_of, output_sequences, points
from include.runtime.reward_stats import RewardNormaliser, ensemble_score

ROWS = 16
"""Fixed: the last bits of a score depend on the batch it stands in, and a placement must not move a measurement."""


@dataclass(frozen=True)
class RewardMember:
    """One reward model with its statistics; several are an ensemble."""

    model: Any
    normaliser: RewardNormaliser


@dataclass(frozen=True)
class Rewarded:
    """One answer's score, and its points by dimension: the mean over members, all of which have the same dimensions."""

    score: float
    dimensions: Mapping[str, float]


def rewarded(members: Sequence[RewardMember], how: str, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> list[Rewarded]:
    """Each member in its own standard deviations, put together as `how` says (mean or minimum), clipped as the first one's folder says.

    Raises:
        EvaluationError: a score that is not finite: a missing reward is never 0. Or members that learnt other dimensions.
    """
    sequences = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, answers, strict=True)]
    names = _dimensions(members)
    normalisers = [member.normaliser for member in members]
    found = []
    for outputs in zip(*(output_sequences(member.model, sequences, 0, ROWS) for member in members), strict=True):
        score = ensemble_score([of_member[0] for of_member in outputs], normalisers, how, normalisers[0].clip)
        by_name = {name: math.fsum(points(of_member[at]) for of_member in outputs) / len(members) for at, name in enumerate(names, 1)}
        found.append(Rewarded(score, by_name))
    if broken := [i for i, one in enumerate(found) if not all(map(math.isfinite, (one.score, *one.dimensions.values())))]:
        raise EvaluationError(f"the reward model gives no finite score to answer {broken[0]} of {len(found)}")
    return found


def _dimensions(members: Sequence[RewardMember]) -> tuple[str, ...]:
    known = {dimensions_of(member.model.config, f"member {at} of the reward ensemble") for at, member in enumerate(members, 1)}
    if len(known) != 1:
        raise EvaluationError(f"the members of the reward ensemble learnt different dimensions: {sorted(known)}")
    (names,) = known
    return names
