"""Answers of a deployment to prompts: one generation pass that every scorer of answers reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.canonical import MAX_INTEGER, digest
from include.domain.records import Message
from include.runtime.chat import answer_text, eos_ids, prompt_ids
from include.runtime.generation import Sampling, generate_batch


@dataclass(frozen=True)
class Answer:
    """One answer. tokens: with the end token where there is one; finish_reason: eos or length."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "tokens": list(self.tokens), "finish_reason": self.finish_reason}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Answer":
        return cls(value["text"], tuple(value["tokens"]), value["finish_reason"])


@dataclass(frozen=True)
class Asked:
    """A prompt to be answered: its item's id (which seeds the answer) and its messages as deployed."""

    id: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None


def answer(model: Any, tokenizer: Any, asked: Sequence[Asked], sampling: Sampling, seed: int, rows: int) -> list[Answer]:
    """One answer to each, at most `rows` side by side; the text does not depend on `rows`."""
    written = generate_batch(
        model,
        [prompt_ids(tokenizer, one.messages, one.tools) for one in asked],
        sampling,
        [int(digest("evaluation-seed", [seed, one.id])[7:20], 16) % MAX_INTEGER for one in asked],
        stop_ids=eos_ids(tokenizer),
        max_rows=rows,
    )
    return [Answer(answer_text(tokenizer, one.tokens), tuple(one.tokens), one.finish_reason) for one in written]
