"""Who gets which task: pools, leases, overlap, gold, and many at once."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.annotation.support import World, batch, gold


def test_asking_again_gives_the_same_task_and_order(world: World) -> None:
    world.made(batch(20))
    first = world.next()
    assert all(world.next()["task"] == first["task"] for _ in range(5))


def test_people_and_the_verifier_get_their_own_tasks(world: World) -> None:
    batch_id = world.made(batch(10, human=4, verifier="rest"))
    assert len(world.work("annotator")) == 4
    assert len(world.work("verifier")) == 6
    assert world.progress(batch_id)["complete"] is True


def test_two_annotators_never_get_the_same_task(world: World) -> None:
    world.add("second", "annotator")
    world.made(batch(2))
    first, second = world.next("annotator")["task"], world.next("second")["task"]
    assert first["task_id"] != second["task_id"]


def test_when_all_is_taken_the_reason_is_told(world: World) -> None:
    world.add("second", "annotator")
    world.made(batch(1))
    shown = world.next("annotator")["task"]
    assert world.next("second")["reason"] == "all_taken"
    world.label("annotator", shown["task_id"])
    assert world.next("second")["reason"] == "none_left"


def test_a_task_left_for_too_long_goes_to_somebody_else(world: World) -> None:
    world.add("second", "annotator")
    world.made(batch(1))
    shown = world.next("annotator")["task"]
    world.clock.forward(world.config.lease_s + 1)
    assert world.next("second")["task"]["task_id"] == shown["task_id"]
    late = world.label("annotator", shown["task_id"])
    assert (late.status_code, late.json()["error"]["code"]) == (409, "lease_lost")
    assert world.next("annotator")["task"] is None
    assert world.label("second", shown["task_id"]).status_code == 201


def test_a_late_answer_counts_when_nobody_else_took_the_task(world: World) -> None:
    world.made(batch(1))
    shown = world.next()["task"]
    world.clock.forward(world.config.lease_s + 1)
    assert world.label("annotator", shown["task_id"]).status_code == 201


def test_overlapping_tasks_go_to_different_people_and_to_no_more_than_asked(world: World) -> None:
    for name in ("second", "third"):
        world.add(name, "annotator")
    batch_id = world.made(batch(4, overlap={"share": 1.0, "annotators": 2}))
    done = [len(world.work(name)) for name in ("annotator", "second", "third")]
    assert done == [4, 4, 0]
    labels = world.snapshot(batch_id)["labels"]
    assert len({(label["task_id"], label["annotator_id"]) for label in labels}) == 8


def test_progress_counts_what_is_mine_to_do(world: World) -> None:
    world.made(batch(3))
    shown = world.next()
    assert shown["progress"] == {"done": 0, "of": 3}
    world.label("annotator", shown["task"]["task_id"])
    assert world.next()["progress"] == {"done": 1, "of": 3}


def test_progress_leaves_out_what_others_are_at_until_they_give_up(world: World) -> None:
    world.add("second", "annotator")
    world.made(batch(3))
    world.next("annotator")
    assert world.next("second")["progress"] == {"done": 0, "of": 2}
    world.clock.forward(world.config.lease_s + 1)
    assert world.next("second")["progress"] == {"done": 0, "of": 3}


def test_progress_leaves_out_what_was_taken_back(world: World) -> None:
    batch_id = world.made(batch(2, overlap={"share": 1.0, "annotators": 2}))
    label = world.label("annotator", world.next()["task"]["task_id"]).json()
    world.ask("pipeline", "POST", f"/v1/labels/{label['label_id']}/withdraw", json={"reason": "a test"})
    assert world.next()["progress"] == {"done": 0, "of": 1}
    world.work()
    assert world.next()["progress"] == {"done": 1, "of": 1}
    assert world.progress(batch_id)["missing"]["human"] == 3


def test_batches_are_served_oldest_first_and_by_name(world: World) -> None:
    old = world.made(batch(1))
    world.clock.forward(60)
    new = world.made(batch(1, purpose="calibration"), key="key-2")
    first = world.next()["task"]
    world.label("annotator", first["task_id"])
    assert [len(world.snapshot(name)["labels"]) for name in (old, new)] == [1, 0]
    assert world.next(batch_id=new)["task"]["task_id"] != first["task_id"]


def test_gold_items_come_unseen_among_the_work_and_stay_out_of_the_batch(world: World) -> None:
    receipt = world.create(batch(3, gold_items=[gold(100), gold(101, verdict="tie")])).json()
    assert len(world.work()) == 5
    assert len(world.snapshot(receipt["batch_id"])["labels"]) == 3
    gold_snapshot = world.snapshot(receipt["gold_batch_id"])
    assert (gold_snapshot["purpose"], len(gold_snapshot["labels"])) == ("gold", 2)


def test_gold_goes_to_every_annotator_and_is_counted_for_each(world: World) -> None:
    world.add("second", "annotator")
    receipt = world.create(batch(1, gold_items=[gold(100, verdict="both_bad")])).json()
    world.work("annotator", "both_bad")
    world.work("second", "tie")
    found = world.progress(receipt["batch_id"])["gold"]
    assert (found["items"], found["labels"], found["right"]) == (1, 2, 1)
    assert sorted(counts["right"] for counts in found["by_annotator"].values()) == [0, 1]


def test_mixed_in_gold_can_not_be_asked_for_by_its_own_batch(world: World) -> None:
    receipt = world.create(batch(1, gold_items=[gold(100)])).json()
    path = "/v1/annotation-tasks/next"
    assert world.ask("annotator", "GET", path, params={"batch_id": receipt["gold_batch_id"]}).status_code == 404


def test_a_gold_batch_of_its_own_counts_right_answers(world: World) -> None:
    batch_id = world.made(batch(purpose="gold", tasks=[gold(1, verdict="tie"), gold(2, verdict="both_bad")]))
    world.work(verdict="tie")
    assert world.progress(batch_id)["gold"]["right"] == 1


def _work_through(world: World, name: str) -> list[int]:
    codes = []
    while shown := world.next(name)["task"]:
        codes.append(world.label(name, shown["task_id"]).status_code)
    return codes


def test_many_at_once_never_share_a_task_and_lose_none(world: World) -> None:
    """Six people, each in two windows: the second window may repeat a label (200), nothing is labelled twice."""
    names = [world.add(f"annotator-{i}", "annotator") for i in range(6)]
    batch_id = world.made(batch(60))
    with ThreadPoolExecutor(12) as pool:
        runs = pool.map(lambda name: _work_through(world, name), names * 2)
        codes = Counter(code for run in runs for code in run)
    labels = world.snapshot(batch_id)["labels"]
    assert len(labels) == len({label["task_id"] for label in labels}) == 60
    assert codes[201] == 60
    assert set(codes) <= {200, 201}
