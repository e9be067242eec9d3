"""Airflow's pools, which limit submissions at once: whether they are there. Asked in the API server, which may read Airflow's database.

A task in a pool that does not exist stays *scheduled* for ever: Airflow 3.3 says so in the scheduler's log and nowhere else.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

Session = Any
"""A session of Airflow's own database, as Airflow makes it: SQLAlchemy is Airflow's affair."""


def how_to_make(pool: str) -> str:
    """The command that makes a pool."""
    return f"airflow pools set {shlex.quote(pool)} 8 'Submissions to Slurm at once'"


def missing_words(pool: str, waiting: int = 0) -> str:
    """What is wrong with a pool that does not exist, and what to do."""
    tasks = f" ({waiting} wait now)" if waiting else ""
    return f"Airflow has no pool {pool!r}, so no task in it is ever started{tasks}. Make it: {how_to_make(pool)}"


def too_small_words(pool: str, slots: int) -> str:
    """What is wrong with a pool that lets nothing run, and what to do."""
    return f"Airflow's pool {pool!r} has {slots} slots, so no task in it is started. Give it some: {how_to_make(pool)}"


def slots_of(session: Session, pool: str) -> int | None:
    """How many slots a pool has (-1: no limit); None if there is none of that name."""
    from airflow.models.pool import Pool

    slots: int | None = session.query(Pool.slots).filter(Pool.pool == pool).scalar()
    return slots


def waiting_in_none(session: Session) -> dict[str, int]:
    """Pools in which tasks wait to be started, and that do not exist; with the number of those tasks."""
    from airflow.models.pool import Pool
    from airflow.models.taskinstance import TaskInstance

    there = {name for (name,) in session.query(Pool.pool)}
    waiting = Counter(str(name) for (name,) in session.query(TaskInstance.pool).filter(TaskInstance.state == "scheduled"))
    return {name: count for name, count in waiting.items() if name not in there}


def problem_of_pool(session: Session, pool: str) -> str:
    """Why no task in a pool is started; empty if nothing is wrong with it."""
    slots = slots_of(session, pool)
    if slots is None:
        return missing_words(pool)
    return too_small_words(pool, slots) if slots == 0 else ""


def problem_of_task(session: Session, task: Mapping[str, Any]) -> str:
    """The same of the pool in which one task instance waits to be started; empty also for one that doesn't wait.

    :param task: ``dag_id``, ``run_id``, ``task_id`` and ``map_index``.
    """
    from airflow.models.taskinstance import TaskInstance

    pool = session.query(TaskInstance.pool).filter_by(**task, state="scheduled").scalar()
    return problem_of_pool(session, pool) if pool else ""


def report(pool: str | None) -> tuple[bool, str]:
    """For the *Test* of a connection: whether the pool that it names can let tasks run, and what is known of others.

    Where Airflow's database can't be read, nothing is claimed.
    """
    try:
        from airflow.utils.session import create_session

        with create_session() as session:
            problem = problem_of_pool(session, pool) if pool else ""
            slots = slots_of(session, pool) if pool else None
            others = {name: count for name, count in waiting_in_none(session).items() if name != pool}
    except Exception as error:  # noqa: BLE001
        # Only the API server and Airflow's own commands may read its database; elsewhere each way in fails differently.
        return True, f"not checked: Airflow's pools ({type(error).__name__})"
    said = [problem] if problem else [f"Airflow pool {pool}: {'no limit' if slots == -1 else f'{slots} slots'}"] if pool else []
    said += [missing_words(name, count) for name, count in sorted(others.items())]
    return not problem, "; ".join(said)
