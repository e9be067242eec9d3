"""The trigger of the sensor: finds a job that others submitted, and then follows it as one of ours is followed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_slurm.triggers import ClusterTrigger
from airflow_slurm.watch.following import ArrayFollower, JobFollower, follower_of
from airflow_slurm.watch.poller import Snapshot, hub_of
from airflow_slurm.watch.seeking import Found, Sought, choose
from airflow_slurm.watch.waiting import Wait

__all__ = ["Found", "SlurmSensorTrigger", "choose"]


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
        """Find the job, then follow it; both with the looks of the one loop."""
        follower: JobFollower | ArrayFollower | None = None
        hub, sought = hub_of(self.shared_stream_key()), Sought(self.job_id, self.job_name, self.since)
        with ExitStack() as watching, hub.seeking(sought) as stop_seeking:
            async for snapshot in shared_stream:
                if follower is None and (found := snapshot.found.get(sought)) is not None:
                    self.log.info("Slurm: found job %s (%s)", found.job_id, found.job_name)
                    follower = follower_of(self._wait_for(found), hub, self.log)
                    watch = watching.enter_context(hub.watching(follower.watched))
                    stop_seeking()
                elif follower is not None:
                    event = await follower.look(snapshot)
                    watch(follower.watched)
                    if event is not None and event["status"] in ("ended", "unknown"):
                        yield TriggerEvent(event)
                        return
                if snapshot.at >= self.deadline:
                    yield TriggerEvent({"status": "timeout", "seen": follower.view.describe() if follower else ""})
                    return

    def _wait_for(self, found: Found) -> Wait:
        """Nobody's receipt: nothing is kept, and nothing is ended."""
        since = min(self.since, found.submitted_at) if found.submitted_at is not None else self.since
        return Wait(
            key="", n=0, job_id=found.job_id, job_name=found.job_name, since=since, owner={}, receipts="", receipts_config={},
            submitted_at=found.submitted_at, follow_log=False, max_unknown_s=self.max_unknown_s, array=found.array, foreign=True,
        )  # fmt: skip
