"""A row as it was read, and a row that was set aside."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RawRow:
    """One row as it was read. `line` is the physical line it begins on (of a Parquet file or a hub set: its number), from 1."""

    line: int
    raw: str
    value: Mapping[str, Any]


@dataclass(frozen=True)
class Quarantined:
    """A row that was set aside: where it stood, why, and what it was.

    deliberate: no defect, but a row that this use of the source leaves out; it does not count against the allowed share.
    """

    source: str
    line: int
    reason: str
    raw: str
    deliberate: bool = False

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))
