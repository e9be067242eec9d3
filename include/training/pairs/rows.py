"""Preference pairs as tokens: both answers after the same prompt, cut to a length, and only where they still differ."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from include.domain.errors import RecordError
from include.domain.records import Candidate, Message, PreferencePair, Prompt
from include.runtime.chat import Encoded, dialogue, eos_ids
from include.runtime.errors import InputError
from include.runtime.job import Job
from include.training.errors import TrainingError
from include.transforms.datasets_io import read_rows

MATCHED_TOKENS = 2
_LINES = (
    ("fence", re.compile(r"\s*```")),
    ("heading", re.compile(r"\s*#{1,6} ")),
    ("item", re.compile(r"\s*(?:[-*+•]|\d+[.)]) ")),
    ("label", re.compile(r"\s*\**\w[\w ]{0,24}\**:")),
)
MATCHED_SHARE = 0.10
HELD = {"holdout": ("holdout", "safety_holdout")}


class PairsError(TrainingError):
    """Pairs cannot be learnt from; the message says which and why."""


Origin = tuple[str | None, str, str]
"""Of one answer: the policy that wrote it (None: unknown), under which tokenizer and chat template."""


@dataclass(frozen=True)
class TokenPair:
    """One pair. `chosen` and `rejected` are whole sequences; their first `prompt_length` tokens are the prompt's.

    written: where the chosen and the rejected answer came from.
    """

    pair_id: str
    group: str
    prompt_length: int
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    weight: float
    slices: Mapping[str, str]
    written: tuple[Origin, ...]

    def __post_init__(self) -> None:
        if self.chosen[: self.prompt_length] != self.rejected[: self.prompt_length]:
            raise PairsError(f"pair {self.pair_id}: the prompt is not the same token prefix on both sides")

    @property
    def sides(self) -> tuple[Encoded, Encoded]:
        """Chosen and rejected with the answer's positions marked."""
        return self._side(self.chosen), self._side(self.rejected)

    def _side(self, ids: tuple[int, ...]) -> Encoded:
        return Encoded(ids, tuple(at >= self.prompt_length for at in range(len(ids))), self.prompt_length)

    @property
    def chosen_tokens(self) -> int:
        return len(self.chosen) - self.prompt_length

    @property
    def rejected_tokens(self) -> int:
        return len(self.rejected) - self.prompt_length

    @property
    def all_slices(self) -> dict[str, str]:
        """The slices of its record, and by answer length."""
        return {**self.slices, "length": length_slice(self.chosen_tokens, self.rejected_tokens)}

    def cut(self, max_length: int) -> "TokenPair":
        """Both sides cut on the right."""
        length = min(self.prompt_length, max_length)
        sides = self.chosen[:max_length], self.rejected[:max_length]
        return TokenPair(self.pair_id, self.group, length, *sides, self.weight, self.slices, self.written)


@dataclass(frozen=True)
class PairCounts:
    """What became of the pairs read. Identical ones teach nothing: their loss is ln 2 for ever."""

    read: int = 0
    kept: int = 0
    identical_at_start: int = 0
    identical_after_truncation: int = 0
    truncated: int = 0

    @property
    def identical_share(self) -> float:
        return (self.identical_at_start + self.identical_after_truncation) / self.read if self.read else 0.0

    def metrics(self, side: str) -> dict[str, float]:
        counts = {
            "pairs": self.kept,
            "identical_at_start": self.identical_at_start,
            "identical_after_truncation": self.identical_after_truncation,
        }
        return {f"{side}_{name}": float(value) for name, value in {**counts, "truncated": self.truncated}.items()}

    def check(self, side: str, limit: float) -> None:
        """Refuses a side of which too much was dropped, or nothing is left."""
        if self.identical_share > limit:
            raise PairsError(
                f"{side}: {self.identical_at_start} pairs are identical from the start and {self.identical_after_truncation} after "
                f"truncation, of {self.read}: a share of {self.identical_share:.2f}, the limit is {limit:g}. Raise max_length or mend the data"
            )
        if self.read and not self.kept:
            raise PairsError(f"{side}: none of {self.read} pairs can be learnt from")


def distinct_pairs(pairs: Iterable[TokenPair], max_length: int) -> tuple[list[TokenPair], PairCounts]:
    """Pairs cut to `max_length` that still differ, in their order, and the counts of all."""
    kept, read, at_start, after, truncated = [], 0, 0, 0, 0
    for pair in pairs:
        read += 1
        shorter = pair.cut(max_length)
        if pair.chosen == pair.rejected:
            at_start += 1
        elif shorter.chosen == shorter.rejected:
            after += 1
        else:
            truncated += shorter != pair
            kept.append(shorter)
    return kept, PairCounts(read, len(kept), at_start, after, truncated)


