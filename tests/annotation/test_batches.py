"""Batches: made once, refused when they hold what annotators must not know."""

from typing import Any

import pytest

from include.domain.canonical import digest
from tests.annotation.support import RUBRIC, World, batch, gold, prompt, task


def test_a_batch_says_how_its_tasks_are_dealt_out(world: World) -> None:
    receipt = world.create(batch(10, human=3, verifier="rest")).json()
    assert (receipt["tasks"], receipt["human"], receipt["verifier"], receipt["labels_wanted"]) == (10, 3, 7, 10)


def test_the_same_key_and_body_is_the_same_batch(world: World) -> None:
    first, again = world.create(batch()), world.create(batch())
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert len(world.ask("pipeline", "GET", "/v1/annotation-batches").json()["batches"]) == 1


def test_the_same_key_with_another_body_is_refused(world: World) -> None:
    world.made(batch(4))
    response = world.create(batch(5))
    assert (response.status_code, response.json()["error"]["code"]) == (409, "idempotency_conflict")


def test_a_batch_without_a_key_is_refused(world: World) -> None:
    response = world.ask("pipeline", "POST", "/v1/annotation-batches", json=batch())
    assert response.status_code == 422
    assert "Idempotency-Key" in response.json()["error"]["message"]


def test_a_rubric_version_means_one_text(world: World) -> None:
    world.made(batch())
    response = world.create(batch(rubric={**RUBRIC, "text": "Shorter is better."}), key="key-2")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "rubric_changed")


def _with_prompt(**changes: Any) -> dict[str, Any]:
    return batch(tasks=[task(1, prompt={**prompt("What?"), **changes})])


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (_with_prompt(reference={"verifier": "arithmetic", "verifier_version": "1", "expected": "4"}), "reference"),
        (_with_prompt(reference=None), "reference"),
        (_with_prompt(pii="unknown"), "personal data"),
        (_with_prompt(pii="refused"), "personal data"),
        (_with_prompt(source="a file"), "source"),
        (_with_prompt(prompt_id=digest("prompt", "another")), "not the digest"),
        (batch(tasks=[task(1, candidate_a={"candidate_id": "c", "response_text": "x", "policy_checkpoint": "p"})]), "policy_checkpoint"),
        (batch(tasks=[task(1, candidate_a={"candidate_id": "c", "response_text": "x", "random_seed": 4})]), "random_seed"),
        (batch(tasks=[task(1, candidate_a=task(1)["candidate_b"])]), "itself"),
        (batch(tasks=[task(1), task(1, candidate_a=task(1)["candidate_b"], candidate_b=task(1)["candidate_a"])]), "twice"),
        (batch(tasks=[]), "at least 1"),
        (batch(purpose="training"), "purpose"),
        (batch(4, human=2, verifier=1), "do not make up 4"),
        (batch(4, human=5, verifier="rest"), "do not make up 4"),
        (batch(4, human="rest", verifier="rest"), "only one"),
        (batch(purpose="gold"), "gold verdict"),
        (batch(tasks=[gold(1)]), "gold_items"),
        (batch(gold_items=[task(9)]), "gold verdict"),
        (batch(overlap={"share": 1.5, "annotators": 2}), "overlap"),
    ],
)
def test_what_must_not_come_in_is_refused_by_name(world: World, body: dict[str, Any], word: str) -> None:
    response = world.create(body)
    assert response.status_code == 422, response.text
    assert word in response.json()["error"]["message"]
    assert world.ask("pipeline", "GET", "/v1/annotation-batches").json()["batches"] == []


def test_a_refusal_never_repeats_what_was_sent(world: World) -> None:
    body = _with_prompt(reference={"verifier": "arithmetic", "verifier_version": "1", "expected": "SECRET-ANSWER"})
    assert "SECRET-ANSWER" not in world.create(body).text


def test_a_lone_surrogate_is_refused(world: World) -> None:
    raw = b'{"purpose":"train","rubric":{"rubric_id":"r","version":"r@1","text":"\\ud800","dimensions":[],"reason_codes":[]},'
    raw += b'"tasks":[],"assignment":{"human":0,"verifier":0}}'
    response = world.ask(
        "pipeline", "POST", "/v1/annotation-batches", content=raw, headers={"Idempotency-Key": "k", "Content-Type": "application/json"}
    )
    assert response.status_code == 422


def test_masked_prompts_are_taken(world: World) -> None:
    assert world.create(_with_prompt(pii="masked")).status_code == 201


def test_a_share_of_the_peoples_tasks_goes_to_several(world: World) -> None:
    receipt = world.create(batch(10, human=8, verifier="rest", overlap={"share": 0.25, "annotators": 3})).json()
    assert receipt["labels_wanted"] == 2 + 6 * 1 + 2 * 3
    assert world.progress(receipt["batch_id"])["tasks"]["overlapping"] == 2


def test_a_closed_batch_hands_out_nothing_but_takes_open_work(world: World) -> None:
    batch_id = world.made(batch(3))
    shown = world.next()["task"]
    closed = world.ask("pipeline", "POST", f"/v1/annotation-batches/{batch_id}/close")
    assert closed.json()["closed_at"] == "2026-03-01T09:30:00.000000Z"
    assert world.next()["task"] is None
    assert world.next(batch_id=batch_id)["task"] is None
    assert world.label("annotator", shown["task_id"]).status_code == 201


def test_an_unknown_batch_is_not_found(world: World) -> None:
    for path in ("", "/labels"):
        assert world.ask("pipeline", "GET", f"/v1/annotation-batches/nothing{path}").status_code == 404
    assert world.ask("annotator", "GET", "/v1/annotation-tasks/next", params={"batch_id": "nothing"}).status_code == 404
