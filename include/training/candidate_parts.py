"""Candidates that the parts of a run wrote: read back, and checked to be all that were asked for, each once."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from include.training.errors import TrainingError

SHOWN = 3


def read_candidates(folder: Path) -> list[dict[str, Any]]:
    """The records of a candidate set."""
    return [json.loads(text) for text in pq.read_table(folder / "candidates.parquet", columns=["record"])["record"].to_pylist()]


def check_whole(rows: Mapping[str, Sequence[Mapping[str, Any]]], asked: Collection[tuple[str, int]]) -> None:
    """Whether the parts (`rows` by part) hold every answer that is asked for, as (prompt, random seed), once.

    Raises:
        TrainingError: one is missing, there twice, or was not asked for; it is named, with its parts.
    """
    found: dict[tuple[str, int], str] = {}
    for part, of_part in rows.items():
        for row in of_part:
            answer = (row["prompt_id"], row["random_seed"])
            if answer in found:
                raise TrainingError(f"the answer {_named(answer)} is there twice: in part {found[answer]} and in part {part}")
            if answer not in asked:
                raise TrainingError(f"the answer {_named(answer)} of part {part} was not asked for")
            found[answer] = part
    if missing := [answer for answer in asked if answer not in found]:
        listed = "; ".join(_named(answer) for answer in missing[:SHOWN])
        raise TrainingError(f"{len(missing)} of {len(asked)} answers are missing from parts {', '.join(rows)}: {listed}")


def _named(answer: tuple[str, int]) -> str:
    return f"to prompt {answer[0]} of seed {answer[1]}"