def length_slice(chosen_tokens: int, rejected_tokens: int) -> str:
    """matched (within a tenth of the longer, or 2 tokens), chosen_longer or chosen_shorter."""
    gap = abs(chosen_tokens - rejected_tokens)
    if gap <= max(MATCHED_TOKENS, MATCHED_SHARE * max(chosen_tokens, rejected_tokens)):
        return "matched"
    return "chosen_longer" if chosen_tokens > rejected_tokens else "chosen_shorter"


def format_slice(chosen: str, rejected: str) -> str:
    """matched where both answers look alike: the same kinds of lines (plain, list item, heading, code fence, label) in the same order."""
    return "matched" if _outline(chosen) == _outline(rejected) else "differs"


def _outline(text: str) -> tuple[str, ...]:
    kinds = [next((kind for kind, pattern in _LINES if pattern.match(line)), "plain") for line in text.splitlines() if line.strip()]
    return tuple(kind for kind, _ in groupby(kinds))


Encode = Callable[[PreferencePair, Candidate], Encoded]
"""(pair, one of its candidates) → prompt and answer as ids."""


def encoder(tokenizer: Any) -> Encode:
    """Prompt and answer exactly as they are generated: an answer that was cut short gets no end token it never had."""
    stops = eos_ids(tokenizer)

    def encode(pair: PreferencePair, candidate: Candidate) -> Encoded:
        turn = Message("assistant", candidate.response_text, candidate.tool_calls)
        whole = dialogue(tokenizer, pair.prompt.messages, [turn], pair.prompt.tools)
        cut_short = candidate.finish_reason == "length" and whole.ends_with(stops)
        return whole.truncate(len(whole) - 1) if cut_short else whole

    return encode


def read_pairs(folder: Path, side: str, encode: Encode) -> list[TokenPair]:
    """The pairs of one side as tokens; raises PairsError naming a row that is not a pair."""
    return [_pair(row.id, row.split_group, row.record, encode) for row in read_rows(folder, side)]


def prompts_of(folder: Path, side: str) -> list[Prompt]:
    """The prompts of a side's pairs, each once."""
    prompts = {p.prompt_id: p for p in (PreferencePair.from_json(row.record).prompt for row in read_rows(folder, side))}
    return list(prompts.values())


def texts_of(folder: Path, side: str) -> Iterator[list[Message]]:
    """What people and models wrote in a side's pairs: each prompt's messages with both answers."""
    for row in read_rows(folder, side):
        pair = PreferencePair.from_json(row.record)
        yield [*pair.prompt.messages, *(Message("assistant", answer.response_text) for answer in (pair.chosen, pair.rejected))]


def _pair(row_id: str, group: str, record: Mapping[str, Any], encode: Encode) -> TokenPair:
    try:
        pair = PreferencePair.from_json(record)
        chosen, rejected = encode(pair, pair.chosen), encode(pair, pair.rejected)
    except (RecordError, InputError) as error:
        raise PairsError(f"row {row_id}: {error}") from error
    if chosen.prompt_length != rejected.prompt_length:
        raise PairsError(
            f"pair {pair.pair_id}: its prompt has {chosen.prompt_length} tokens before one answer, {rejected.prompt_length} before the other"
        )
    slices = {
        "origin": pair.origin,
        "annotator_kind": pair.annotator_kind,
        "language": pair.prompt.language,
        "topic": pair.prompt.topic,
        "safety_class": pair.prompt.safety_class,
        "format": format_slice(pair.chosen.response_text, pair.rejected.response_text),
    }
    written = tuple((c.policy_checkpoint, c.tokenizer_version, c.chat_template) for c in (pair.chosen, pair.rejected))
    return TokenPair(pair.pair_id, group, chosen.prompt_length, chosen.ids, rejected.ids, pair.weight, slices, written)


def pairs_of(job: Job, side: str, encode: Encode) -> tuple[list[TokenPair], PairCounts]:
    """One side of the input `preferences`, cut to config.max_length, identical pairs dropped and counted, or refused.

    holdout: the pairs of safety classes with it, which lie on a side of their own.
    """
    read = [pair for part in HELD.get(side, (side,)) for pair in read_pairs(job.input("preferences"), part, encode)]
    pairs, counts = distinct_pairs(read, job.config.positive("max_length"))
    counts.check(side, job.config.number("max_identical_share", 0.2))
    return pairs, counts
