"""Progress: counts, shares, agreement and what is missing."""

import pytest

from tests.annotation.support import World, batch, good_side


def _label_next(world: World, name: str, verdict: str) -> None:
    shown = world.next(name)["task"]
    side = good_side(shown)
    other = {"left": "right", "right": "left"}[side]
    world.label(name, shown["task_id"], {"A": side, "B": other}.get(verdict, verdict))


def test_verdicts_are_counted_by_kind_and_shared_out(world: World) -> None:
    batch_id = world.made(batch(6, human=2, verifier="rest"))
    for name, verdict in (
        ("annotator", "A"),
        ("verifier", "B"),
        ("verifier", "tie"),
        ("verifier", "both_bad"),
        ("verifier", "cannot_judge"),
    ):
        _label_next(world, name, verdict)
    found = world.progress(batch_id)
    assert found["labels"]["by_verdict"] == {"A": 1, "B": 1, "tie": 1, "both_bad": 1, "cannot_judge": 1}
    assert found["labels"]["by_kind"]["human"] == {"A": 1, "B": 0, "tie": 0, "both_bad": 0, "cannot_judge": 0}
    assert found["decided_share"] == pytest.approx(0.4)
    assert found["decided_share_by_kind"] == {"human": 1.0, "verifier": 0.25}
    assert (found["tie_share"], found["both_bad_share"], found["cannot_judge_share"]) == (0.2, 0.2, 0.2)
    assert found["missing"] == {"total": 1, "human": 1, "verifier": 0}
    assert found["complete"] is False


def test_an_empty_batch_has_no_shares(world: World) -> None:
    found = world.progress(world.made(batch(2)))
    shares = [found[f"{name}_share"] for name in ("decided", "tie", "both_bad", "cannot_judge", "left_win")]
    assert shares == [None] * 5
    assert (found["freshest_label_at"], found["oldest_label_at"]) == (None, None)


def test_left_wins_are_counted_by_what_was_shown(world: World) -> None:
    batch_id = world.made(batch(8))
    for verdict in ("left", "left", "left", "right", "tie"):
        world.label("annotator", world.next()["task"]["task_id"], verdict)
    found = world.progress(batch_id)
    assert (found["left_wins"], found["right_wins"], found["left_win_share"]) == (3, 1, 0.75)


def test_agreement_of_one_annotator_is_not_applicable(world: World) -> None:
    batch_id = world.made(batch(3))
    world.work()
    assert world.progress(batch_id)["agreement"] == {
        "applicable": False,
        "tasks": 0,
        "annotators": 0,
        "comparisons": 0,
        "agreeing": 0,
        "share": None,
        "kappa": None,
        "alpha": None,
    }


def test_agreement_counts_candidates_not_sides(world: World) -> None:
    for name in ("second", "third"):
        world.add(name, "annotator")
    batch_id = world.made(batch(2, overlap={"share": 1.0, "annotators": 3}))
    for name, verdict in (("annotator", "A"), ("second", "A"), ("third", "B")):
        for _ in range(2):
            _label_next(world, name, verdict)
    found = world.progress(batch_id)["agreement"]
    assert (found["tasks"], found["annotators"], found["comparisons"], found["agreeing"]) == (2, 3, 6, 2)
    assert found["share"] == pytest.approx(1 / 3)


def test_times_of_labels_are_told(world: World) -> None:
    batch_id = world.made(batch(2))
    for _ in range(2):
        world.clock.forward(60)
        _label_next(world, "annotator", "A")
    found = world.progress(batch_id)
    assert (found["oldest_label_at"], found["freshest_label_at"]) == ("2026-03-01T09:31:00.000000Z", "2026-03-01T09:32:00.000000Z")


def test_the_status_page_shows_the_batches_to_the_pipeline(world: World) -> None:
    batch_id = world.made(batch(4))
    _label_next(world, "annotator", "tie")
    world.http.get("/login")
    form = {"secret": world.http.cookies["annotation_login"], "token": world.tokens["pipeline"]}
    assert world.http.post("/login", data=form).headers["location"] == "/"
    page = world.http.get("/").text
    assert batch_id in page
    assert "1 of 4 labels; missing: 3 by people" in page
    assert "not applicable" in page
