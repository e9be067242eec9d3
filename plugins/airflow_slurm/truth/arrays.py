"""Job arrays: many tasks under one id. Which row is about which task, how tasks are listed, and what all of them amount to. Pure.

Slurm names a task ``5501_3``; each has a raw id of its own (``5508``), and the last one gets the array's. Tasks that wait
share one row, ``5501_[7-9,12%2]`` (``%2``: at most two at once), as do tasks that were cancelled while they waited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeVar

from airflow_slurm.errors import InvalidSpec
from airflow_slurm.slurm.parse import AccountingRow, QueueRow, array_tasks
from airflow_slurm.slurm.states import Phase, parse_state
from airflow_slurm.truth.reconcile import FORGOTTEN, Observation, still_waits
from airflow_slurm.truth.view import JobView

Row = TypeVar("Row", QueueRow, AccountingRow, QueueRow | AccountingRow)

#: In a list of tasks by state: those of which nothing is known yet.
NOT_SEEN = "not seen yet"
#: How much the phase of one row says about a whole array: while one task runs, the array runs.
_WEIGHT = (Phase.RUNNING, Phase.WAITING, Phase.ENDING, Phase.UNKNOWN, Phase.LOST, Phase.FAILED, Phase.SUCCEEDED)


def expression(indices: Collection[int], max_parallel: int | None = None) -> str:
    """Task numbers as ``sbatch --array`` takes them: 0, 1, 2 and 9 are ``0-2,9``, and with a limit ``0-2,9%4``.

    :raises InvalidSpec: for none at all, a negative one, or a limit below 1.
    """
    ordered = sorted(set(indices))
    if not ordered or ordered[0] < 0:
        raise InvalidSpec("array", f"{list(indices)[:20]} are no task numbers; give whole numbers of at least 0")
    if max_parallel is not None and max_parallel < 1:
        raise InvalidSpec("max_parallel", f"{max_parallel} is not a whole number of at least 1")
    starts = [ordered[0], *(after for before, after in pairwise(ordered) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ordered) if after != before + 1), ordered[-1]]
    ranges = [str(low) if low == high else f"{low}-{high}" for low, high in zip(starts, ends, strict=True)]
    return ",".join(ranges) + (f"%{max_parallel}" if max_parallel is not None else "")


def indices_of(array: str) -> list[int]:
    """The task numbers of ``0-2,9%4``, ascending.

    :raises UnreadableAnswer: for anything that is no such list.
    """
    return sorted(set(array_tasks(f"0_[{array}]")))


def task_id(job_id: str, index: int) -> str:
    """The id under which Slurm knows one task."""
    return f"{job_id}_{index}"


def main_id(row: QueueRow | AccountingRow) -> str:
    """The id of the whole: an array's, a het job's first component's, or the job's own."""
    head = row.array_id.partition("_")[0].partition("+")[0]
    return head if head.isdigit() else row.job_id


def array_of(row: QueueRow | AccountingRow) -> str | None:
    """The task numbers that a row of an array stands for, such as ``7-9,12%2``; None for another job's."""
    return row.array_id.partition("_")[2].strip("[]") or None


