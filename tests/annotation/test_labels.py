"""Labels: left and right become candidates, and history is only added to."""

import sqlite3

import pytest

from include.domain.records import Label
from tests.annotation.support import World, batch, good_side


def _stored(world: World, batch_id: str) -> list[Label]:
    return [Label.from_json(label) for label in world.snapshot(batch_id)["labels"]]


def test_the_side_seen_is_resolved_to_the_candidate(world: World) -> None:
    batch_id = world.made(batch(40))
    while shown := world.next()["task"]:
        world.label("annotator", shown["task_id"], good_side(shown))
    labels = _stored(world, batch_id)
    assert len(labels) == 40
    assert {label.verdict for label in labels} == {"A"}
    assert all(label.chosen_candidate_id == label.candidate_a_id for label in labels)
    assert {label.swap_flag for label in labels} == {True, False}


def test_the_recorded_order_is_the_one_that_was_shown(world: World) -> None:
    batch_id = world.made(batch(20))
    seen = {}
    while shown := world.next()["task"]:
        seen[shown["task_id"]] = good_side(shown)
        world.label("annotator", shown["task_id"], "tie")
    for label in _stored(world, batch_id):
        left_is_a = label.display_order[0] == label.candidate_a_id
        assert left_is_a == (seen[label.task_id] == "left")
        assert label.swap_flag == (not left_is_a)


@pytest.mark.parametrize("verdict", ["tie", "both_bad", "cannot_judge"])
def test_undecided_verdicts_choose_nobody(world: World, verdict: str) -> None:
    batch_id = world.made(batch(1))
    world.work(verdict=verdict)
    (label,) = _stored(world, batch_id)
    assert (label.verdict, label.chosen_candidate_id, label.rejected_candidate_id) == (verdict, None, None)


def test_a_label_holds_rubric_kind_pseudonym_scores_and_time(world: World) -> None:
    batch_id = world.made(batch(1))
    shown = world.next()["task"]
    world.clock.forward(5)
    more = {"reason_codes": ["wrong_result"], "dimension_scores": {"factuality": 5, "clarity": 3}}
    world.label("annotator", shown["task_id"], "left", **more)
    (label,) = _stored(world, batch_id)
    assert label.rubric_version == "worked-answers@1"
    assert label.annotator_kind == "human"
    assert label.annotator_id.startswith("ann_")
    assert label.reason_codes == ("wrong_result",)
    assert label.dimension_scores == {"factuality": 5, "clarity": 3}
    assert label.created_at == "2026-03-01T09:30:05.000000Z"


@pytest.mark.parametrize(("role", "kind"), [("annotator", "demo"), ("verifier", "judge"), ("verifier", "verifier")])
def test_the_kind_of_the_account_marks_its_labels(world: World, role: str, kind: str) -> None:
    name = world.add("marked", role, kind)
    batch_id = world.made(batch(1) if role == "annotator" else batch(1, human=0, verifier="rest"))
    world.work(name)
    assert [label.annotator_kind for label in _stored(world, batch_id)] == [kind]


def test_the_same_label_again_writes_nothing(world: World) -> None:
    batch_id = world.made(batch(1))
    shown = world.next()["task"]
    first = world.label("annotator", shown["task_id"], "left")
    again = world.label("annotator", shown["task_id"], "left")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert world.progress(batch_id)["mark"] == 1


def test_another_label_without_naming_the_first_is_refused(world: World) -> None:
    world.made(batch(1))
    shown = world.next()["task"]
    world.label("annotator", shown["task_id"], "left")
    response = world.label("annotator", shown["task_id"], "right")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "already_labelled")


def test_a_correction_supersedes_and_keeps_the_first(world: World) -> None:
    batch_id = world.made(batch(1))
    shown = world.next()["task"]
    first = world.label("annotator", shown["task_id"], "left").json()["label_id"]
    second = world.label("annotator", shown["task_id"], "both_bad", supersedes=first)
    assert second.status_code == 201
    (label,) = _stored(world, batch_id)
    assert (label.verdict, label.supersedes) == ("both_bad", first)
    assert world.progress(batch_id)["labels"]["superseded"] == 1
    assert [label["label_id"] for label in world.snapshot(batch_id, up_to=1)["labels"]] == [first]


