"""Tables and what is expected of them, in our own words; `gx_run` puts them to Great Expectations.

A floor for the number of rows and not-null for every named column are part of every table: without them an empty file, and a
column of nulls, pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.split import SIDES, USES
from include.transforms.datasets_io import Row
from include.transforms.draft import Draft
from include.transforms.split import EVALUATION

ANSWER_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "demonstration": ("response",),
    "prompt": (),
    "pair": ("chosen", "rejected"),
    "suite": (),
}
"""What a row of each kind must hold beside its prompt."""


@dataclass(frozen=True)
class Expect:
    """kind: not_null, unique, in_set, between. arguments: of that kind."""

    kind: str
    column: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Own:
    """An expectation that a recipe names: Great Expectations' own name and arguments. why: for whoever reads that it failed."""

    kind: str
    columns: tuple[str, ...]
    arguments: Mapping[str, Any]
    why: str = ""


@dataclass(frozen=True)
class Table:
    """min_rows: the floor, at least 1. columns: name → values, all of one length; each is expected to hold no null, except where `own` is
    all that is expected."""

    name: str
    columns: Mapping[str, Sequence[Any]]
    min_rows: int
    expected: tuple[Expect, ...] = ()
    own: tuple[Own, ...] = ()

    @property
    def rows(self) -> int:
        return max((len(values) for values in self.columns.values()), default=0)


def unique(column: str) -> Expect:
    return Expect("unique", column, {})


def in_set(column: str, allowed: Sequence[Any]) -> Expect:
    return Expect("in_set", column, {"value_set": list(allowed)})


def between(column: str, least: float | None, most: float | None) -> Expect:
    return Expect("between", column, {"min_value": least, "max_value": most})


@dataclass(frozen=True)
class SourceFacts:
    """How the reading of one source went. error: why it could not be read as a whole."""

    name: str
    uri: str
    rows: int
    quarantined: int
    error: str | None = None

    @property
    def quarantined_share(self) -> float:
        total = self.rows + self.quarantined
        return self.quarantined / total if total else 0.0


def sources_table(facts: Sequence[SourceFacts], max_quarantine_share: float) -> Table:
    """Every source was read, held rows, and few of them were set aside."""
    columns: dict[str, list[Any]] = {
        "source": [fact.name for fact in facts],
        "file": [fact.uri for fact in facts],
        "read": ["yes" if fact.error is None else fact.error for fact in facts],
        "rows": [fact.rows for fact in facts],
        "quarantined": [fact.quarantined for fact in facts],
        "quarantined_share": [fact.quarantined_share for fact in facts],
    }
    expected = (in_set("read", ["yes"]), between("rows", 1, None), between("quarantined_share", 0, max_quarantine_share))
    return Table("sources", columns, 1, expected)


def import_table(name: str, kind: str, drafts: Sequence[Draft], licences: Sequence[str], min_rows: int) -> Table:
    """Rows as they were read and normalised, before anything was dropped."""
    columns: dict[str, list[Any]] = {
        # One line can give several rows, so a row that brought no id is named by line and place.
        "row_id": [draft.row_id if draft.id_given else f"{draft.source}:{draft.line}#{i}" for i, draft in enumerate(drafts)],
        "prompt": [_text(draft.prompt_text) for draft in drafts],
        "source": [_text(draft.source) for draft in drafts],
        "licence": [_text(draft.licence) for draft in drafts],
        "usage_basis": [_text(draft.usage_basis) for draft in drafts],
    }
    for column in ANSWER_COLUMNS[kind]:
        columns[column] = [_answer(draft, column) for draft in drafts]
    return Table(name, columns, max(min_rows, 1), (unique("row_id"), in_set("licence", licences)))


def _text(value: str) -> str | None:
    return value if value.strip() else None


def _answer(draft: Draft, column: str) -> str | None:
    if column == "response":
        return draft.response[-1].content or (draft.response[-1].tool_calls and "tool calls") or None if draft.response else None
    side = draft.chosen if column == "chosen" else draft.rejected
    return None if side is None else side.content or (side.tool_calls and "tool calls") or None


def dataset_table(name: str, rows: Sequence[tuple[str, Row]], licences: Sequence[str], min_rows: int) -> Table:
    """Rows as they are stored: (side, row)."""
    prompts = [row.record.get("prompt", row.record) for _, row in rows]
    columns: dict[str, list[Any]] = {
        "id": [row.id for _, row in rows],
        "side": [side for side, _ in rows],
        "use": [row.use for _, row in rows],
        "split_group": [row.split_group for _, row in rows],
        "prompt_id": [prompt.get("prompt_id") for prompt in prompts],
        "pii": [prompt.get("pii") for prompt in prompts],
        "pii_detector": [prompt.get("pii_detector") or None for prompt in prompts],
        "licence": [row.record.get("licence", prompt.get("licence")) for (_, row), prompt in zip(rows, prompts, strict=True)],
    }
    expected = (
        unique("id"),
        in_set("side", SIDES),
        in_set("use", [*USES, EVALUATION]),
        in_set("pii", ["none", "masked"]),
        in_set("licence", licences),
    )
    return Table(name, columns, max(min_rows, 1), expected)
