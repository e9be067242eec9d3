"""Heterogeneous jobs: several components under one id, of which the first runs the program. Pure.

Slurm names them ``36+0`` and ``36+1``; each has an id (36, 37) and a state of its own. When the program ends, the others are ended
well. One that was cancelled, ran into its own time limit or lost its node leaves the first as it is: if the program goes on to its
end without it, Slurm calls the first COMPLETED all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase, parse_state

Row = TypeVar("Row", QueueRow, AccountingRow)


def as_wholes(rows: Iterable[Row], *, keep: bool = False) -> list[Row]:
    """The rows with a heterogeneous job's first one speaking for all of it: it has succeeded when all its components have.

    A first component that completed while another has not ended is still completing; if another ended badly, that is its end. One that the
    queue shows as completed without any other is left out: the controller forgets each by itself, and accounting knows how they ended.

    :param keep: leave the rows of further components in, as they are.
    """
    given = list(rows)
    others: dict[str, list[Row]] = {}
    for row in given:
        head, _, offset = row.array_id.partition("+")
        if offset not in ("", "0"):
            others.setdefault(head, []).append(row)
    given = [row for row in given if not _is_alone(row, others)]
    if not others:
        return given
    spoken = [_for_all(row, others.get(row.array_id.partition("+")[0], ())) if row.array_id.endswith("+0") else row for row in given]
    return [row for row in spoken if keep or "+" not in row.array_id or row.array_id.endswith("+0")]


def _is_alone(row: QueueRow | AccountingRow, others: Mapping[str, object]) -> bool:
    completed = isinstance(row, QueueRow) and row.state.info.phase is Phase.SUCCEEDED
    return completed and row.array_id.endswith("+0") and row.array_id.partition("+")[0] not in others


def _for_all(first: Row, others: Sequence[Row]) -> Row:
    if first.state.info.phase is not Phase.SUCCEEDED:
        return first
    newest = {row.array_id: row for row in others if not _earlier(row, first)}
    if any(not row.state.info.phase.ended for row in newest.values()):
        return replace(first, state=parse_state("COMPLETING"))
    bad = next((row for row in newest.values() if row.state.info.phase is not Phase.SUCCEEDED), None)
    if bad is None:
        return first
    told: dict[str, Any] = {"state": bad.state, "exit_code": bad.exit_code, "signal": bad.signal, "node_list": bad.node_list}
    if isinstance(first, QueueRow):
        told["reason"] = f"component {bad.array_id}"
    return replace(first, **told)


def _earlier(row: Row, first: Row) -> bool:
    """Whether it is of a run before the last requeue."""
    return row.end_time is not None and first.start_time is not None and row.state.info.phase.ended and row.end_time < first.start_time