def test_back_to_the_first_verdict_is_a_third_label(world: World) -> None:
    batch_id = world.made(batch(1))
    shown = world.next()["task"]
    told = None
    for verdict in ("left", "right", "left"):
        response = world.label("annotator", shown["task_id"], verdict, supersedes=told)
        assert response.status_code == 201
        told = response.json()["label_id"]
    assert world.progress(batch_id)["labels"]["superseded"] == 2


def test_only_the_current_label_can_be_corrected(world: World) -> None:
    world.made(batch(1))
    shown = world.next()["task"]
    first = world.label("annotator", shown["task_id"], "left").json()["label_id"]
    world.label("annotator", shown["task_id"], "tie", supersedes=first)
    response = world.label("annotator", shown["task_id"], "right", supersedes=first)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "superseded")


@pytest.mark.parametrize(
    "bad",
    [
        {"verdict": "A"},
        {"verdict": "left", "reason_codes": ["too_long"]},
        {"verdict": "left", "reason_codes": ["wrong_result", "wrong_result"]},
        {"verdict": "left", "dimension_scores": {"style": 3}},
        {"verdict": "left", "dimension_scores": {"clarity": 6}},
        {"verdict": "left", "dimension_scores": {"clarity": True}},
        {"verdict": "cannot_judge", "dimension_scores": {"clarity": 3}},
        {"verdict": "left", "comment": "a name"},
    ],
)
def test_what_the_rubric_does_not_have_is_refused(world: World, bad: dict[str, object]) -> None:
    batch_id = world.made(batch(1))
    shown = world.next()["task"]
    response = world.ask("annotator", "POST", f"/v1/annotation-tasks/{shown['task_id']}/labels", json=bad)
    assert response.status_code == 422
    assert world.progress(batch_id)["mark"] == 0


def test_a_task_that_was_never_shown_can_not_be_labelled(world: World) -> None:
    world.add("second", "annotator")
    world.made(batch(1))
    shown = world.next("annotator")["task"]
    for path in ("/labels", ""):
        method = "POST" if path else "GET"
        response = world.ask("second", method, f"/v1/annotation-tasks/{shown['task_id']}{path}", json={"verdict": "left"})
        assert response.status_code == 404


def test_the_earlier_task_comes_back_as_it_was_shown_with_its_label(world: World) -> None:
    world.made(batch(3))
    tasks = []
    for verdict in ("left", "tie", "right"):
        shown = world.next()["task"]
        world.label("annotator", shown["task_id"], verdict)
        world.clock.forward(1)
        tasks.append(shown)
    last = world.ask("annotator", "GET", "/v1/annotation-tasks/previous").json()["task"]
    assert (last["left"], last["right"]) == (tasks[2]["left"], tasks[2]["right"])
    assert last["label"]["verdict"] == "right"
    before = world.ask("annotator", "GET", "/v1/annotation-tasks/previous", params={"before": tasks[2]["task_id"]}).json()["task"]
    assert (before["task_id"], before["label"]["verdict"]) == (tasks[1]["task_id"], "tie")
    assert world.ask("annotator", "GET", "/v1/annotation-tasks/previous", params={"before": tasks[0]["task_id"]}).json() == {"task": None}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE labels SET verdict = 'A'",
        "DELETE FROM labels",
        "UPDATE displays SET left_side = 'A'",
        "DELETE FROM displays",
        "UPDATE withdrawals SET reason = ''",
        "DELETE FROM withdrawals",
        "UPDATE rubrics SET body = ''",
        "DELETE FROM rubrics",
    ],
)
def test_history_can_not_be_changed_in_the_database(world: World, change: str) -> None:
    world.made(batch(1))
    told = world.work()
    withdrawn = world.ask("pipeline", "POST", f"/v1/labels/{told[0]['label_id']}/withdraw", json={"reason": "a test"})
    assert withdrawn.status_code == 201
    connection = sqlite3.connect(world.folder / "annotation.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(change)
    connection.close()
