"""The keys that an array holds: a submission of each, made with the array's own, closed with it, and shared by nobody else."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from include.stores.catalog.tables_work import array_parts, stage_runs, submissions
from include.stores.errors import KeyHeld


def refuse_part(connection: sa.Connection, key: str, n: int) -> None:
    """Raises KeyHeld when submission `n` of `key` is a task of an array: it is that array's, and is neither shared nor ended alone."""
    mine = sa.and_(array_parts.c.key == key, array_parts.c.n == n)
    row = connection.execute(sa.select(array_parts).where(mine)).mappings().first()
    if row is not None:
        raise KeyHeld(f"{key} is task {row['task']} of the array {row['array_key']} (submission {row['array_n']})")


def take_parts(connection: sa.Connection, array: tuple[str, int], parts: Mapping[int, str], new: Mapping[str, Any]) -> None:
    """A submission like `new` for every part that is neither committed nor worked on by another job, as tasks of the array.

    Raises:
        KeyHeld: none is left to take.
    """
    left = {task: key for task, key in parts.items() if not _done_or_held(connection, key)}
    if not left:
        raise KeyHeld(f"all {len(parts)} parts of {array[0]} are done, or other jobs work on them")
    for task, key in left.items():
        last = connection.execute(sa.select(sa.func.max(submissions.c.n)).where(submissions.c.key == key)).scalar() or 0
        connection.execute(sa.insert(submissions).values(**{**new, "key": key, "n": last + 1}))
        row = {"array_key": array[0], "array_n": array[1], "task": task, "key": key, "n": last + 1}
        connection.execute(sa.insert(array_parts).values(**row))


def _done_or_held(connection: sa.Connection, key: str) -> bool:
    done = sa.select(stage_runs.c.key).where(stage_runs.c.key == key, stage_runs.c.committed_attempt.is_not(None))
    held = sa.select(submissions.c.key).where(submissions.c.key == key, submissions.c.closed_at.is_(None))
    return connection.execute(sa.union_all(done, held)).first() is not None


def parts_of(connection: sa.Connection, key: str, n: int) -> dict[int, tuple[str, int]]:
    """Task number → (key, n) of what submission `n` of the array `key` holds; nothing for any other job."""
    mine = sa.and_(array_parts.c.array_key == key, array_parts.c.array_n == n)
    rows = connection.execute(sa.select(array_parts).where(mine).order_by("task")).mappings()
    return {row["task"]: (row["key"], row["n"]) for row in rows}


def is_part() -> sa.Exists:
    """In a query over submissions: whether a row is a task of an array."""
    return sa.exists().where(array_parts.c.key == submissions.c.key, array_parts.c.n == submissions.c.n)


def receipt_of_task(receipt: Mapping[str, Any], task: int) -> dict[str, Any]:
    """The array's receipt as that of one of its tasks, which Slurm knows as ``5501_3``."""
    path = receipt.get("log_path")
    log = re.sub(r"%([a%])", lambda m: str(task) if m.group(1) == "a" else "%", path) if path else None
    return {**receipt, "job_id": f"{receipt['job_id']}_{task}", "log_path": log, "array": None}


def end_of_task(end: Mapping[str, Any], task: int) -> dict[str, Any]:
    """How one task of an array ended: as its own record says, or else as the whole."""
    own = (end.get("shards") or {}).get(str(task))
    shared = {**end, "shards": {}, "view": None}
    return shared if own is None else {**shared, **{name: own[name] for name in ("outcome", "cause", "detail")}}


def tasks_closed(end: Mapping[str, Any], held: Mapping[int, tuple[str, int]]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(key, n, end) of each task of an array that is closed."""
    return ((key, n, end_of_task(end, task)) for task, (key, n) in held.items())
