"""Snapshots: the same mark gives the same labels and digest, whatever happened since."""

from include.domain.canonical import digest_rows
from include.domain.records import Label, record_digest
from tests.annotation.support import World, batch


def _withdraw(world: World, label_id: str) -> None:
    response = world.ask("pipeline", "POST", f"/v1/labels/{label_id}/withdraw", json={"reason": "wrong rubric read"})
    assert response.status_code == 201, response.text


def annotators(world: World, batch_id: str) -> set[str]:
    return {label["annotator_id"] for label in world.snapshot(batch_id)["labels"]}


def test_a_mark_gives_the_same_digest_after_more_labels_corrections_and_withdrawals(world: World) -> None:
    batch_id = world.made(batch(4))
    kept, told = (world.label("annotator", world.next()["task"]["task_id"], "left").json() for _ in range(2))
    frozen = world.snapshot(batch_id)
    assert (frozen["mark"], len(frozen["labels"])) == (2, 2)
    world.label("annotator", told["task_id"], "right", supersedes=told["label_id"])
    _withdraw(world, kept["label_id"])
    world.work()
    assert world.snapshot(batch_id, up_to=2) == frozen
    now = world.snapshot(batch_id)
    assert now["mark"] == 6
    assert now["digest"] != frozen["digest"]


def test_the_digest_is_over_each_labels_id_and_digest(world: World) -> None:
    batch_id = world.made(batch(3))
    world.work()
    found = world.snapshot(batch_id)
    labels = [Label.from_json(label) for label in found["labels"]]
    assert [label.label_id for label in labels] == sorted(label.label_id for label in labels)
    rows = [{"label_id": label.label_id, "label_digest": record_digest("label", label)} for label in labels]
    assert found["digest"] == digest_rows("label-snapshot", rows)


def test_flipping_one_label_changes_the_digest(world: World) -> None:
    batch_id = world.made(batch(3))
    told = world.work(verdict="left")
    before = world.snapshot(batch_id)["digest"]
    world.label("annotator", told[0]["task_id"], "right", supersedes=told[0]["label_id"])
    assert world.snapshot(batch_id)["digest"] != before


def test_a_mark_that_is_not_there_yet_is_refused(world: World) -> None:
    batch_id = world.made(batch(1))
    response = world.ask("pipeline", "GET", f"/v1/annotation-batches/{batch_id}/labels", params={"up_to": 1})
    assert (response.status_code, response.json()["error"]["code"]) == (422, "unknown_mark")


def test_the_empty_snapshot_has_a_digest_too(world: World) -> None:
    batch_id = world.made(batch(1))
    found = world.snapshot(batch_id)
    assert (found["mark"], found["labels"], found["digest"]) == (0, [], digest_rows("label-snapshot", []))


def test_a_withdrawn_label_is_gone_and_its_task_free_for_another(world: World) -> None:
    world.add("second", "annotator")
    batch_id = world.made(batch(1))
    told = world.work("annotator")
    assert world.next("second")["task"] is None
    _withdraw(world, told[0]["label_id"])
    progress = world.progress(batch_id)
    assert (progress["labels"]["current"], progress["labels"]["withdrawn"], progress["missing"]["human"]) == (0, 1, 1)
    assert world.next("annotator")["task"] is None
    assert len(world.work("second")) == 1
    assert world.progress(batch_id)["complete"] is True


def test_withdrawing_twice_is_one_event(world: World) -> None:
    batch_id = world.made(batch(1))
    (told,) = world.work()
    _withdraw(world, told["label_id"])
    again = world.ask("pipeline", "POST", f"/v1/labels/{told['label_id']}/withdraw", json={"reason": "once more"})
    assert (again.status_code, again.json()["reason"]) == (200, "wrong rubric read")
    assert world.progress(batch_id)["mark"] == 2


def test_all_of_an_annotator_is_withdrawn_and_nothing_of_another(world: World) -> None:
    world.add("second", "annotator")
    batch_id = world.made(batch(3, overlap={"share": 1.0, "annotators": 2}))
    first = world.work("annotator", verdict="left")
    world.label("annotator", first[0]["task_id"], "right", supersedes=first[0]["label_id"])
    (mine,) = annotators(world, batch_id)
    world.work("second")
    (other,) = annotators(world, batch_id) - {mine}
    for _ in range(2):
        answer = world.ask("pipeline", "POST", f"/v1/annotators/{mine}/withdraw", json={"reason": "they left"})
        assert (answer.status_code, len(answer.json()["withdrawals"])) == (200, 3)
    assert annotators(world, batch_id) == {other}
    listed = world.ask("pipeline", "GET", "/v1/withdrawals", params={"batch_id": batch_id}).json()["withdrawals"]
    assert [(row["batch_id"], row["reason"]) for row in listed] == [(batch_id, "they left")] * 3
    assert world.ask("pipeline", "GET", "/v1/withdrawals").json()["withdrawals"] == listed


def test_an_annotator_who_said_nothing_is_not_found(world: World) -> None:
    answer = world.ask("pipeline", "POST", "/v1/annotators/ann_nobody/withdraw", json={"reason": "they left"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_annotator")


def test_a_corrected_label_can_not_be_withdrawn_in_place_of_its_correction(world: World) -> None:
    world.made(batch(1))
    (told,) = world.work()
    world.label("annotator", told["task_id"], "tie", supersedes=told["label_id"])
    response = world.ask("pipeline", "POST", f"/v1/labels/{told['label_id']}/withdraw", json={"reason": "late"})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "superseded")


def test_a_withdrawn_label_can_not_be_corrected(world: World) -> None:
    world.made(batch(1))
    (told,) = world.work()
    _withdraw(world, told["label_id"])
    response = world.label("annotator", told["task_id"], "tie", supersedes=told["label_id"])
    assert (response.status_code, response.json()["error"]["code"]) == (409, "withdrawn")
    assert world.ask("annotator", "GET", "/v1/annotation-tasks/previous").json() == {"task": None}
