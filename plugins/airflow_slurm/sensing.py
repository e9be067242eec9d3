"""The trigger of the sensor: finds a job that others submitted, and then follows it as one of ours is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_slurm.errors import AccountingDisabled, SlurmError
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow, array_tasks
from airflow_slurm.triggers import ClusterTrigger
from airflow_slurm.truth.arrays import expression, main_id, whole_jobs
from airflow_slurm.watch.following import ArrayFollower, JobFollower, follower_of
from airflow_slurm.watch.poller import Snapshot, hub_of
from airflow_slurm.watch.waiting import Wait


@dataclass(frozen=True)
class Found:
    """A job that was looked for. ``array``: its task numbers, if it is an array."""

    job_id: str
    job_name: str
    array: str | None = None
    submitted_at: float | None = None


async def find(client: SlurmClient, job_id: str | None, job_name: str | None, since: float) -> Found | None:
    """A job of any user, from the queue and, if it isn't there, from accounting; None if neither shows it."""
    base = job_id.partition("_")[0] if job_id else None
    rows: list[QueueRow | AccountingRow] = [*await client.queue_of_all(ids=[base] if base else (), name=job_name)]
    found = choose(rows, job_id, job_name)
    # Tasks of an array may have left the queue already, and an ended job of that name need not be the newest.
    if found is not None and found.array is None and not (job_id is None and all(row.state.info.phase.ended for row in rows)):
        return found
    with suppress(AccountingDisabled):
        rows += await client.accounting(since, ids=[base] if base else (), name=job_name, all_users=True)
    return choose(rows, job_id, job_name)


def choose(rows: list[QueueRow | AccountingRow], job_id: str | None, job_name: str | None) -> Found | None:
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


class SlurmSensorTrigger(ClusterTrigger):
    """Waits until a job of anybody's has ended.

    Its event is ``{"status": "ended" | "unknown", "view": {...}}`` or ``{"status": "timeout", "seen": "…"}``.

    :param since: when the job can have been submitted at the earliest. :param deadline: when to give up. Seconds since the epoch.
    """

    def __init__(
        self,
        slurm_conn_id: str,
        job_id: str | None,
        job_name: str | None,
        *,
        since: float,
        deadline: float,
        max_unknown_s: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(slurm_conn_id, **kwargs)
        self.job_id = job_id
        self.job_name = job_name
        self.since = since
        self.deadline = deadline
        self.max_unknown_s = max_unknown_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See :class:`airflow.triggers.base.BaseTrigger`."""
        names = ("slurm_conn_id", "job_id", "job_name", "since", "deadline", "max_unknown_s")
        return "airflow_slurm.sensing.SlurmSensorTrigger", {name: getattr(self, name) for name in names}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Snapshot]) -> AsyncGenerator[TriggerEvent, None]:
        """Find the job, then follow it."""
        follower: JobFollower | ArrayFollower | None = None
        hub = hub_of(self.shared_stream_key())
        with ExitStack() as watching, hub.seeking():
            async for snapshot in shared_stream:
                if follower is None and (found := await self._find(hub.client)) is not None:
                    follower = follower_of(self._wait_for(found), hub, self.log)
                    watch = watching.enter_context(hub.watching(follower.watched))
                elif follower is not None:
                    event = await follower.look(snapshot)
                    watch(follower.watched)
                    if event is not None and event["status"] in ("ended", "unknown"):
                        yield TriggerEvent(event)
                        return
                if snapshot.at >= self.deadline:
                    yield TriggerEvent({"status": "timeout", "seen": follower.view.describe() if follower else ""})
                    return

    async def _find(self, client: SlurmClient | None) -> Found | None:
        if client is None:
            return None
        try:
            async with asyncio.timeout(60.0):
                found = await find(client, self.job_id, self.job_name, self.since)
        except (SlurmError, TimeoutError) as error:
            self.log.info("The job could not be looked for now: %s", error)
            return None
        if found is not None:
            self.log.info("Slurm: found job %s (%s)", found.job_id, found.job_name)
        return found

    def _wait_for(self, found: Found) -> Wait:
        """Nobody's receipt: nothing is kept, and nothing is ended."""
        since = min(self.since, found.submitted_at) if found.submitted_at is not None else self.since
        return Wait(
            key="", n=0, job_id=found.job_id, job_name=found.job_name, since=since, owner={}, receipts="", receipts_config={},
            submitted_at=found.submitted_at, follow_log=False, max_unknown_s=self.max_unknown_s, array=found.array, foreign=True,
        )  # fmt: skip
