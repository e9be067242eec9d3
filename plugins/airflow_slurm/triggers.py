"""What waits in the triggerer: one trigger a job, all of a cluster fed by one loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_slurm.errors import SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.poller import Hub, Snapshot, Watched, hub_of, snapshots
from airflow_slurm.receipts import Owner, ReceiptStore, load_store
from airflow_slurm.reconcile import NO_ACCOUNTING, judge
from airflow_slurm.states import Phase
from airflow_slurm.stop import StopPolicy, give_up
from airflow_slurm.tail import LogTail
from airflow_slurm.view import JobView

#: States of a task in which nobody waits for its job any more.
TERMINAL_STATES = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})
TAIL_TIMEOUT_S = 20.0

#: Work that on_kill left behind: it has about a second, a polite stop takes longer. The loop keeps weak references only.
_DETACHED: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class Wait:
    """Everything a trigger has to know, as JSON. Times are seconds; ``since`` and ``submitted_at`` since the epoch.

    :ivar max_unknown_s: how long an outcome may stay unknown before a person is called.
    :ivar max_wait_s: how long a job may wait for its first start; None for ever.
    :ivar stop: how the job is ended, as :class:`airflow_slurm.stop.StopPolicy` in JSON.
    """

    key: str
    n: int
    job_id: str
    job_name: str
    since: float
    owner: Owner
    receipts: str
    receipts_config: dict[str, Any]
    cluster: str | None = None
    submitted_at: float | None = None
    log_path: str | None = None
    follow_log: bool = True
    max_unknown_s: float = 3600.0
    max_wait_s: float | None = None
    stop: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Wait:
        """The value that :func:`dataclasses.asdict` made; fields of a newer version are passed over."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: item for name, item in value.items() if name in known})

    def store(self) -> ReceiptStore:
        """The receipt store."""
        return load_store(self.receipts, self.receipts_config)


