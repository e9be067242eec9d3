"""What waits in the triggerer: one trigger a job, all of a cluster fed by one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import aclosing
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_slurm.errors import UnknownOutcome
from airflow_slurm.owners import TERMINAL_STATES
from airflow_slurm.receipts import Owner, token_of
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.lines import say_given_up
from airflow_slurm.watch.poller import Snapshot, hub_of, snapshots
from airflow_slurm.watch.waiting import Wait, as_json, due
from airflow_slurm.work.shared import shared_client
from airflow_slurm.work.stop import StopPolicy, give_up

__all__ = ["ClusterTrigger", "SlurmJobTrigger", "SubmitLaterTrigger", "Wait", "as_json", "due", "first_event", "task_state"]

#: Work that on_kill left behind: it has about a second, a polite stop takes longer. The loop keeps weak references only.
_DETACHED: set[asyncio.Task[None]] = set()


class ClusterTrigger(BaseEventTrigger):
    """Something that waits for what the one loop of a cluster sees.

    :param slurm_conn_id: the connection.
    """

    supports_triggerer_queue = True

    def __init__(self, slurm_conn_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slurm_conn_id = slurm_conn_id

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

    def filter_shared_stream(self, shared_stream: AsyncIterator[Snapshot]) -> AsyncGenerator[TriggerEvent, None]:
        """What of it concerns this trigger."""
        raise NotImplementedError

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """The same with a loop of its own, for ``dag.test()`` and tasks that don't defer."""
        event: TriggerEvent | None = None
        async with (
            aclosing(self.open_shared_stream({"slurm_conn_id": self.slurm_conn_id})) as stream,
            aclosing(self.filter_shared_stream(stream)) as events,
        ):
            async for found in events:
                event = found
                break
        # Only now, with everything closed: dag.test() drops the generator where it stands.
        if event is not None:
            yield event


class SlurmJobTrigger(ClusterTrigger):
    """Waits until a job has ended, or something about it has to be decided.

    Its event is ``{"status": "ended" | "unknown" | "waited_too_long" | "never_starts" | "timed_out" | "rolled_back" | "held_again",
    "view": {...}}``, of an array with ``"tasks"``, a view of each by its number. It returns at once after it.

    :param slurm_conn_id: the connection. :param wait: a :class:`Wait` as JSON.
    :param state: comes back as the event's ``"request_state"``: dag.test() of Airflow 3.3 resumes a task with the event alone.
    """

    def __init__(self, slurm_conn_id: str, wait: dict[str, Any], state: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(slurm_conn_id, **kwargs)
        self.wait = dict(wait)
        self.state = state

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See :class:`airflow.triggers.base.BaseTrigger`."""
        return "airflow_slurm.triggers.SlurmJobTrigger", {"slurm_conn_id": self.slurm_conn_id, "wait": self.wait, "state": self.state}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Snapshot]) -> AsyncGenerator[TriggerEvent, None]:
        """This job's part of what the loop saw, until there is something to say."""
        hub = hub_of(self.shared_stream_key())
        follower = follower_of(Wait.from_json(self.wait), hub, self.log)
        with hub.watching(follower.watched) as watch:
            async for snapshot in shared_stream:
                event = await follower.look(snapshot)
                watch(follower.watched)
                if event is not None:
                    yield TriggerEvent(event | ({"request_state": self.state} if self.state is not None else {}))
                    return

    async def on_kill(self) -> None:
        """A person acted on the task, or nobody did: this also comes late and uncalled, so the task's state decides.

        There is about one second; the rest goes on by itself, over one connection and with one look for all that are over at the time, and
        the reconciler does it if this process dies.
        """
        task = asyncio.create_task(self._give_up_if_over())
        _DETACHED.add(task)
        task.add_done_callback(_DETACHED.discard)

    async def _give_up_if_over(self) -> None:
        wait = Wait.from_json(self.wait)
        try:
            store = await asyncio.to_thread(wait.store)  # which may open a database
            # Before the state: the task may be cleared right after that, and its next try claim the job.
            token = await asyncio.to_thread(token_of, store, wait.key, wait.owner)
            state = await asyncio.to_thread(task_state, wait.owner)
            if state not in TERMINAL_STATES:
                self.log.info("Task is %s: job %s is left alone.", state or "not known", wait.job_id)
                return
            policy = StopPolicy(**wait.stop)
            async with shared_client(self.slurm_conn_id) as client:
                view = await give_up(client, store, wait.key, wait.owner, wait.job_name, policy, by="on_kill", token=token)
            self.log.info(
                "Task is %s: %s", state, view.describe() if view else f"job {wait.job_id} was left to its other owners, or had ended"
            )
            if view is not None:
                await say_given_up(wait.lines, wait.n, view, self.log)
        except Exception:
            # Nobody awaits this: without a word here the failure would be invisible. The reconciler does the rest.
            self.log.exception("Job %s could not be ended now; the reconciler will.", wait.job_id)


class SubmitLaterTrigger(BaseTrigger):
    """Waits before a submission is tried again, so that a full queue holds no worker.

    :param seconds: how long. :param progress: comes back with the event.
    """

    def __init__(self, seconds: float, progress: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds
        self.progress = progress

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See :class:`airflow.triggers.base.BaseTrigger`."""
        return "airflow_slurm.triggers.SubmitLaterTrigger", {"seconds": self.seconds, "progress": self.progress}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event after the wait."""
        await asyncio.sleep(self.seconds)
        yield TriggerEvent({"status": "now"} | ({"progress": self.progress} if self.progress is not None else {}))


async def first_event(trigger: ClusterTrigger) -> dict[str, Any]:
    """What a trigger has to say, waited for here, with a loop of its own."""
    async with aclosing(trigger.run()) as events:
        async for event in events:
            payload: dict[str, Any] = event.payload
            return payload
    raise UnknownOutcome("The wait for a job ended without an answer.")


def task_state(owner: Owner) -> str | None:
    """The state Airflow has for a task now; None if it is cleared, or not there. Blocks: call it in a thread."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=owner["dag_id"], task_ids=[owner["task_id"]], run_ids=[owner["run_id"]], map_index=owner["map_index"]
    )
    of_run = states.get(owner["run_id"], {})
    name = owner["task_id"] if owner["map_index"] < 0 else f"{owner['task_id']}_{owner['map_index']}"
    value = of_run.get(name)
    return None if value is None else str(getattr(value, "value", value))
