"""Nothing acknowledged is lost and nothing is half done, wherever the process ends."""

import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event

from include.annotation.assignment import Annotator, Desk, next_task
from include.annotation.batches import Order, create_batch
from include.annotation.errors import ConfigurationError
from include.annotation.labels import Submission, submit
from include.annotation.requests import BatchIn, LabelIn
from include.annotation.tables import metadata
from include.annotation.withdrawals import Withdrawal, withdraw
from tests.annotation.server import Server
from tests.annotation.support import World, batch, gold

ME = Annotator("ann_me", "human", "human")


class PowerCut(Exception):
    pass


def _dump(world: World) -> list[str]:
    connection = sqlite3.connect(world.folder / "annotation.sqlite")
    lines = list(connection.iterdump())
    connection.close()
    return lines


def _cut_at_every_statement(world: World, action: Callable[[], Any]) -> int:
    """Runs `action` again and again, breaking off before its 1st, 2nd, … statement, until it gets through.

    Each time the database must be as it was. Returns how many statements the action has.
    """
    before, engine = _dump(world), world.service.database.engine
    for allowed in range(100):
        left = [allowed]

        def cut(*_: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise PowerCut

        event.listen(engine, "before_cursor_execute", cut)
        try:
            action()
        except PowerCut:
            assert _dump(world) == before
        else:
            assert _dump(world) != before
            return allowed
        finally:
            event.remove(engine, "before_cursor_execute", cut)
    raise AssertionError("more than a hundred statements")


def test_creating_a_batch_is_all_or_nothing(world: World) -> None:
    body = BatchIn.model_validate(batch(3, gold_items=[gold(100)]))
    assert _cut_at_every_statement(world, lambda: create_batch(world.service.database, Order("key", body, "me", world.clock()))) > 5


def test_handing_out_a_task_is_all_or_nothing(world: World) -> None:
    world.made(batch(3))
    assert _cut_at_every_statement(world, lambda: next_task(world.service.database, Desk(ME, world.clock(), 60.0))) > 5


def _shown(world: World) -> str:
    offer = next_task(world.service.database, Desk(ME, world.clock(), 60.0))
    assert offer.shown is not None
    return str(offer.shown.task.task_id)


def test_labelling_is_all_or_nothing(world: World) -> None:
    world.made(batch(3))
    submission = Submission(ME, _shown(world), LabelIn(verdict="left"), world.clock())
    assert _cut_at_every_statement(world, lambda: submit(world.service.database, submission)) > 5


def test_withdrawing_is_all_or_nothing(world: World) -> None:
    world.made(batch(3))
    label, _ = submit(world.service.database, Submission(ME, _shown(world), LabelIn(verdict="left"), world.clock()))
    withdrawal = Withdrawal(label["label_id"], "a test", "me", world.clock())
    assert _cut_at_every_statement(world, lambda: withdraw(world.service.database, withdrawal)) > 5


def _label_until_killed(server: Server, token: str, acknowledged: list[str]) -> None:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        try:
            while task := http.get("/v1/annotation-tasks/next").json()["task"]:
                label = http.post(f"/v1/annotation-tasks/{task['task_id']}/labels", json={"verdict": "left"}).json()
                acknowledged.append(label["label_id"])
        except httpx.TransportError:
            return


@pytest.mark.timeout(240)
def test_every_acknowledged_label_survives_a_killed_process(tmp_path: Path) -> None:
    server = Server(tmp_path)
    pipeline, annotator = server.add("pipeline", "pipeline"), server.add("annotator", "annotator")
    as_pipeline = {"Authorization": f"Bearer {pipeline}", "Idempotency-Key": "key"}
    server.start()
    url = f"{server.url}/v1/annotation-batches"
    batch_id = httpx.post(url, json=batch(3000), headers=as_pipeline, trust_env=False).json()["batch_id"]
    acknowledged: list[str] = []
    for round_ in range(1, 4):
        worker = threading.Thread(target=_label_until_killed, args=(server, annotator, acknowledged))
        worker.start()
        while len(acknowledged) < 15 * round_ and worker.is_alive():
            worker.join(0.01)
        assert server.kill(signal.SIGKILL) == -signal.SIGKILL
        worker.join()
        server.start()
    found = httpx.get(f"{url}/{batch_id}/labels", headers=as_pipeline, trust_env=False).json()
    server.kill(signal.SIGTERM)
    stored = {label["label_id"] for label in found["labels"]}
    assert len(acknowledged) >= 45
    assert set(acknowledged) <= stored
    assert len(stored) <= len(acknowledged) + 3  # one a kill may be written without its answer having left
    assert found["mark"] == len(stored)


def test_a_restarted_service_shows_the_same_task_in_the_same_order(world: World) -> None:
    world.made(batch(5))
    first = world.next()["task"]
    world.service.database.close()
    reopened = world.open()
    pseudonym = reopened.identities.pseudonym_of(reopened.accounts.of_token(world.tokens["annotator"]))  # type: ignore[arg-type]
    again = next_task(reopened.database, Desk(Annotator(pseudonym, "human", "human"), world.clock(), 60.0)).shown
    assert again is not None
    assert again.blind() == {key: value for key, value in first.items() if key != "label"}


def test_another_pseudonym_key_is_refused_at_the_start(world: World) -> None:
    (world.folder / "key").write_text("ab" * 32, "ascii")
    with pytest.raises(ConfigurationError, match="another key"):
        world.open()


def test_a_lost_pseudonym_key_is_not_made_anew(world: World) -> None:
    world.next()
    (world.folder / "key").unlink()
    with pytest.raises(ConfigurationError, match="restore it"):
        world.open()


def test_the_migrations_make_the_tables_that_the_code_uses(world: World) -> None:
    with world.service.database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
