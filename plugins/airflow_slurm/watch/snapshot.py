"""One look at a cluster: all jobs that are watched or sought, by one squeue, and one sacct if one of them left the queue or looks ended.

Names that are sought need a command of their own, as squeue takes ids *and* names for both at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_slurm.errors import AccountingDisabled, SlurmError
from airflow_slurm.remote.client import IDS_A_COMMAND, SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.truth.arrays import by_id, main_id, task_id
from airflow_slurm.truth.reconcile import Observation, wants_accounting
from airflow_slurm.watch.seeking import Found, Sought, choose, in_queue

#: Margin for clocks that differ, in seconds, below the oldest watched job's submission.
CLOCK_MARGIN_S = 86400.0


@dataclass(frozen=True)
class Watched:
    """A job somebody waits for.

    :ivar job_name: a row of another name is another job's; empty: whatever its name.
    :ivar since: when it was submitted, in seconds since the epoch.
    :ivar tasks: of an array: the numbers of the tasks that are waited for.
    :ivar foreign: it may be another user's.
    :ivar asks_hold: whether it is in the hold it was submitted with has to be told. :ivar asks_run: so has whether it ever ran.
    """

    job_id: str
    job_name: str
    since: float
    tasks: tuple[int, ...] = ()
    foreign: bool = False
    asks_hold: bool = False
    asks_run: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """Under which its rows are found: the job's own, or those of its tasks."""
        return tuple(task_id(self.job_id, index) for index in self.tasks) if self.tasks else (self.job_id,)

    def fits(self, row: QueueRow | AccountingRow) -> bool:
        """Whether a row of its id is its own."""
        return not self.job_name or row.name == self.job_name


@dataclass(frozen=True)
class Snapshot:
    """One look at a cluster.

    :ivar asked: ids of the jobs that were watched when it was taken; it says nothing about others.
    :ivar queue: None if the queue could not be read. :ivar accounting: None if accounting failed when it was asked.
    :ivar doubles: by name, held jobs beside a watched one: submissions that arrived when they had been given up.
    :ivar accounting_asked: whether it was, in this look. :ivar found: of jobs that were sought, those that it showed.
    :ivar rounds: how often it asked the queue; the next look waits so many intervals.
    """

    at: float
    asked: frozenset[str]
    queue: Mapping[str, QueueRow] | None = None
    accounting: Mapping[str, Sequence[AccountingRow]] | None = field(default_factory=dict)
    accounting_kept: bool = True
    trouble: str = ""
    doubles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    accounting_asked: bool = False
    found: Mapping[Sought, Found] = field(default_factory=dict)
    rounds: int = 1

    def of(self, job: Watched) -> Observation | None:
        """What it says about one job; None if that wasn't watched yet."""
        return self._about(job, job.job_id) if job.job_id in self.asked else None

    def of_tasks(self, job: Watched) -> dict[int, Observation] | None:
        """The same for each task of an array that is waited for."""
        if job.job_id not in self.asked:
            return None
        return {index: self._about(job, task_id(job.job_id, index)) for index in job.tasks}

    def _about(self, job: Watched, one_id: str) -> Observation:
        if self.queue is None:
            return Observation(self.at, queue_read=False, trouble=self.trouble)
        row = self.queue.get(one_id)
        if row is not None and not job.fits(row):
            row = None
        rows = None
        if self.accounting is not None:
            rows = [r for r in self.accounting.get(one_id, ()) if job.fits(r)]
        return Observation(self.at, row, True, rows, self.accounting_kept, self.trouble)


async def take_snapshot(
    client: SlurmClient, jobs: Sequence[Watched], accounting_kept: bool = True, ask_accounting: bool = True, sought: Sequence[Sought] = ()
) -> Snapshot:
    """Look once. Never raises for a cluster in trouble.

    :param ask_accounting: False while its database is left alone for some looks: then it counts as not answering.
    :param sought: jobs that nobody watches yet, to be found by id or name.
    """
    asked = frozenset(job.job_id for job in jobs)
    named = [each for each in sought if each.job_name]
    try:
        rows, questions = await _queue(client, jobs, [each.base for each in sought if each.base])
        of_names = await client.queue_of_all(name=sorted({each.job_name or "" for each in named})) if named else []
    except SlurmError as error:
        return Snapshot(time.time(), asked, trouble=str(error))
    present, doubtful = _present(by_id(rows), jobs)
    seen = {each: of_names if each.job_name else rows for each in sought}
    found = {each: job for each, queue in seen.items() if (job := in_queue(each, queue)) is not None}
    look = Snapshot(time.time(), asked, present, {}, accounting_kept, doubles=_doubles(rows, jobs), found=found)
    look = replace(look, rounds=max(1, questions + bool(named)))
    open_ = {each: queue for each, queue in seen.items() if each not in found}
    if not (doubtful or open_):
        return look
    if not accounting_kept:
        return replace(look, found=found | _chosen(open_, []))
    if not ask_accounting:
        return replace(look, accounting=None, trouble="it did not answer, and is left alone for a while")
    return await _with_accounting(client, look, jobs, doubtful, open_)


