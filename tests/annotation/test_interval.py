"""Labels by time: an interval over all batches, as it stood at its end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from include.annotation.interval import labels_between
from tests.annotation.support import World, batch, gold, good_side

DAY = timedelta(days=1)


def asked(world: World, since: datetime, until: datetime, name: str = "pipeline", **more: Any) -> Any:
    return world.ask(name, "GET", "/v1/labels", params={"since": since.isoformat(), "until": until.isoformat(), **more})


def between(world: World, since: datetime, until: datetime, **more: Any) -> list[dict[str, Any]]:
    response = asked(world, since, until, **more)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["labels"]
    return found


def test_an_interval_holds_its_own_labels_of_every_batch_and_none_of_its_end(world: World) -> None:
    begin = world.clock.moment
    world.made(batch(2), "one")
    world.made(batch(2), "two")
    first = world.work()
    world.clock.forward(DAY.total_seconds())
    world.made(batch(1), "three")
    (second,) = world.work()
    world.clock.forward(DAY.total_seconds())
    assert {one["label"]["label_id"] for one in between(world, begin, begin + DAY)} == {one["label_id"] for one in first}
    assert len({one["label"]["batch_id"] for one in between(world, begin, begin + DAY)}) == 2
    assert [one["label"]["label_id"] for one in between(world, begin + DAY, begin + 2 * DAY)] == [second["label_id"]]
    assert between(world, begin - DAY, begin) == []


def test_a_label_comes_with_its_lengths_its_gold_verdict_and_when_it_was_shown(world: World) -> None:
    begin = world.clock.moment
    world.made(batch(1, gold_items=[gold(7, "B")]))
    for _ in range(2):
        shown = world.next()["task"]
        world.clock.forward(30)
        assert world.label("annotator", shown["task_id"], good_side(shown)).status_code == 201
    world.clock.forward(1)
    found = {one["purpose"]: one for one in between(world, begin, world.clock.moment)}
    assert (found["train"]["gold"], found["gold"]["gold"]) == (None, "B")
    assert found["train"]["characters"] == [len("good answer 0"), len("bad answer 0")]
    seconds = [datetime.fromisoformat(one["label"]["created_at"]) - datetime.fromisoformat(one["shown_at"]) for one in found.values()]
    assert seconds == [timedelta(seconds=30)] * 2
    assert {one["label"]["verdict"] for one in found.values()} == {"A"}
    assert "good answer" not in str(found)


def test_what_was_corrected_or_withdrawn_later_stands_as_it_stood(world: World) -> None:
    begin = world.clock.moment
    world.made(batch(3))
    one, two, three = world.work(verdict="left")
    world.label("annotator", one["task_id"], "tie", supersedes=one["label_id"])
    world.clock.forward(60)
    over = world.clock.moment
    before = between(world, begin, over)
    assert sorted(found["label"]["verdict"] for found in before if found["label"]["supersedes"]) == ["tie"]
    assert len(before) == 3
    world.label("annotator", two["task_id"], "tie", supersedes=two["label_id"])
    assert world.ask("pipeline", "POST", f"/v1/labels/{three['label_id']}/withdraw", json={"reason": "misread"}).status_code == 201
    world.clock.forward(60)
    assert between(world, begin, over) == before
    assert [found["label"]["supersedes"] for found in between(world, over, world.clock.moment)] == [two["label_id"]]
    assert {found["label"]["label_id"] for found in between(world, begin, world.clock.moment)}.isdisjoint(
        {one["label_id"], two["label_id"], three["label_id"]}
    )


def test_pages_give_each_label_once_in_one_order(world: World) -> None:
    begin = world.clock.moment
    world.made(batch(7))
    for _ in range(4):
        world.label("annotator", world.next()["task"]["task_id"])
    world.clock.forward(5)
    world.work()
    world.clock.forward(1)
    whole, after, found = between(world, begin, world.clock.moment), None, []
    while True:
        page = asked(world, begin, world.clock.moment, limit=3, **({"after": after} if after else {})).json()
        found += page["labels"]
        assert len(page["labels"]) <= 3
        if (after := page["next"]) is None:
            break
    assert found == whole
    assert len(whole) == 7
    assert asked(world, begin, world.clock.moment, after="label_none").json()["error"]["code"] == "unknown_label"


def test_an_interval_that_is_not_over_or_none_is_refused(world: World) -> None:
    now = world.clock.moment
    for since, until, code in (
        (now - DAY, now + timedelta(seconds=1), "not_over"),
        (now, now, "invalid"),
        (now, now - DAY, "invalid"),
        (now.replace(tzinfo=None) - DAY, now, "invalid"),
    ):
        response = asked(world, since, until)
        assert (response.status_code, response.json()["error"]["code"]) == (422, code)


@pytest.mark.parametrize("name", ["annotator", "verifier", "admin"])
def test_only_the_pipeline_reads_labels(world: World, name: str) -> None:
    assert asked(world, world.clock.moment - DAY, world.clock.moment, name).status_code == 403


def test_an_erased_text_has_one_length_on_both_sides(world: World) -> None:
    begin = world.clock.moment
    made = world.made(batch(1))
    world.work()
    world.clock.forward(1)
    (found,) = world.snapshot(made)["labels"]
    assert world.ask("pipeline", "POST", "/v1/erasures", json={"prompt_ids": [found["prompt_id"]]}).status_code == 200
    (one,) = labels_between(world.service.database, begin, world.clock.moment, world.clock.moment)["labels"]
    assert one["characters"][0] == one["characters"][1]
