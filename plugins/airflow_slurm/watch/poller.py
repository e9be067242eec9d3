"""One loop for each cluster that looks at all jobs at once, however many wait.

At most one ``squeue`` an interval, and one ``sacct`` in an interval in which a watched job left the queue or looks ended,
also over loops that follow one another in a process; after a look that looked for names besides, it waits for two. Trouble never ends the loop: it is a snapshot that says so, after
which the next look waits longer; the wait falls back to the interval after one whole good look. See :mod:`.pace`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from airflow_slurm.errors import SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote.client import NAMES_A_COMMAND, SlurmClient
from airflow_slurm.slurm.parse import Controller
from airflow_slurm.watch.pace import Pace
from airflow_slurm.watch.seeking import Sought
from airflow_slurm.watch.snapshot import Snapshot, Watched, take_snapshot

__all__ = ["Hub", "Snapshot", "Watched", "hub_of", "snapshots", "take_snapshot"]

log = structlog.get_logger(__name__)

#: With every so many looks names are looked for, where there is anything else to look at.
NAMES_EVERY = 5


@dataclass
class Hub:
    """What the waiting triggers of one process and cluster share: the jobs they watch, and the loop's client.

    Airflow gives the loop only the first trigger's arguments, so the jobs are registered here.
    """

    jobs: dict[object, Watched] = field(default_factory=dict)
    seekers: dict[object, Sought] = field(default_factory=dict)
    client: SlurmClient | None = None
    last_look: float | None = None
    _said: dict[Hashable, asyncio.Future[Any]] = field(default_factory=dict)
    _said_in: float | None = None
    _looked_for: set[object] = field(default_factory=set)
    _without_names: int = 0

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

    def sought(self) -> list[Sought]:
        """What this look looks for. Names cost a command of their own: where there are jobs or ids too, a new one is looked for at once, and then
        all of them with every fifth look."""
        ids = [each for each in self.seekers.values() if not each.job_name]
        named = [token for token, each in self.seekers.items() if each.job_name]
        self._without_names += 1
        fresh = [token for token in named if token not in self._looked_for]
        if not fresh and (ids or self.jobs) and self._without_names < NAMES_EVERY:
            return ids
        chosen = (fresh or named)[:NAMES_A_COMMAND]
        self._without_names = 0
        self._looked_for = set(chosen) | (self._looked_for.intersection(named) if fresh else set())
        return [*ids, *dict.fromkeys(self.seekers[token] for token in chosen)]

    @contextmanager
    def seeking(self, job: Sought) -> Iterator[Callable[[], None]]:
        """Look for a job while the block runs, or until what it gives is called: it has been found."""
        token = object()
        self.seekers[token] = job

        def stop() -> None:
            self.seekers.pop(token, None)

        try:
            yield stop
        finally:
            stop()

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
                    jobs = list(hub.jobs.values())
                    snapshot = await take_snapshot(client, jobs, accounting_kept, pace.asks_accounting, hub.sought())
                    pause_s = _noted(pace, snapshot, time.monotonic() - began) * snapshot.rounds
                    hub.last_look = began + pace.interval_s * (snapshot.rounds - 1)
                    accounting_kept = snapshot.accounting_kept
                    _report(slurm_conn_id, snapshot, pace.failures)
                    yield snapshot
                    await asyncio.sleep(pause_s)
        except Exception as error:
            # The connection itself can't be read or used as it is written: somebody may be correcting it. And whatever else
            # it is: if this loop ended, Airflow would fail every task that waits here, with its job running on.
            pace.note(False, None)
            hub.client = None  # closed by now: whoever takes in this look asks nothing more over it
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