class SlurmJobTrigger(BaseEventTrigger):
    """Waits until a job has ended, or something about it has to be decided.

    Its event is ``{"status": "ended" | "unknown" | "waited_too_long", "view": {...}}`` and it returns at once after it.

    :param slurm_conn_id: the connection. :param wait: a :class:`Wait` as JSON.
    """

    supports_triggerer_queue = True

    def __init__(self, slurm_conn_id: str, wait: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slurm_conn_id = slurm_conn_id
        self.wait = dict(wait)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See :class:`airflow.triggers.base.BaseTrigger`."""
        return "airflow_slurm.triggers.SlurmJobTrigger", {"slurm_conn_id": self.slurm_conn_id, "wait": self.wait}

    def shared_stream_key(self) -> Hashable:
        """One loop for each connection."""
        return ("airflow_slurm", self.slurm_conn_id)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Snapshot, None]:
        """The loop. Only the connection's name is taken from ``kwargs``: the rest is some other trigger's."""
        slurm_conn_id = kwargs["slurm_conn_id"]
        async with aclosing(snapshots(slurm_conn_id, hub_of(("airflow_slurm", slurm_conn_id)))) as stream:
            async for snapshot in stream:
                yield snapshot

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Snapshot]) -> AsyncGenerator[TriggerEvent, None]:
        """This job's part of what the loop saw, until there is something to say."""
        wait = Wait.from_json(self.wait)
        watched = Watched(wait.job_id, wait.job_name, wait.since)
        hub = hub_of(self.shared_stream_key())
        follower = _Follower(self, wait, hub)
        with hub.watching(watched):
            async for snapshot in shared_stream:
                seen = snapshot.of(watched)
                if seen is None:
                    continue
                view = await follower.update(judge(follower.view, seen))
                status = due(view, wait, snapshot.at)
                if status is not None:
                    await follower.finish()
                    yield TriggerEvent({"status": status, "view": view.to_json()})
                    return

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """The same with a loop of its own, for ``dag.test()`` and tasks that don't defer."""
        async with (
            aclosing(self.open_shared_stream({"slurm_conn_id": self.slurm_conn_id})) as stream,
            aclosing(self.filter_shared_stream(stream)) as events,
        ):
            async for event in events:
                yield event
                return

    async def on_kill(self) -> None:
        """A person acted on the task, or nobody did: this also comes late and uncalled, so the task's state decides.

        There is about one second; the rest goes on by itself, and the reconciler does it if this process dies.
        """
        task = asyncio.create_task(self._give_up_if_over())
        _DETACHED.add(task)
        task.add_done_callback(_DETACHED.discard)

    async def _give_up_if_over(self) -> None:
        wait = Wait.from_json(self.wait)
        try:
            state = await asyncio.to_thread(task_state, wait.owner)
            if state not in TERMINAL_STATES:
                self.log.info("Task is %s: job %s is left alone.", state or "not known", wait.job_id)
                return
            policy = StopPolicy(**wait.stop)
            async with SlurmHook(self.slurm_conn_id).get_client() as client:
                view = await give_up(client, wait.store(), wait.key, wait.owner, wait.job_name, policy, by="on_kill")
            self.log.info(
                "Task is %s: %s", state, view.describe() if view else f"job {wait.job_id} was left to its other owners, or had ended"
            )
        except Exception:
            # Nobody awaits this: without a word here the failure would be invisible. The reconciler does the rest.
            self.log.exception("Job %s could not be ended now; the reconciler will.", wait.job_id)


class SubmitLaterTrigger(BaseTrigger):
    """Waits before a submission is tried again, so that a full queue holds no worker.

    :param seconds: how long.
    """

    def __init__(self, seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See :class:`airflow.triggers.base.BaseTrigger`."""
        return "airflow_slurm.triggers.SubmitLaterTrigger", {"seconds": self.seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event after the wait."""
        await asyncio.sleep(self.seconds)
        yield TriggerEvent({"status": "now"})


class _Follower:
    """Tells the task's log, and the store, what changed."""

    def __init__(self, trigger: SlurmJobTrigger, wait: Wait, hub: Hub) -> None:
        self.view = JobView(wait.job_id, wait.cluster, submit_time=wait.submitted_at)
        self._log = trigger.log
        self._wait = wait
        self._hub = hub
        self._tail = LogTail(wait.log_path) if wait.follow_log and wait.log_path else None

    async def update(self, view: JobView) -> JobView:
        before, self.view = self.view, view
        if (view.phase, view.state, view.reason, view.restarts) != (before.phase, before.state, before.reason, before.restarts):
            self._log.info("Slurm: %s", view.describe())
            await self._observe(view)
        if view.phase is not Phase.WAITING and view.unknown_since is None:
            await self._read_log()
        return view

    async def finish(self) -> None:
        for line in self._tail.close() if self._tail else ():
            self._log.info("[job %s] %s", self._wait.job_id, line)

    async def _observe(self, view: JobView) -> None:
        try:
            await asyncio.to_thread(lambda: self._wait.store().observe(self._wait.key, self._wait.n, view))
        except Exception as error:  # noqa: BLE001
            # The application's store may raise anything; what people read there must not end the wait for the job.
            self._log.warning("The receipt store could not keep what was seen: %s", error)

    async def _read_log(self) -> None:
        if self._tail is None or self._hub.client is None:
            return
        try:
            async with asyncio.timeout(TAIL_TIMEOUT_S):
                lines = await self._tail.read(self._hub.client)
        except (SlurmError, TimeoutError) as error:
            self._log.debug("The job's output could not be read now: %s", error)
            return
        for line in lines:
            self._log.info("[job %s] %s", self._wait.job_id, line)


def due(view: JobView, wait: Wait, now: float | None = None) -> str | None:
    """What has to be decided about a job now; None to wait on."""
    now = time.time() if now is None else now
    if view.ended:
        return "ended"
    if view.phase is Phase.UNKNOWN:
        if view.cause == NO_ACCOUNTING or (view.unknown_since is not None and now - view.unknown_since >= wait.max_unknown_s):
            return "unknown"
        return None
    waited = now - (wait.submitted_at or wait.since)
    if view.phase is Phase.WAITING and view.restarts == 0 and wait.max_wait_s is not None and waited >= wait.max_wait_s:
        return "waited_too_long"
    return None


def task_state(owner: Owner) -> str | None:
    """The state Airflow has for a task now; None if it is cleared, or not there. Blocks: call it in a thread."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=owner["dag_id"], task_ids=[owner["task_id"]], run_ids=[owner["run_id"]], map_index=owner["map_index"]
    )
    of_run = states.get(owner["run_id"], {})
    name = owner["task_id"] if owner["map_index"] < 0 else f"{owner['task_id']}_{owner['map_index']}"
    value = of_run.get(name)
    return None if value is None else str(getattr(value, "value", value))


def as_json(wait: Wait) -> dict[str, Any]:
    """The trigger's argument."""
    return asdict(wait)