async def _with_accounting(
    client: SlurmClient, look: Snapshot, jobs: Sequence[Watched], doubtful: set[str], open_: Mapping[Sought, Sequence[QueueRow]]
) -> Snapshot:
    """The look with what accounting says: of ids by one command, and of names by another one."""
    ids = sorted(doubtful | {each.base for each in open_ if each.base}, key=_by_number)
    names = sorted({each.job_name for each in open_ if each.job_name})
    oldest = min([*(job.since for job in jobs), *(each.since for each in open_)]) - CLOCK_MARGIN_S
    # What does not fit into one command is asked with the next look, which is told by not being in ``asked``.
    look = replace(look, asked=look.asked - frozenset(ids[IDS_A_COMMAND:]), accounting_asked=True)
    foreign = any(job.foreign for job in jobs) or len(ids) > len(doubtful)
    try:
        recorded: list[AccountingRow] = []
        if ids:
            steps = any(job.asks_run for job in jobs)
            recorded = await client.accounting(oldest, ids=ids[:IDS_A_COMMAND], all_users=foreign, steps=steps)
        of_names = await client.accounting(oldest, name=names, all_users=True) if names else []
    except AccountingDisabled as error:
        return replace(look, accounting_kept=False, trouble=str(error), found={**look.found, **_chosen(open_, [])})
    except SlurmError as error:
        return replace(look, accounting=None, trouble=str(error))
    told = {each: queue for each, queue in open_.items() if each.base not in ids[IDS_A_COMMAND:]}
    return replace(look, accounting=by_id(recorded), found={**look.found, **_chosen(told, [*recorded, *of_names])})


def _chosen(open_: Mapping[Sought, Sequence[QueueRow]], recorded: Sequence[AccountingRow]) -> dict[Sought, Found]:
    """The jobs that queue and accounting together show."""
    rows = {each: each.among([*queue, *recorded]) for each, queue in open_.items()}
    return {each: job for each in open_ if (job := choose(rows[each], each.job_id, each.job_name)) is not None}


async def _queue(client: SlurmClient, jobs: Sequence[Watched], ids: Sequence[str]) -> tuple[list[QueueRow], int]:
    """The watched jobs and those of some ids, and with them all of this user's if none may be another's; and by how many commands: one, but for
    thousands of others'."""
    foreign = {job.job_id for job in jobs if job.foreign} | set(ids)
    holds = any(job.asks_hold for job in jobs)
    if not foreign:
        return (await client.queue(holds=holds), 1) if jobs else ([], 0)
    everyone = foreign | {job.job_id for job in jobs}
    if len(everyone) <= IDS_A_COMMAND:
        return await client.queue_of_all(ids=sorted(everyone, key=_by_number), holds=holds), 1
    return await client.queue(holds=holds) + await client.queue_of_all(ids=sorted(foreign, key=_by_number)), 2


def _present(queue: Mapping[str, Sequence[QueueRow]], jobs: Sequence[Watched]) -> tuple[dict[str, QueueRow], set[str]]:
    """The rows of the watched jobs, and the ids that accounting has to be asked about."""
    present: dict[str, QueueRow] = {}
    doubtful: set[str] = set()
    for job in jobs:
        for one_id in job.ids:
            row = next((row for row in queue.get(one_id, ()) if job.fits(row)), None)
            if row is not None:
                present[one_id] = row
            if wants_accounting(row) or job.asks_run:
                doubtful.add(job.job_id)
    return present, doubtful


def _doubles(rows: Sequence[QueueRow], jobs: Sequence[Watched]) -> dict[str, list[str]]:
    named: dict[str, set[str]] = {}
    for job in jobs:
        if job.job_name and not job.foreign:
            named.setdefault(job.job_name, set()).add(job.job_id)
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.held_by_us and row.name in named and not named[row.name] & {main_id(row), row.job_id}:
            found.setdefault(row.name, []).append(main_id(row))
    return found


def _by_number(job_id: str) -> tuple[int, str]:
    head = job_id.partition("_")[0].partition("+")[0]
    return (int(head) if head.isdigit() else 0, job_id)
