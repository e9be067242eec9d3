"""What Airflow does with one task, without Airflow: every step in a process of its own, which may be killed at any line.

The operator and the trigger are the real ones; what passes between the steps is JSON, as in Airflow's database.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_slurm import triggers
from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import Done, JobRequest, SlurmJobOperator
from airflow_slurm.receipts import load_store
from airflow_slurm.triggers import SlurmJobTrigger
from airflow_slurm.work.reconciler import reconcile
from airflow_slurm.work.stop import StopPolicy

CONN_ID = "slurm_faults"
POLITE = StopPolicy(signal="USR1", grace_s=3.0, cancel_wait_s=20.0, pause_s=0.5)
#: The nodes of the private Slurm are asked within seconds: its SlurmdTimeout is 10 s.
HOLD_GRACE_S = 12.0
#: A node that failed gives its job back within seconds here, or never.
RETURN_GRACE_S = 20.0
#: Beyond the two minutes that accounting is given to catch up.
MAX_UNKNOWN_S = 15.0
RECEIPTS = "tests.airflow_slurm.faults.gates.GatedReceipts"


@dataclass(frozen=True)
class Task:
    """One task, as another process can rebuild it. ``connection`` is the Airflow connection in JSON; ``shards`` makes it an array of so many."""

    folder: str
    connection: str
    key: str
    spec: dict[str, Any]
    shards: int = 0
    deferrable: bool = True

    @property
    def receipts_config(self) -> dict[str, str]:
        """Of the store in the task's folder."""
        return {"root": f"{self.folder}/receipts", "gates": self.folder}

    def store(self) -> Any:
        """The receipt store, for looking at."""
        return load_store("airflow_slurm.file_receipts.FileReceipts", {"root": f"{self.folder}/receipts"})


class Hasty(SlurmJobOperator):
    """An operator with times that suit a test of seconds."""

    def prepare(self, context: Any) -> JobRequest | Done:
        request = super().prepare(context)
        assert isinstance(request, JobRequest)
        return replace(request, look_up_s=4.0, stop=POLITE, max_unknown_s=MAX_UNKNOWN_S)


class HastyArray(Hasty, SlurmArrayOperator):
    """The same for an array."""


class KeptState:
    """What Airflow keeps for a task over its tries."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, name: str, default: Any = None) -> Any:
        return self._all().get(name, default)

    def set(self, name: str, value: Any) -> None:
        self._write(self._all() | {name: value})

    def delete(self, name: str) -> None:
        self._write({k: v for k, v in self._all().items() if k != name})

    def _all(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return values

    def _write(self, values: dict[str, Any]) -> None:
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(values))
        temporary.replace(self._path)


# -- what runs in the processes


def worker(task: Task, method: str, event: dict[str, Any] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """One step of the operator in a worker."""
    ti = SimpleNamespace(dag_id="faults", run_id="r1", task_id="t", map_index=-1, xcom_push=lambda **kwargs: None)
    context: Any = {"ti": ti, "task_state_store": KeptState(Path(task.folder) / "state.json")}
    values: dict[str, Any] = {"task_id": "t", "slurm_conn_id": CONN_ID, "key": task.key, "spec": task.spec, "deferrable": task.deferrable}
    values |= {"receipts": RECEIPTS, "receipts_config": task.receipts_config, "visibility_deadline_s": 2.0}
    operator: SlurmJobOperator
    if task.shards:
        operator = HastyArray(shards=task.shards, expected_output=f"{task.folder}/done-%a", **values)
    else:
        operator = Hasty(expected_output=f"{task.folder}/done", **values)
    arguments = () if method == "execute" else (event,)
    try:
        result = getattr(operator, method)(context, *arguments, **kwargs)
    except TaskDeferred as deferred:
        path, values = deferred.trigger.serialize()
        return {"deferred": deferred.method_name, "kwargs": dict(deferred.kwargs or {}), "trigger": path, "trigger_kwargs": values}
    return {"result": result}


def triggerer(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A trigger in a triggerer, until its event."""

    async def first() -> dict[str, Any]:
        hasty = kwargs | {"wait": kwargs["wait"] | {"hold_grace_s": HOLD_GRACE_S, "return_grace_s": RETURN_GRACE_S}}
        async with aclosing(SlurmJobTrigger(**hasty).run()) as events:
            async for event in events:
                return {"event": event.payload}
        raise AssertionError("no event")

    return asyncio.run(first())


def killed(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a triggerer does when a person marks the deferred task as failed."""

    async def on_kill() -> None:
        await SlurmJobTrigger(**kwargs).on_kill()
        while triggers._DETACHED:
            await asyncio.gather(*triggers._DETACHED)

    triggers.task_state = lambda owner: "failed"
    asyncio.run(on_kill())
    return {}


def reconciler(task: Task) -> dict[str, Any]:
    """One run of the reconciler, which knows that the task is over."""
    store = load_store(RECEIPTS, task.receipts_config)
    findings = reconcile(SlurmHook(CONN_ID), store, lambda owner: False, policy=POLITE, orphan_age_s=0.0)
    return {"findings": [vars(finding) for finding in findings]}


# -- how they are started


def _child(connection: str, folder: str, answer: Connection, run: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> None:
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = connection
    try:
        said = json.loads(json.dumps(run(*arguments)))
    except Exception as error:  # noqa: BLE001
        # Whatever it is, it is what Airflow would fail the task with.
        said = {"error": f"{type(error).__name__}: {error}"}
    answer.send(said)


_MODULES = ["airflow_slurm.array_operator", "airflow_slurm.work.reconciler", "airflow_slurm.file_receipts", __name__]


class Processes:
    """Starts the steps of one task, each in a process forked from one that has everything imported."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.process: Any = None
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_MODULES)
        # Python 3.11 gives the fork server no search path of its own.
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*sys.path, os.getcwd()]))

    async def __call__(self, run: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any] | None:
        """What the function said in its process; None if that died first."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_child, args=(self.task.connection, self.task.folder, theirs, run, arguments), daemon=True)
        await asyncio.to_thread(process.start)
        theirs.close()
        self.process = process
        try:
            while not ours.poll():  # noqa: ASYNC110
                await asyncio.sleep(0.03)
            said: dict[str, Any] = ours.recv()
            return said
        except EOFError:
            return None
        finally:
            process.kill()
            await asyncio.to_thread(process.join)
            ours.close()

    def kill(self) -> None:
        """SIGKILL for what runs now."""
        if self.process is not None:
            self.process.kill()
