"""One loop for each cluster that looks at all jobs at once, however many wait.

One ``squeue`` an interval, and one ``sacct`` in an interval in which a watched job left the queue or looks ended.
Trouble never ends the loop: it is a snapshot that says so, after which the next look waits longer; the wait falls back
to the interval after one whole good look.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from airflow_slurm.arrays import by_id, task_id
from airflow_slurm.client import SlurmClient
from airflow_slurm.errors import AccountingDisabled, SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.parse import AccountingRow, QueueRow
from airflow_slurm.reconcile import Observation, wants_accounting

log = structlog.get_logger(__name__)

#: The longest wait between two looks at a cluster in trouble, in seconds.
LONGEST_PAUSE_S = 600.0
#: Margin for clocks that differ, in seconds, below the oldest watched job's submission.
CLOCK_MARGIN_S = 86400.0


@dataclass(frozen=True)
class Watched:
    """A job somebody waits for.

    :ivar job_name: a row of another name is another job's; empty: whatever its name.
    :ivar since: when it was submitted, in seconds since the epoch.
    :ivar tasks: of an array: the numbers of the tasks that are waited for.
    :ivar foreign: it may be another user's.
    """

    job_id: str
    job_name: str
    since: float
    tasks: tuple[int, ...] = ()
    foreign: bool = False

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
    """

    at: float
    asked: frozenset[str]
    queue: Mapping[str, QueueRow] | None = None
    accounting: Mapping[str, Sequence[AccountingRow]] | None = field(default_factory=dict)
    accounting_kept: bool = True
    trouble: str = ""

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


@dataclass
class Hub:
    """What the waiting triggers of one process and cluster share: the jobs they watch, and the loop's client.

    Airflow gives the loop only the first trigger's arguments, so the jobs are registered here.
    """

    jobs: dict[object, Watched] = field(default_factory=dict)
    client: SlurmClient | None = None

    @contextmanager
    def watching(self, job: Watched) -> Iterator[Callable[[Watched], None]]:
        """Watch a job while the block runs; what it gives changes what is watched, as tasks of an array end."""
        token = object()

        def change(to: Watched) -> None:
            self.jobs[token] = to

        change(job)
        try:
            yield change
        finally:
            self.jobs.pop(token, None)


_HUBS: dict[Hashable, Hub] = {}


def hub_of(key: Hashable) -> Hub:
    """The hub of a cluster in this process."""
    return _HUBS.setdefault(key, Hub())


async def take_snapshot(client: SlurmClient, jobs: Sequence[Watched], accounting_kept: bool = True) -> Snapshot:
    """Look once. Never raises for a cluster in trouble."""
    asked = frozenset(job.job_id for job in jobs)
    foreign = sorted({job.job_id for job in jobs if job.foreign}, key=_by_number)
    try:
        queue = by_id(await client.queue() + (await client.queue_of_all(ids=foreign) if foreign else []))
    except SlurmError as error:
        return Snapshot(time.time(), asked, trouble=str(error))
    present: dict[str, QueueRow] = {}
    doubtful_ids: set[str] = set()
    for job in jobs:
        for one_id in job.ids:
            row = next((row for row in queue.get(one_id, ()) if job.fits(row)), None)
            if row is not None:
                present[one_id] = row
            if wants_accounting(row):
                doubtful_ids.add(job.job_id)
    doubtful = sorted(doubtful_ids, key=_by_number)
    if not doubtful or not accounting_kept:
        return Snapshot(time.time(), asked, present, {}, accounting_kept)
    oldest = min(job.since for job in jobs) - CLOCK_MARGIN_S
    try:
        rows = await client.accounting(oldest, ids=doubtful, all_users=bool(foreign))
    except AccountingDisabled as error:
        return Snapshot(time.time(), asked, present, {}, False, str(error))
    except SlurmError as error:
        return Snapshot(time.time(), asked, present, None, True, str(error))
    return Snapshot(time.time(), asked, present, by_id(rows))


async def snapshots(slurm_conn_id: str, hub: Hub) -> AsyncGenerator[Snapshot, None]:
    """Look for ever. Ends only by being closed."""
    hook = SlurmHook(slurm_conn_id)
    failures = 0
    interval_s = 5.0
    accounting_kept = True
    while True:
        try:
            config = await hook.aconfig()
            interval_s = config.poll_interval_s
            async with hook.get_client() as client:
                hub.client = client
                while True:
                    snapshot = await take_snapshot(client, list(hub.jobs.values()), accounting_kept)
                    accounting_kept = snapshot.accounting_kept
                    failures = 0 if snapshot.queue is not None else failures + 1
                    _report(slurm_conn_id, snapshot, failures)
                    yield snapshot
                    await asyncio.sleep(pause_s(interval_s, failures))
        except SlurmError as error:
            # The connection itself can't be read or used as it is written: an operator may be correcting it.
            failures += 1
            yield Snapshot(time.time(), frozenset(job.job_id for job in hub.jobs.values()), trouble=str(error))
            await asyncio.sleep(pause_s(interval_s, failures))
        finally:
            hub.client = None


def pause_s(interval_s: float, failures: int) -> float:
    """Seconds to the next look: the interval, doubled with each failure in a row, a tenth more or less so that clusters spread."""
    pause = max(interval_s, min(interval_s * 2.0 ** min(failures, 10), LONGEST_PAUSE_S))
    return pause * random.uniform(0.95, 1.05)  # noqa: S311 - spreads load, guards nothing


def _report(slurm_conn_id: str, snapshot: Snapshot, failures: int) -> None:
    if snapshot.trouble and (failures in (1, 5, 20) or snapshot.queue is not None):
        log.warning("cluster in trouble", conn_id=slurm_conn_id, failures=failures, error=snapshot.trouble)


def _by_number(job_id: str) -> tuple[int, str]:
    head = job_id.partition("_")[0].partition("+")[0]
    return (int(head) if head.isdigit() else 0, job_id)
