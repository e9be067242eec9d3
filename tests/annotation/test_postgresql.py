"""The same service on PostgreSQL: many at once, marks without gaps, history that stays."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.exc import DBAPIError

from include.annotation.assignment import Annotator, Desk, next_task
from include.annotation.batches import Order, create_batch
from include.annotation.database import Database
from include.annotation.interval import labels_between
from include.annotation.labels import Submission, submit
from include.annotation.progress import progress
from include.annotation.requests import BatchIn, LabelIn
from include.annotation.snapshot import snapshot
from include.annotation.tables import metadata
from include.annotation.withdrawals import Withdrawal, withdraw
from tests import postgres
from tests.annotation.support import Clock, batch, gold


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """On a private server."""
    with postgres.server() as url:
        made = Database(url.render_as_string(hide_password=False))
        made.migrate()
        yield made
        made.close()


def _create(database: Database, key: str, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    return create_batch(database, Order(key, BatchIn.model_validate(body), "me", Clock()()))


def _work(database: Database, batch_id: str, name: str) -> Counter[bool]:
    me, clock, made = Annotator(name, "human", "human"), Clock(), Counter[bool]()
    while shown := next_task(database, Desk(me, clock(), 60.0), batch_id).shown:
        _, created = submit(database, Submission(me, shown.task.task_id, LabelIn(verdict="left"), clock()))
        made[created] += 1
    return made


def test_many_at_once_share_no_task_and_leave_no_gap(database: Database) -> None:
    receipt, _ = _create(database, "many", batch(40, gold_items=[gold(100)]))
    with ThreadPoolExecutor(6) as pool:
        runs = list(pool.map(lambda i: _work(database, receipt["batch_id"], f"ann_{i % 3}"), range(6)))
    labels = snapshot(database, receipt["batch_id"])["labels"]
    assert len(labels) == len({label["task_id"] for label in labels}) == 40
    assert sum(run[True] for run in runs) == 40 + 3
    assert progress(database, receipt["batch_id"])["mark"] == 40
    assert progress(database, receipt["batch_id"])["gold"]["labels"] == 3


def test_an_interval_is_read_page_by_page_as_it_stood_at_its_end(database: Database) -> None:
    receipt, _ = _create(database, "interval", batch(5, gold_items=[gold(100)]))
    _work(database, receipt["batch_id"], "ann_interval")
    moment = Clock()()
    span = (moment - timedelta(hours=1), moment + timedelta(hours=1), moment + timedelta(days=1))
    whole = labels_between(database, *span, limit=1000)["labels"]
    first = labels_between(database, *span, limit=3)
    second = labels_between(database, *span, after=first["next"], limit=1000)
    assert first["labels"] + second["labels"] == whole
    mine = [one for one in whole if one["label"]["annotator_id"] == "ann_interval"]
    assert Counter(one["purpose"] for one in mine) == {"train": 5, "gold": 1}
    withdraw(database, Withdrawal(mine[0]["label"]["label_id"], "misread", "me", moment + timedelta(minutes=1)))
    assert len(labels_between(database, *span, limit=1000)["labels"]) == len(whole) - 1
    before = (span[0], moment + timedelta(seconds=1), span[2])
    assert labels_between(database, *before, limit=1000)["labels"] == whole


def test_the_same_key_from_many_is_one_batch(database: Database) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda _: _create(database, "same", batch(3)), range(6)))
    assert len({receipt["batch_id"] for receipt, _ in made}) == 1
    assert sum(created for _, created in made) == 1


def test_a_new_rubric_in_several_batches_at_once_is_no_error(database: Database) -> None:
    body = batch(1, rubric={**batch()["rubric"], "version": "new@1"})
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda i: _create(database, f"rubric-{i}", body), range(6)))
    assert len({receipt["batch_id"] for receipt, _ in made}) == 6


def test_text_that_the_database_can_not_hold_as_such_comes_through(database: Database) -> None:
    body = batch(1)
    body["tasks"][0]["candidate_a"]["response_text"] = "nul \x00 and more"
    receipt, _ = _create(database, "nul", body)
    shown = next_task(database, Desk(Annotator("ann_nul", "human", "human"), Clock()(), 60.0), receipt["batch_id"]).shown
    assert shown is not None
    assert "nul \x00 and more" in {shown.blind()[side]["text"] for side in ("left", "right")}


@pytest.mark.parametrize("change", ["UPDATE labels SET verdict = 'A'", "DELETE FROM displays", "TRUNCATE withdrawals"])
def test_history_can_not_be_changed(database: Database, change: str) -> None:
    with pytest.raises(DBAPIError, match="append-only"), database.write() as connection:
        connection.exec_driver_sql(change)


def test_the_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
