"""Texts that spell out a special token, which the tokenizer would take for a real one: counted before the first step."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from include.runtime.chat import Messages, special_in_text
from include.runtime.job import Job
from include.training.examples.tokenise import PREFLIGHT_ROWS


def warn_of_special_tokens(job: Job, tokenizer: Any, what: str, dialogues: Iterable[Messages]) -> dict[str, float]:
    """Looks at the first `PREFLIGHT_ROWS` dialogues, warns where somebody's text spells out a special token, and gives both counts."""
    looked = [special_in_text(tokenizer, messages) for messages in islice(dialogues, PREFLIGHT_ROWS)]
    if any(looked):
        job.warn(f"{what}: {sum(looked)} of the first {len(looked)} rows spell out a special token in their text")
    return {"texts_looked_at": float(len(looked)), "texts_with_special_token": float(sum(looked))}
