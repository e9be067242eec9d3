"""Texts that are taken out of the service: nothing of them stays readable, and everything else does."""

import sqlite3

from tests.annotation.support import World, batch, task


def erase(world: World, *numbers: int) -> int:
    ids = [task(number)["prompt"]["prompt_id"] for number in numbers]
    answer = world.ask("pipeline", "POST", "/v1/erasures", json={"prompt_ids": ids})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["tasks"])


def stored(world: World) -> str:
    connection = sqlite3.connect(world.folder / "annotation.sqlite")
    text = "\n".join(connection.iterdump())
    connection.close()
    return text


def test_the_texts_go_and_the_labels_stay(world: World) -> None:
    batch_id = world.made(batch(3))
    world.work()
    frozen = world.snapshot(batch_id)
    assert (erase(world, 1), erase(world, 1)) == (1, 1)
    text = stored(world)
    assert not [gone for gone in ("What is 1 + 1?", "good answer 1", "bad answer 1") if gone in text]
    assert "What is 2 + 2?" in text
    assert world.snapshot(batch_id) == frozen
    assert world.progress(batch_id)["complete"] is True


def test_a_task_without_its_texts_is_given_to_nobody(world: World) -> None:
    batch_id = world.made(batch(2))
    erase(world, 0)
    told = world.work()
    assert len(told) == 1
    assert world.progress(batch_id)["complete"] is True
    world.ask("pipeline", "POST", f"/v1/labels/{told[0]['label_id']}/withdraw", json={"reason": "a test"})
    assert world.progress(batch_id)["missing"]["human"] == 1
    erase(world, 1)
    assert world.progress(batch_id)["missing"]["human"] == 0
    world.add("second", "annotator")
    assert world.next("second")["task"] is None


def test_what_is_no_prompt_is_refused(world: World) -> None:
    answer = world.ask("pipeline", "POST", "/v1/erasures", json={"prompt_ids": ["' OR 1=1 --"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
