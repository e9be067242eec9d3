"""Pools that do not exist: Airflow starts no task in them and hardly says so; the connection's Test and the tab do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from airflow.models import import_all_models
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from airflow_slurm import pools
from airflow_slurm.web.reading import TaskKey, pool_problem

MAKE = "airflow pools set slurm_submissions 8 'Submissions to Slurm at once'"
TASK = TaskKey("d", "r", "t")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Airflow's own tables of pools and task instances, without the rows that those hang on."""
    engine = create_engine("sqlite://")
    import_all_models()
    Pool.__table__.create(engine)
    TaskInstance.__table__.create(engine)
    with Session(engine) as opened:

        @contextmanager
        def create_session() -> Iterator[Session]:
            yield opened

        monkeypatch.setattr("airflow.utils.session.create_session", create_session)
        yield opened


def pool(session: Session, name: str, slots: int) -> None:
    session.add(Pool(pool=name, slots=slots, description="", include_deferred=False))
    session.flush()


def waits(session: Session, pool: str, state: str = "scheduled", task_id: str = "t") -> None:
    values: dict[str, Any] = {"task_id": task_id, "dag_id": "d", "run_id": "r", "map_index": -1, "pool": pool, "state": state}
    session.execute(
        insert(TaskInstance.__table__).values(id=uuid4(), try_number=0, max_tries=0, pool_slots=1, executor_config={}, **values)
    )


def test_the_pool_of_a_connection_is_missing(session: Session) -> None:
    waits(session, "slurm_submissions")
    fine, words = pools.report("slurm_submissions")
    assert not fine
    assert "no pool 'slurm_submissions'" in words
    assert MAKE in words


def test_it_is_there(session: Session) -> None:
    pool(session, "slurm_submissions", 8)
    waits(session, "slurm_submissions")
    assert pools.report("slurm_submissions") == (True, "Airflow pool slurm_submissions: 8 slots")
    pool(session, "free", -1)
    assert pools.report("free") == (True, "Airflow pool free: no limit")


def test_it_has_no_slots(session: Session) -> None:
    pool(session, "slurm_submissions", 0)
    fine, words = pools.report("slurm_submissions")
    assert not fine
    assert "0 slots" in words


def test_other_pools_in_which_tasks_wait_for_nothing_are_named_and_fail_no_test(session: Session) -> None:
    for task_id in ("t", "u"):
        waits(session, "it's gone", task_id=task_id)
    waits(session, "done with", state="success", task_id="v")
    fine, words = pools.report(None)
    assert fine
    assert "'it\\'s gone'" in words or '"it\'s gone"' in words
    assert "2 wait now" in words
    assert "done with" not in words


def test_where_airflows_database_can_not_be_read_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise RuntimeError("Direct database access via the ORM is not allowed in Airflow 3.0")

    monkeypatch.setattr("airflow.utils.session.create_session", refused)
    assert pools.report("slurm_submissions") == (True, "not checked: Airflow's pools (RuntimeError)")


def test_the_tab_says_why_a_task_is_not_started(session: Session) -> None:
    waits(session, "slurm_submissions")
    assert MAKE in pool_problem(TASK)
    pool(session, "slurm_submissions", 8)
    assert pool_problem(TASK) == ""


@pytest.mark.parametrize("state", ["running", "deferred", "success"])
def test_of_a_task_that_does_not_wait_it_says_nothing(session: Session, state: str) -> None:
    waits(session, "slurm_submissions", state)
    assert pool_problem(TASK) == ""
