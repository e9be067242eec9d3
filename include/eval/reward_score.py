"""What a reward model thinks of the answers: rises with the policy's training; a gate asks whether quality rises with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from include.eval.answers import Answer
from include.eval.errors import EvaluationError
from include.runtime.reward_model import score_sequences
from include.runtime.reward_stats import RewardNormaliser, ensemble_score

ROWS = 16
"""Fixed: the last bits of a score depend on the batch it stands in, and a placement must not move a measurement."""


@dataclass(frozen=True)
class RewardMember:
    """One reward model with its statistics; several are an ensemble."""

    model: Any
    normaliser: RewardNormaliser


def scores(members: Sequence[RewardMember], how: str, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> list[float]:
    """Each member in its own standard deviations, put together as `how` says (mean or minimum), clipped as the first one's folder says.

    Raises:
        EvaluationError: a score that is not finite: a missing reward is never 0.
    """
    sequences = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, answers, strict=True)]
    raw = zip(*(score_sequences(member.model, sequences, 0, ROWS) for member in members), strict=True)
    normalisers = [member.normaliser for member in members]
    found = [ensemble_score(row, normalisers, how, normalisers[0].clip) for row in raw]
    if broken := [i for i, value in enumerate(found) if value != value or abs(value) == float("inf")]:
        raise EvaluationError(f"the reward model gives no finite score to answer {broken[0]} of {len(found)}")
    return found
