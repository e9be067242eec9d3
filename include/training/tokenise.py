"""Rows of a data set as token ids, made when they are asked for, and checked before the first step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.domain.records import Demonstration
from include.runtime.chat import Encoded, dialogue, eos_ids, special_in_text
from include.runtime.errors import InputError
from include.training.errors import TrainingError
from include.transforms.datasets_io import open_side, read_info

PREFLIGHT_ROWS = 2000


class DemonstrationRows(Sequence[Encoded]):
    """One side of a demonstration data set, memory-mapped; row i is encoded (and cut to `max_length`) on demand."""

    def __init__(self, folder: Path, side: str, tokenizer: Any, max_length: int) -> None:
        self.folder = folder
        self.side = side
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._rows: Any = open_side(folder, side) if read_info(folder)["counts"].get(side) else ()

    def __len__(self) -> int:
        return len(self._rows)

    def record(self, index: int) -> Demonstration:
        return Demonstration.from_json(json.loads(self._rows[index]["record"]))

    def whole(self, index: int) -> Encoded:
        """The dialogue before it is cut."""
        row = self.record(index)
        try:
            return dialogue(self.tokenizer, row.prompt.messages, row.response, row.prompt.tools)
        except InputError as error:
            raise TrainingError(f"{self.folder} {self.side} row {row.example_id}: {error}") from error

    def __getitem__(self, index: Any) -> Any:
        return self.whole(index).truncate(self.max_length)


@dataclass(frozen=True)
class Preflight:
    """What was seen of the rows before step 1."""

    rows: int
    truncated: int
    untrained: int
    ends_learned: int
    special_in_text: int
    trained_tokens: int

    def metrics(self) -> dict[str, float]:
        return {
            "rows_checked": float(self.rows),
            "rows_truncated": float(self.truncated),
            "rows_without_trained_token": float(self.untrained),
            "share_end_token_learned": self.ends_learned / self.rows,
            "rows_with_special_token_in_text": float(self.special_in_text),
            "trained_tokens_per_row": self.trained_tokens / self.rows,
        }


def preflight(rows: DemonstrationRows) -> Preflight:
    """Counts over the first rows, and refuses what could only be learned wrongly.

    Raises:
        TrainingError: no row; no learned token; or no row whose last token is a learned end token (such a model would
            never stop).
    """
    count = min(len(rows), PREFLIGHT_ROWS)
    if count == 0:
        raise TrainingError(f"{rows.folder} has no row on side {rows.side}: there is nothing to learn from")
    stops = eos_ids(rows.tokenizer)
    whole = [rows.whole(i) for i in range(count)]
    cut = [item.truncate(rows.max_length) for item in whole]
    texts = [rows.record(i).prompt.messages for i in range(count)]
    seen = Preflight(
        rows=count,
        truncated=sum(len(a) != len(b) for a, b in zip(whole, cut, strict=True)),
        untrained=sum(item.trained_tokens == 0 for item in cut),
        ends_learned=sum(item.ends_with(stops) for item in cut),
        special_in_text=sum(special_in_text(rows.tokenizer, messages) for messages in texts),
        trained_tokens=sum(item.trained_tokens for item in cut),
    )
    if seen.trained_tokens == 0:
        raise TrainingError(f"{rows.folder}: every token is masked at max_length {rows.max_length}: nothing would be learned")
    if seen.ends_learned == 0:
        raise TrainingError(f"{rows.folder}: no row ends with a learned end token: the model would never learn to stop")
    return seen
