"""Answers of a deployment to prompts: one generation pass that every scorer of answers reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.canonical import MAX_INTEGER, digest
from include.domain.records import Message
from include.runtime.chat import answer_text, eos_ids, prompt_ids
from include.runtime.generation import Generated, Sampling, generate_batch


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
        [answer_seed(seed, one.id) for one in asked],
        stop_ids=eos_ids(tokenizer),
        max_rows=rows,
    )
    return [read_answer(tokenizer, one) for one in written]


def answer_seed(seed: int, name: str) -> int:
    """The random seed of the answer to one item: a function of the run's seed and the item."""
    return int(digest("evaluation-seed", [seed, name])[7:20], 16) % MAX_INTEGER


def read_answer(tokenizer: Any, written: Generated) -> Answer:
    """What was written, with its text."""
    return Answer(answer_text(tokenizer, written.tokens), tuple(written.tokens), written.finish_reason)