def by_id(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """All rows by every id their job can be asked for: ``5508`` and ``5501_3`` are the same task.

    A row that stands for many tasks counts for those that have no row of their own.
    """
    own: dict[str, list[Row]] = {}
    gathered: dict[str, list[Row]] = {}
    for row in rows:
        base, _, tail = row.array_id.partition("_")
        if tail.startswith("["):
            for index in array_tasks(row.array_id):
                gathered.setdefault(task_id(base, index), []).append(row)
        else:
            for name in {row.job_id, row.array_id} if tail else {row.job_id}:
                own.setdefault(name, []).append(row)
    return gathered | own


def whole_jobs(rows: Iterable[Row]) -> list[Row]:
    """One row a job: of an array's the one that says most about the whole, under the array's id."""
    chosen: dict[str, Row] = {}
    for row in rows:
        whole = main_id(row)
        if whole not in chosen or _weight(row) < _weight(chosen[whole]):
            chosen[whole] = row
    return [row if row.job_id == whole else replace(row, job_id=whole) for whole, row in chosen.items()]


def _weight(row: QueueRow | AccountingRow) -> tuple[int, bool]:
    return _WEIGHT.index(row.state.info.phase), not (isinstance(row, QueueRow) and row.held_by_us)


def removed_before_start(view: JobView, last: Iterable[AccountingRow]) -> bool:
    """Whether a task that nobody knows was taken out of its array before it started.

    ``scancel 5501_4`` of one waiting task among several leaves no trace of it in 22.05: it is struck from the list, and has
    no record of its own. A task that starts gets one; the last to start gets the array's own. So when that one has ended,
    for as long as a record may come late (the view is *unknown*), a task without a record has not run and never will.

    :param last: accounting's rows of the task that has the array's own id.
    """
    rows = list(last)
    never_seen = view.phase is Phase.UNKNOWN and view.start_time is None and not view.node_list
    return never_seen and bool(rows) and all(row.state.info.phase.ended for row in rows)


def forgotten_whole(open_tasks: Iterable[Observation], last: Iterable[AccountingRow]) -> bool:
    """Whether the controller may have lost an array: it knows none of the tasks that have not ended, and accounting no run (since Slurm put it back)
    of the one that has the array's own id. As long as it knows one, a task that is missing was removed by somebody.

    :param last: accounting's rows of the task that has the array's own id.
    """
    return all(seen.queue_read and seen.queue is None for seen in open_tasks) and still_waits(list(last))


def never_ran(view: JobView, tasks: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether nothing is known to have run of a job, or of an array with these tasks: the controller lost it, or each of them, before that."""
    return view.cause == FORGOTTEN and all(task.get("cause") == FORGOTTEN for task in tasks.values())


def as_removed(view: JobView) -> JobView:
    """The same task, ended as cancelled."""
    ended = replace(view, phase=Phase.FAILED, state="CANCELLED", reason="", cause="removed_from_array", retryable=False)
    return replace(ended, missing_since=None, unknown_since=None, estimated_start=None)


def summarise(job_id: str, cluster: str | None, views: Mapping[int, JobView]) -> JobView:
    """One view of a whole array: it has ended when all its tasks have, and succeeded when all have.

    Its nodes are those of the tasks that run, of an array that has ended of all its tasks; their number is the tasks' added up, as several may have
    shared one.
    """
    phases = Counter(view.phase for view in views.values())
    phase = next((phase for phase in _WEIGHT if phases[phase]), Phase.WAITING)
    shown = next(view for view in views.values() if view.phase is phase)
    placed = [view for view in views.values() if phase.ended or view.phase is Phase.RUNNING]
    return replace(
        JobView(job_id, cluster),
        phase=phase,
        state=shown.state,
        reason=shown.reason,
        cause=shown.cause,
        retryable=any(view.retryable for view in views.values() if view.phase in (Phase.LOST, Phase.FAILED)),
        exit_code=shown.exit_code,
        signal=shown.signal,
        nodes=sum(view.nodes for view in placed),
        node_list=",".join(dict.fromkeys(view.node_list for view in placed if view.node_list)),
        restarts=max(view.restarts for view in views.values()),
        submit_time=_least(view.submit_time for view in views.values()),
        start_time=_least(view.start_time for view in views.values()),
        estimated_start=_least(view.estimated_start for view in views.values()) if phase is Phase.WAITING else None,
        end_time=max((view.end_time for view in views.values() if view.end_time is not None), default=None) if phase.ended else None,
        elapsed_s=sum(view.elapsed_s or 0.0 for view in views.values()) if phase.ended else None,
        observed_at=max((view.observed_at for view in views.values() if view.observed_at is not None), default=None),
        unknown_since=_least(view.unknown_since for view in views.values()),
        tasks=tasks_by_state(views),
    )


def tasks_by_state(views: Mapping[int, JobView]) -> dict[str, str]:
    """Which tasks are in which state: ``{"COMPLETED": "0-3", "RUNNING": "4,6"}``."""
    groups: dict[str, list[int]] = {}
    for index, view in views.items():
        groups.setdefault(view.state if view.phase is not Phase.UNKNOWN else "UNKNOWN", []).append(index)
    return {state or NOT_SEEN: expression(indices) for state, indices in sorted(groups.items())}


def ran_by(tasks: Mapping[str, str]) -> set[int]:
    """The tasks of :func:`tasks_by_state` that may have run: all but those that were seen to wait, or not at all."""
    waiting = (state for state in tasks if state == NOT_SEEN or parse_state(state).info.phase is Phase.WAITING)
    return {index for state in set(tasks) - set(waiting) for index in indices_of(tasks[state])}


def compact(view: JobView) -> dict[str, Any]:
    """A view as JSON without what has its default: an event about thousands of tasks stays small."""
    defaults = {f.name: f.default for f in fields(JobView)}
    value = view.to_json()
    kept = {name: item for name, item in value.items() if item not in ((), [], {}) and item != defaults.get(name)}
    return kept | {"job_id": view.job_id, "phase": view.phase.value}


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
