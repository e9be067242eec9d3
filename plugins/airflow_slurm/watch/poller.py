"""One loop for each cluster that looks at all jobs at once, however many wait.

At most one ``squeue`` an interval, and one ``sacct`` in an interval in which a watched job left the queue or looks ended,
also over loops that follow one another in a process. Trouble never ends the loop: it is a snapshot that says so, after
which the next look waits longer; the wait falls back to the interval after one whole good look. See :mod:`.pace`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from airflow_slurm.errors import AccountingDisabled, SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote.client import IDS_A_COMMAND, SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, Controller, QueueRow
from airflow_slurm.truth.arrays import by_id, main_id, task_id
from airflow_slurm.truth.reconcile import Observation, wants_accounting
from airflow_slurm.watch.pace import Pace

log = structlog.get_logger(__name__)

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
    :ivar accounting_asked: whether it was, in this look.
    """

    at: float
    asked: frozenset[str]
    queue: Mapping[str, QueueRow] | None = None
    accounting: Mapping[str, Sequence[AccountingRow]] | None = field(default_factory=dict)
    accounting_kept: bool = True
    trouble: str = ""
    doubles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    accounting_asked: bool = False

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
    seekers: set[object] = field(default_factory=set)
    client: SlurmClient | None = None
    last_look: float | None = None
    _said: dict[Hashable, asyncio.Future[Any]] = field(default_factory=dict)
    _said_in: float | None = None

    async def controller(self, client: SlurmClient, cluster: str | None) -> Controller:
        """What the controller says of itself: asked once in a look, however many jobs it may have lost.

        :raises SlurmError: if it does not say.
        """
        found: Controller = await self._once(("controller", cluster), lambda: client.controller(cluster))
        return found

    async def node_reasons(self, client: SlurmClient, nodes: str, cluster: str | None) -> list[str]:
        """Why these nodes are down or drained: asked once in a look, however many jobs had them.

        :raises SlurmError: if the controller does not say.
        """
        found: list[str] = await self._once(("nodes", cluster, nodes), lambda: client.node_reasons(nodes, cluster))
        return found

    async def _once(self, question: Hashable, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self._said_in != self.last_look or self.last_look is None:
            self._said, self._said_in = {}, self.last_look
        if (asking := self._said.get(question)) is None:
            asking = self._said[question] = asyncio.ensure_future(ask())
        # One trigger may be cancelled while others wait for the same answer.
        return await asyncio.shield(asking)

    def look_in_s(self, interval_s: float) -> float:
        """Seconds until a new loop may look: triggers come and go, and each first one starts a loop."""
        return 0.0 if self.last_look is None else max(0.0, self.last_look + interval_s - time.monotonic())

    @property
    def wanted(self) -> bool:
        """Whether anybody waits for a look: for a job, or to find the one that it will wait for."""
        return bool(self.jobs or self.seekers)

    @contextmanager
    def seeking(self) -> Iterator[None]:
        """Looks are wanted while the block runs, though it is not known yet at which job."""
        token = object()
        self.seekers.add(token)
        try:
            yield
        finally:
            self.seekers.discard(token)

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


async def take_snapshot(
    client: SlurmClient, jobs: Sequence[Watched], accounting_kept: bool = True, ask_accounting: bool = True
) -> Snapshot:
    """Look once. Never raises for a cluster in trouble.

    :param ask_accounting: False while its database is left alone for some looks: then it counts as not answering.
    """
    asked = frozenset(job.job_id for job in jobs)
    try:
        rows = await _queue(client, jobs)
    except SlurmError as error:
        return Snapshot(time.time(), asked, trouble=str(error))
    present, doubtful = _present(by_id(rows), jobs)
    doubles = _doubles(rows, jobs)
    if not doubtful or not accounting_kept:
        return Snapshot(time.time(), asked, present, {}, accounting_kept, doubles=doubles)
    if not ask_accounting:
        return Snapshot(time.time(), asked, present, None, trouble="it did not answer, and is left alone for a while", doubles=doubles)
    # What does not fit into one command is asked with the next look, which is told by not being in ``asked``.
    asked -= frozenset(doubtful[IDS_A_COMMAND:])
    oldest = min(job.since for job in jobs) - CLOCK_MARGIN_S
    try:
        recorded = await client.accounting(
            oldest, ids=doubtful[:IDS_A_COMMAND], all_users=any(job.foreign for job in jobs), steps=any(job.asks_run for job in jobs)
        )
    except AccountingDisabled as error:
        return Snapshot(time.time(), asked, present, {}, False, str(error), doubles, True)
    except SlurmError as error:
        return Snapshot(time.time(), asked, present, None, True, str(error), doubles, True)
    return Snapshot(time.time(), asked, present, by_id(recorded), doubles=doubles, accounting_asked=True)


async def _queue(client: SlurmClient, jobs: Sequence[Watched]) -> list[QueueRow]:
    """The watched jobs, and with them all of this user's if every watched one is; by one command, but for thousands of others'."""
    foreign = {job.job_id for job in jobs if job.foreign}
    holds = any(job.asks_hold for job in jobs)
    if not foreign:
        return await client.queue(holds=holds)
    everyone = foreign | {job.job_id for job in jobs}
    if len(everyone) <= IDS_A_COMMAND:
        return await client.queue_of_all(ids=sorted(everyone, key=_by_number), holds=holds)
    return await client.queue(holds=holds) + await client.queue_of_all(ids=sorted(foreign, key=_by_number))


def _present(queue: Mapping[str, Sequence[QueueRow]], jobs: Sequence[Watched]) -> tuple[dict[str, QueueRow], list[str]]:
    """The rows of the watched jobs, and the ids that accounting has to be asked about, oldest first."""
    present: dict[str, QueueRow] = {}
    doubtful: set[str] = set()
    for job in jobs:
        for one_id in job.ids:
            row = next((row for row in queue.get(one_id, ()) if job.fits(row)), None)
            if row is not None:
                present[one_id] = row
            if wants_accounting(row) or job.asks_run:
                doubtful.add(job.job_id)
    return present, sorted(doubtful, key=_by_number)


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


async def snapshots(slurm_conn_id: str, hub: Hub) -> AsyncGenerator[Snapshot, None]:
    """Look for ever. Ends only by being closed."""
    hook = SlurmHook(slurm_conn_id)
    pace = Pace()
    accounting_kept = True
    while True:
        try:
            pace.interval_s = (await hook.aconfig()).poll_interval_s
            async with hook.get_client() as client:
                hub.client = client
                await asyncio.sleep(hub.look_in_s(pace.interval_s))
                while True:
                    # Airflow starts the loop before its first trigger has said what it waits for.
                    while not hub.wanted:  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
                    hub.last_look = began = time.monotonic()
                    client.allow_connects(pace.connects)
                    snapshot = await take_snapshot(client, list(hub.jobs.values()), accounting_kept, pace.asks_accounting)
                    pause_s = _noted(pace, snapshot, time.monotonic() - began)
                    accounting_kept = snapshot.accounting_kept
                    _report(slurm_conn_id, snapshot, pace.failures)
                    yield snapshot
                    await asyncio.sleep(pause_s)
        except Exception as error:
            # The connection itself can't be read or used as it is written: somebody may be correcting it. And whatever else
            # it is: if this loop ended, Airflow would fail every task that waits here, with its job running on.
            pace.note(False, None)
            if not isinstance(error, SlurmError):
                log.exception("a look at the cluster failed", conn_id=slurm_conn_id)
            yield Snapshot(time.time(), frozenset(job.job_id for job in hub.jobs.values()), trouble=str(error))
            await asyncio.sleep(pace.pause_s(0.0))
        finally:
            hub.client = None


def _noted(pace: Pace, snapshot: Snapshot, took_s: float) -> float:
    pace.note(snapshot.queue is not None, snapshot.accounting is not None if snapshot.accounting_asked else None)
    return pace.pause_s(took_s)


def _report(slurm_conn_id: str, snapshot: Snapshot, failures: int) -> None:
    if snapshot.trouble and (failures in (1, 5, 20) or snapshot.queue is not None):
        log.warning("cluster in trouble", conn_id=slurm_conn_id, failures=failures, error=snapshot.trouble)


def _by_number(job_id: str) -> tuple[int, str]:
    head = job_id.partition("_")[0].partition("+")[0]
    return (int(head) if head.isdigit() else 0, job_id)
