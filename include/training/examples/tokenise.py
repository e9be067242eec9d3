"""Rows of a data set as token ids, made when they are asked for, and checked before the first step."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from include.domain.canonical import digest
from include.domain.records import Demonstration
from include.runtime.chat import LEARNED_TURNS, Encoded, check_beginning, dialogue, eos_ids, merges_at_answer, prompt_ids, special_in_text
from include.runtime.errors import InputError
from include.runtime.job import Job
from include.training.errors import TrainingError
from include.training.examples.example_order import OWN
from include.training.examples.scratch import scratch
from include.transforms.datasets_io import open_side, read_info

PREFLIGHT_ROWS = 2000
CACHED_ROWS = 20_000
"""Encoded rows kept in memory: some tens of megabytes, and a small data set is encoded once for all its epochs."""


class DemonstrationRows(Sequence[Encoded]):
    """One side of the demonstration data set `name`, memory-mapped; row i is encoded (and cut to config.max_length) on demand.

    learned: which assistant turns are learned, see `chat.LEARNED_TURNS`.
    """

    def __init__(self, job: Job, name: str, side: str, tokenizer: Any, learned: str = "response") -> None:
        folder, max_length = job.input(name), job.config.positive("max_length")
        self.folder = folder
        self.side = side
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.learned = learned
        self.whole = lru_cache(CACHED_ROWS)(self._whole)
        there = read_info(folder)["counts"].get(side)
        self._rows: Any = open_side(folder, side, scratch(job, f"datasets-{name}-{side}")) if there else ()

    def __len__(self) -> int:
        return len(self._rows)

    def record(self, index: int) -> Demonstration:
        return Demonstration.from_json(json.loads(self._rows[index]["record"]))

    def _whole(self, index: int) -> Encoded:
        """The dialogue before it is cut."""
        row = self.record(index)
        try:
            return dialogue(self.tokenizer, row.prompt.messages, row.response, row.prompt.tools, self.learned)
        except InputError as error:
            raise TrainingError(f"{self.folder} {self.side} row {row.example_id}: {error}") from error

    def __getitem__(self, index: Any) -> Any:
        return self.whole(index).truncate(self.max_length)


class JoinedRows(Sequence[Encoded]):
    """The training rows of all data sets of a run, one after another, by the name of their input."""

    def __init__(self, parts: Mapping[str, DemonstrationRows]) -> None:
        self.parts = dict(parts)
        self.tokenizer = next(iter(self.parts.values())).tokenizer

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def __getitem__(self, index: Any) -> Any:
        for part in self.parts.values():
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)

    def identity(self, job: Job) -> str:
        """What a position in these rows is bound to."""
        digests = {name: job.input_digest(name) for name in self.parts}
        return next(iter(digests.values())) if len(digests) == 1 else digest("data-sets", digests)


def joined_rows(job: Job, tokenizer: Any) -> JoinedRows:
    """The training rows of the input `demonstrations` and of every further one, `demonstrations_…`, of a mixture."""
    names = sorted(name for name in job.inputs if name == OWN or name.startswith(f"{OWN}_"))
    if len(names) > 1 and "mixture" not in job.config:
        raise TrainingError(f"the run has {', '.join(names)}, and config.mixture does not say how they are mixed")
    learned = job.config.text("learned_turns", LEARNED_TURNS, "response")
    job.input(OWN)
    return JoinedRows({name: DemonstrationRows(job, name, "train", tokenizer, learned) for name in names})


def preflight_all(job: Job, rows: JoinedRows) -> dict[str, float]:
    """`preflight` of every data set; warns of what is seldom meant. Figures of further sets bear their input's name."""
    figures: dict[str, float] = {}
    for name, part in rows.parts.items():
        seen = preflight(part)
        if seen.special_in_text:
            job.warn(f"{name}: {seen.special_in_text} of the first {seen.rows} rows spell out a special token in their text")
        if seen.merged_at_answer:
            job.warn(
                f"{name}: {seen.merged_at_answer} of the first {seen.rows} answers would merge with their prompt if the text were encoded at once"
            )
        figures |= {(key if name == OWN else f"{name}_{key}"): value for key, value in seen.metrics().items()}
    return figures


@dataclass(frozen=True)
class Preflight:
    """What was seen of the rows before step 1."""

    rows: int
    truncated: int
    untrained: int
    ends_learned: int
    special_in_text: int
    merged_at_answer: int
    safety: int
    trained_tokens: int

    def metrics(self) -> dict[str, float]:
        return {
            "rows_checked": float(self.rows),
            "rows_truncated": float(self.truncated),
            "rows_without_trained_token": float(self.untrained),
            "share_end_token_learned": self.ends_learned / self.rows,
            "rows_with_special_token_in_text": float(self.special_in_text),
            "rows_merged_at_answer": float(self.merged_at_answer),
            "share_safety_rows": self.safety / self.rows,
            "trained_tokens_per_row": self.trained_tokens / self.rows,
        }


def _check_beginning(rows: DemonstrationRows, record: Demonstration, item: Encoded) -> None:
    try:
        check_beginning(rows.tokenizer, item, prompt_ids(rows.tokenizer, record.prompt.messages, record.prompt.tools))
    except InputError as error:
        raise TrainingError(f"{rows.folder} {rows.side} row {record.example_id}: {error}") from error


def preflight(rows: DemonstrationRows) -> Preflight:
    """Counts over the first rows, and refuses what could only be learned wrongly.

    Raises:
        TrainingError: no row; a row whose prompt is not its beginning, or with two beginning-of-sequence tokens; no
            learned token; or no row whose last token is a learned end token (such a model would never stop).
    """
    count = min(len(rows), PREFLIGHT_ROWS)
    if count == 0:
        raise TrainingError(f"{rows.folder} has no row on side {rows.side}: there is nothing to learn from")
    stops = eos_ids(rows.tokenizer)
    whole = [rows.whole(i) for i in range(count)]
    cut = [item.truncate(rows.max_length) for item in whole]
    records = [rows.record(i) for i in range(count)]
    for record, item in zip(records, whole, strict=True):
        _check_beginning(rows, record, item)
    seen = Preflight(
        rows=count,
        truncated=sum(len(a) != len(b) for a, b in zip(whole, cut, strict=True)),
        untrained=sum(item.trained_tokens == 0 for item in cut),
        ends_learned=sum(item.ends_with(stops) for item in cut),
        special_in_text=sum(special_in_text(rows.tokenizer, record.prompt.messages) for record in records),
        merged_at_answer=sum(merges_at_answer(rows.tokenizer, r.prompt.messages, r.response, r.prompt.tools) for r in records),
        safety=sum(record.prompt.safety_class != "none" for record in records),
        trained_tokens=sum(item.trained_tokens for item in cut),
    )
    if seen.trained_tokens == 0:
        raise TrainingError(f"{rows.folder}: every token is masked at max_length {rows.max_length}: nothing would be learned")
    if seen.ends_learned == 0:
        raise TrainingError(f"{rows.folder}: no row ends with a learned end token: the model would never learn to stop")
    return seen
