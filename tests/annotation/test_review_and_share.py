"""Who is listed for review by gold items, and how many tasks of a batch one annotator is given."""

from __future__ import annotations

import pytest

from include.annotation.requests import BatchIn
from tests.annotation.support import World, batch, gold, good_side

REVIEW = {"min_gold_accuracy": 0.75, "min_gold_labels": 4}


def all_of(world: World, name: str, batch_id: str, *, careful: bool) -> int:
    """Labels all there is: the good answer each time, or always the other one."""
    done = 0
    while shown := world.next(name, batch_id)["task"]:
        right = good_side(shown)
        said = right if careful else {"left": "right", "right": "left"}[right]
        assert world.label(name, shown["task_id"], said).status_code == 201
        done += 1
    return done


def test_who_misses_too_many_gold_items_is_listed_and_others_are_not(world: World) -> None:
    careless, careful = world.add("careless", "annotator", "human"), "annotator"
    items = [gold(number) for number in range(100, 104)]
    batch_id = world.made(batch(6, gold_items=items, review=REVIEW, overlap={"share": 1.0, "annotators": 2}))
    assert world.progress(batch_id)["review"] == {**REVIEW, "annotators": []}
    assert all_of(world, careful, batch_id, careful=True) == 10
    assert all_of(world, careless, batch_id, careful=False) == 10
    found = world.progress(batch_id)
    (listed,) = found["review"]["annotators"]
    assert found["gold"]["by_annotator"][listed] == {"labels": 4, "right": 0}
    assert {who for who in found["gold"]["by_annotator"] if who != listed} == set(found["annotators"]) - {listed}
    assert (found["agreement"]["share"], found["agreement"]["kappa"]) == (0.0, pytest.approx(0.0))


def test_too_few_gold_labels_list_nobody_and_a_batch_that_asks_for_nothing_has_no_review(world: World) -> None:
    batch_id = world.made(batch(2, gold_items=[gold(100)], review=REVIEW))
    all_of(world, "annotator", batch_id, careful=False)
    assert world.progress(batch_id)["review"]["annotators"] == []
    assert world.progress(world.made(batch(1), "key-2"))["review"] is None


def test_one_annotator_gets_no_more_than_their_share_and_gold_does_not_count(world: World) -> None:
    other = world.add("other", "annotator", "human")
    body = batch(5, gold_items=[gold(100), gold(101)], assignment={"human": "rest", "verifier": 0, "per_annotator": 3})
    batch_id = world.made(body)
    assert 3 <= all_of(world, "annotator", batch_id, careful=True) <= 5
    counts = world.progress(batch_id)["annotators"].values()
    assert [count["labels"] for count in counts] == [3]
    assert world.next("annotator", batch_id)["task"] is None
    all_of(world, other, batch_id, careful=True)
    assert world.progress(batch_id)["complete"]


def test_the_share_is_no_affair_of_the_verifier(world: World) -> None:
    batch_id = world.made(batch(4, human=0, verifier="rest", assignment={"human": 0, "verifier": "rest", "per_annotator": 1}))
    assert all_of(world, "verifier", batch_id, careful=True) == 4


def test_a_batch_that_uses_neither_has_the_digest_it_always_had() -> None:
    plain = BatchIn.model_validate(batch(1)).to_body()
    assert set(plain) == {"purpose", "rubric", "tasks", "assignment", "overlap", "gold_items"}
    assert set(plain["assignment"]) == {"human", "verifier"}
    asked = BatchIn.model_validate(batch(1, gold_items=[gold(9)], review=REVIEW)).to_body()
    assert asked["review"] == REVIEW


def test_the_status_page_lists_annotators_their_gold_and_who_is_held_for_review(world: World) -> None:
    batch_id = world.made(batch(40, gold_items=[gold(number) for number in range(100, 105)], review=REVIEW))
    world.work("annotator", "left", batch_id)
    who = next(iter(world.progress(batch_id)["annotators"]))
    page = world.http.get("/login")
    secret = page.text.split('name="secret" value="')[1].split('"')[0]
    world.http.post("/login", data={"secret": secret, "token": world.tokens["admin"]})
    html = world.http.get("/").text
    right = world.progress(batch_id)["gold"]["by_annotator"][who]["right"]
    assert who in html
    assert f"{right} of 5" in html
    assert "Kappa, alpha" in html
    assert ("held for review" in html) == (right < 0.75 * 5)
    assert "one-sided" in html, "forty wins of the left are no chance"


def test_who_is_kept_out_of_a_batch_is_given_nothing_of_it_and_others_are(world: World) -> None:
    other = world.add("other", "annotator", "human")
    first = world.made(batch(1), "key-0")
    all_of(world, "annotator", first, careful=True)
    (who,) = world.progress(first)["annotators"]
    body = batch(3, gold_items=[gold(100)], purpose="evaluation", assignment={"human": "rest", "verifier": 0, "not_by": [who]})
    batch_id = world.made(body)
    assert world.next("annotator", batch_id)["task"] is None
    assert world.next("annotator")["task"] is None
    assert all_of(world, other, batch_id, careful=True) == 4
    assert who not in world.progress(batch_id)["annotators"]
    assert world.create(body).json()["batch_id"] == batch_id
