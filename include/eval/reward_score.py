"""What a reward model thinks of the answers: rises with the policy's training; a gate asks whether quality rises with it."""

from collections.abc import Sequence
from typing import Any

from include.eval.answers import Answer
from include.eval.errors import EvaluationError
from include.runtime.reward_model import score_sequences
from include.runtime.reward_stats import RewardNormaliser

ROWS = 16
"""Fixed: the last bits of a score depend on the batch it stands in, and a placement must not move a measurement."""


def scores(model: Any, normaliser: RewardNormaliser, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> list[float]:
    """In the reward model's own standard deviations, clipped as its folder says.

    Raises:
        EvaluationError: a score that is not finite: a missing reward is never 0.
    """
    sequences = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, answers, strict=True)]
    found = [normaliser.clipped(normaliser.normalise(raw)) for raw in score_sequences(model, sequences, 0, ROWS)]
    if broken := [i for i, value in enumerate(found) if value != value or abs(value) == float("inf")]:
        raise EvaluationError(f"the reward model gives no finite score to answer {broken[0]} of {len(found)}")
    return found
