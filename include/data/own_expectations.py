"""What a recipe expects of its data sets beside the built-in expectations: tables of the columns that it names, as stored."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from include.data.expectations import Own, Table
from include.domain.split import SIDES
from include.settings.expectations import Expectation
from include.transforms.datasets_io import DatasetInfo, Row, iter_rows

OF_LABELS = ("preferences", "reward_pairs")
"""The data sets that are made of labels, after the others."""
_ABSENT = object()
_Column = Callable[[str, Row], Any]


def own_expectations(given: Iterable[Expectation]) -> dict[str, tuple[Own, ...]]:
    """The recipe's expectations by data set, in their order."""
    found: dict[str, list[Own]] = {}
    for item in given:
        columns = item.columns or (str(item.column),)
        found.setdefault(item.dataset, []).append(Own(item.expect, columns, dict(item.arguments), item.why))
    return {name: tuple(own) for name, own in found.items()}


def own_tables(expected: Mapping[str, Sequence[Own]], built: Mapping[str, DatasetInfo]) -> list[Table]:
    """A table for each data set of which something is expected; one that was not built has no row, and so fails.

    Args:
        expected: `own_expectations`, without those of data sets that are made elsewhere.
    """
    return [own_table(name, own, built.get(name)) for name, own in sorted(expected.items())]


def own_table(name: str, own: Sequence[Own], info: DatasetInfo | None) -> Table:
    """The columns that are named, of every stored row. A column that no row has is left out: it can't be checked."""
    wanted = sorted({column for one in own for column in one.columns})
    rows = [(side, row) for side in SIDES for row in iter_rows(info.folder, side)] if info is not None else []
    columns = {column: [_COLUMNS[column](side, row) for side, row in rows] for column in wanted}
    there = {column: values for column, values in columns.items() if any(value is not _ABSENT for value in values)}
    kept = {column: [None if value is _ABSENT else value for value in values] for column, values in there.items()}
    return Table(f"{name}, expected by the recipe", {"row": [row.id for _, row in rows], **kept}, 1, own=tuple(own))


def _prompt(row: Row) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row.record.get("prompt", row.record)
    return found


def _said(row: Row, role: str) -> str | None:
    texts = [turn["content"] for turn in _prompt(row)["messages"] if turn["role"] == role]
    return "\n".join(texts) if texts else None


def _response(row: Row) -> Any:
    turns = row.record.get("response", _ABSENT)
    return turns if turns is _ABSENT else (turns[-1]["content"] or None)


def _answer(side: str) -> _Column:
    return lambda _, row: row.record[side]["response_text"] if side in row.record and "pair_id" in row.record else _ABSENT


def _origin(_: str, row: Row) -> Any:
    if "pair_id" not in row.record:
        return _ABSENT
    first, second = row.record["chosen"]["origin"], row.record["rejected"]["origin"]
    return first if first != "policy" else second


def _of_prompt(name: str) -> _Column:
    return lambda _, row: _prompt(row).get(name)


def _characters(_: str, row: Row) -> Any:
    text = _response(row)
    return text if text is _ABSENT else len(text or "")


_COLUMNS: Mapping[str, _Column] = {
    "prompt": lambda _, row: _said(row, "user"),
    "system": lambda _, row: _said(row, "system"),
    "response": lambda _, row: _response(row),
    "chosen": _answer("chosen"),
    "rejected": _answer("rejected"),
    "turns": lambda _, row: len(_prompt(row)["messages"]),
    "prompt_characters": lambda _, row: len(_said(row, "user") or ""),
    "response_characters": _characters,
    "weight": lambda _, row: row.record.get("weight", _ABSENT),
    "source": _of_prompt("source"),
    "licence": _of_prompt("licence"),
    "usage_basis": _of_prompt("usage_basis"),
    "language": _of_prompt("language"),
    "topic": _of_prompt("topic"),
    "safety_class": _of_prompt("safety_class"),
    "side": lambda side, _: side,
    "use": lambda _, row: row.use,
    "verifier": lambda _, row: (_prompt(row).get("reference") or {}).get("verifier"),
    "origin": _origin,
}
