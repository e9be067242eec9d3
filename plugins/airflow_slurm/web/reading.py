"""What the pages show: the task's own word for which work it asked for, and what the receipt store kept of it.

The store is the one this installation names (:mod:`airflow_slurm.settings`), never one that a task names: tasks write
their XComs themselves, and the API server loads no class for them. Nothing here asks a cluster but :func:`last_output`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow_slurm.errors import FileUnreadable, SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.links import KEPT_WORKS, POINTER_KEY
from airflow_slurm.pools import problem_of_task
from airflow_slurm.receipts import KeepsHistory, Owner, Record, history_of, load_store
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.remote.text import decode
from airflow_slurm.settings import configured_receipts
from airflow_slurm.slurm.states import Phase, parse_state
from airflow_slurm.spec import task_path
from airflow_slurm.truth.arrays import indices_of

#: Bytes of output on a page, and seconds that reading them may take.
OUTPUT_BYTES, OUTPUT_TIMEOUT_S = 64 * 1024, 10.0
#: Bytes of the end of one task's output in the frame of an array, and tasks of each kind that are shown there.
SHARD_BYTES, SHOWN_OF_EACH = 4 * 1024, 3


@dataclass(frozen=True)
class TaskKey:
    """A task instance; ``map_index`` is -1 for an unmapped one."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def owner(self) -> Owner:
        """The same as receipts name it."""
        return {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": self.task_id, "map_index": self.map_index}


@dataclass(frozen=True)
class Work:
    """The submissions of one key that the task asked for; ``earlier`` is None for the one that it asked for last, else its place among those before."""

    key: str
    records: Sequence[Record]
    earlier: int | None = None


@dataclass(frozen=True)
class Output:
    """A piece of a job's output. ``start`` and ``end`` are byte offsets; ``problem`` says why there is none."""

    path: str
    text: str = ""
    start: int = 0
    end: int = 0
    size: int = 0
    problem: str = ""


def pointer_of(task: TaskKey) -> dict[str, Any] | None:
    """What the task's latest try said about its work; None if it submitted nothing, or is none of Slurm's."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    query = XComModel.get_many(
        key=POINTER_KEY, run_id=task.run_id, dag_ids=task.dag_id, task_ids=task.task_id, map_indexes=task.map_index, limit=1
    )
    with create_session() as session:
        row = session.scalars(query).first()
        value = None if row is None else XComModel.deserialize_value(row)
    return value if isinstance(value, dict) and isinstance(value.get("key"), str) else None


def pool_problem(task: TaskKey) -> str:
    """Why Airflow does not start the task although it is scheduled, if its pool is the reason; else empty."""
    from airflow.utils.session import create_session

    with create_session() as session:
        return problem_of_task(session, task.owner)


def works_of(task: TaskKey, pointer: dict[str, Any]) -> list[Work]:
    """All submissions of the task's work for which this task has waited, newest first, and of what it asked for before, such as parts.

    A key that a task only names shows it nothing: it has to have been an owner.

    :raises SlurmError: if the store can't be loaded or keeps no history.
    """
    path, config = configured_receipts()
    store = load_store(path, config)
    if not isinstance(store, KeepsHistory):
        raise SlurmError(f"The receipt store {path!r} keeps no history to show.")
    before = pointer.get("before")
    keys = [pointer["key"], *(key for key in (before if isinstance(before, list) else ())[:KEPT_WORKS] if isinstance(key, str))]
    works = []
    for place, key in enumerate(keys):
        mine = [record for record in history_of(store, key) if task.owner in record.owners]
        works.append(Work(key, sorted(mine, key=lambda record: record.n, reverse=True), place - 1 if place else None))
    return [work for work in works if work.records or work.earlier is None]


def metrics_address(pointer: Mapping[str, Any], record: Record) -> str | None:
    """The address of a job's figures, as the connection that it was submitted over gives it; None where it gives none.

    :param pointer: what the task keeps about its work, see :func:`airflow_slurm.links.keep_links`.
    """
    template, receipt = pointer.get("metrics_url"), record.receipt
    if not isinstance(template, str) or receipt is None or receipt.conn_id != pointer.get("conn_id"):
        return None
    if not template.lower().startswith(("https://", "http://")):
        return None
    values = {"job_id": receipt.job_id, "cluster": receipt.cluster or "", "nodes": record.view.node_list if record.view is not None else ""}
    return re.sub(r"\{(job_id|cluster|nodes)\}", lambda found: quote(values[found[1]], safe=""), template)


def output_path(record: Record, shard: int | None) -> str | None:
    """Where a submission, or one task of its array, writes; None if its receipt doesn't say."""
    if record.receipt is None or record.receipt.log_path is None:
        return None
    if record.receipt.array is None:
        return record.receipt.log_path
    if shard is None or shard not in indices_of(record.receipt.array):
        return None
    return task_path(record.receipt.log_path, shard)


async def read_output(record: Record, path: str, before: int | None = None) -> Output:
    """The last piece of a job's output, or the piece before a byte offset, over SSH and within ten seconds."""
    [output] = await read_outputs(record, [path], OUTPUT_BYTES, before)
    return output


async def read_outputs(record: Record, paths: Sequence[str], most: int, before: int | None = None) -> list[Output]:
    """The last bytes, ``most`` of each, of some files that a submission's tasks write; over one connection and within ten seconds in all."""
    assert record.receipt is not None
    read: list[Output] = []
    try:
        async with asyncio.timeout(OUTPUT_TIMEOUT_S), SlurmHook(record.receipt.conn_id).get_client() as client:
            for path in paths:
                read.append(await _piece(client, path, most, before))
        return read
    except TimeoutError:
        problem = f"The cluster did not answer within {OUTPUT_TIMEOUT_S:.0f} seconds."
    except (SlurmError, OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
    return read + [Output(path, problem=problem) for path in paths[len(read) :]]


async def _piece(client: SlurmClient, path: str, most: int, before: int | None) -> Output:
    try:
        size = await client.size_of(path)
        if size is None:
            return Output(path, problem="There is no such file yet, or any more.")
        end = size if before is None else max(0, min(before, size))
        start = max(0, end - most)
        data = await client.read_from(path, start, end - start)
    except FileUnreadable as error:
        return Output(path, problem=str(error))
    return Output(path, decode(data), start, start + len(data), size)


def shown_shards(record: Record) -> list[tuple[int, str]]:
    """The tasks of an array whose last lines tell most, with the state of each: some that failed, and some that run."""
    numbers = set(shards_of(record))
    failed: list[tuple[int, str]] = []
    running: list[tuple[int, str]] = []
    for state, listed in (record.view.tasks if record.view is not None else {}).items():
        phase = parse_state(state).info.phase
        if phase not in (Phase.FAILED, Phase.LOST, Phase.RUNNING):
            continue
        try:
            found = [(index, state) for index in indices_of(listed) if index in numbers]
        except SlurmError:
            continue
        (running if phase is Phase.RUNNING else failed).extend(found)
    return [*failed[:SHOWN_OF_EACH], *running[:SHOWN_OF_EACH]]


def shards_of(record: Record) -> Sequence[int]:
    """The task numbers of an array; none of another job."""
    return indices_of(record.receipt.array) if record.receipt is not None and record.receipt.array else ()
