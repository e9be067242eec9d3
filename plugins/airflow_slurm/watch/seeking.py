"""Which job a sensor means, out of what one look gave. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_slurm.slurm.parse import AccountingRow, QueueRow, array_tasks
from airflow_slurm.truth.arrays import expression, main_id, whole_jobs

Row = QueueRow | AccountingRow


@dataclass(frozen=True)
class Sought:
    """A job that somebody looks for, by its id or its name, of any user. ``since``: it is not older; seconds since the epoch."""

    job_id: str | None
    job_name: str | None
    since: float

    @property
    def base(self) -> str | None:
        """The id that is asked for: of one task of an array the whole array's."""
        return self.job_id.partition("_")[0] if self.job_id else None

    def among(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that may be about it."""
        return [row for row in rows if (self.base in (row.job_id, main_id(row)) if self.job_id else row.name == self.job_name)]


@dataclass(frozen=True)
class Found:
    """A job that was looked for. ``array``: its task numbers, if it is an array."""

    job_id: str
    job_name: str
    array: str | None = None
    submitted_at: float | None = None


def choose(rows: Sequence[Row], job_id: str | None, job_name: str | None) -> Found | None:
    """The job of that id; of that name the newest that has not ended, else the newest."""
    if job_id is not None and "_" in job_id:
        tasks = [row for row in rows if job_id in (row.array_id, *(f"{main_id(row)}_{i}" for i in array_tasks(row.array_id)))]
        return Found(job_id, tasks[0].name, None, tasks[0].submit_time) if tasks else None
    wholes = [row for row in whole_jobs(rows) if row.job_id == job_id or (job_id is None and row.name == job_name)]
    if not wholes:
        own = [row for row in rows if row.job_id == job_id]
        return Found(own[-1].job_id, own[-1].name, None, own[-1].submit_time) if own else None
    best = max(wholes, key=lambda row: (not row.state.info.phase.ended, int(row.job_id)))
    tasks_of = {index for row in rows if main_id(row) == best.job_id for index in array_tasks(row.array_id)}
    return Found(best.job_id, best.name, expression(tasks_of) if tasks_of else None, best.submit_time)


def in_queue(sought: Sought, queue: Sequence[Row]) -> Found | None:
    """The job, if the queue alone says which it is: tasks of an array may have left it, and an ended job of that name need not be the newest."""
    rows = sought.among(queue)
    found = choose(rows, sought.job_id, sought.job_name)
    sure = found is not None and found.array is None
    return found if sure and not (sought.job_id is None and all(row.state.info.phase.ended for row in rows)) else None
