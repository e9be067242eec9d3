"""One task instance at the edge of Airflow: every step on a new operator, JSON alone between the steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.triggers import SlurmJobTrigger

OWNER = {"dag_id": "d", "run_id": "r1", "task_id": "t", "map_index": -1}


class TaskState(dict[str, Any]):
    """At the process edge: what Airflow keeps for a task over tries and clears."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)


class Task:
    """One task instance: makes a new operator for every step, and hands JSON from one to the next."""

    def __init__(self, make: Callable[[], SlurmJobOperator], run_id: str = "r1") -> None:
        self.make = make
        self.state = TaskState()
        self.xcoms: dict[str, Any] = {}
        push = lambda key, value: self.xcoms.__setitem__(key, json.loads(json.dumps(value)))  # noqa: E731
        self.ti = SimpleNamespace(dag_id="d", run_id=run_id, task_id="t", map_index=-1, max_tries=2, xcom_push=push)
        self.context: Any = {"ti": self.ti, "task_state_store": self.state}

    def clear(self) -> None:
        """What Airflow changes when somebody clears the task; a retry changes nothing of it."""
        self.ti.max_tries += 1

    def execute(self) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as caught:
            self.make().execute(self.context)
        return caught.value

    def resume(self, deferred: TaskDeferred, event: dict[str, Any]) -> Any:
        kwargs = json.loads(json.dumps(deferred.kwargs))
        return getattr(self.make(), deferred.method_name)(self.context, event, **kwargs)

    def wait(self, deferred: TaskDeferred, timeout_s: float = 60) -> dict[str, Any]:
        path, kwargs = deferred.trigger.serialize()
        assert path == "airflow_slurm.triggers.SlurmJobTrigger"
        trigger = SlurmJobTrigger(**json.loads(json.dumps(kwargs)))

        async def first() -> dict[str, Any]:
            async with asyncio.timeout(timeout_s), aclosing(trigger.run()) as events:
                async for event in events:
                    return json.loads(json.dumps(event.payload))
            raise AssertionError("no event")

        return asyncio.run(first())

    def run(self) -> Any:
        deferred = self.execute()
        return self.resume(deferred, self.wait(deferred))


Make = Callable[..., Task]
