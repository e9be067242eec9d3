"""A later run on the same candidates: what an earlier one took does not grow too old, and a batch that was given up is closed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from include.flows import data_tasks, label_sensor, preference_tasks
from include.flows.errors import FlowError, NoAnswer, RubricInDoubt
from include.flows.label_sensor import LabelTrigger
from tests.annotation.support import World
from tests.flows.conftest import Plane
from tests.flows.test_earlier_batches import assistant, candidates, change, waited  # noqa: F401  the fixture
from tests.flows.test_people_reach import WRITER, control, people  # noqa: F401  the fixtures


@pytest.fixture
def batch(assistant: Plane, people: World, tmp_path: Path) -> dict[str, Any]:  # noqa: F811
    datasets = data_tasks.build(assistant.run(), WRITER)
    generated = candidates(datasets, "sha256:" + "1" * 64, tmp_path / "first")
    return preference_tasks.open_batch(assistant.run(auto=False), generated, datasets)


def label(people: World, batch: dict[str, Any], count: int | None = None) -> None:  # noqa: F811
    while (count is None or count > 0) and (shown := people.next("annotator", batch["batch_id"])["task"]):
        assert people.label("annotator", shown["task_id"], "left").status_code == 201
        count = None if count is None else count - 1


def test_a_refresh_a_week_later_takes_the_same_labels_again_or_says_that_nothing_is_new(
    assistant: Plane, people: World, batch: dict[str, Any]  # noqa: F811
) -> None:  # fmt: skip
    people.clock.moment = datetime.now(UTC) - timedelta(days=8)
    label(people, batch)
    with pytest.raises(NoAnswer, match="nothing younger will come"):
        waited(assistant, batch, "manual__1")
    change(assistant, "annotation", max_age_hours=1000)
    first = waited(assistant, batch, "manual__1")
    change(assistant, "annotation", max_age_hours=168)
    assert waited(assistant, batch, "scheduled__2") == first
    with pytest.raises(AirflowSkipException, match="no new input"):
        waited(assistant, batch, "asset__3", new_only=True)


def test_what_people_have_not_got_to_is_given_up_once_nothing_comes_and_the_batch_is_closed(
    assistant: Plane, people: World, batch: dict[str, Any]  # noqa: F811
) -> None:  # fmt: skip
    people.clock.moment = datetime.now(UTC) - timedelta(hours=3)
    label(people, batch, 25)
    with pytest.raises(TaskDeferred):
        waited(assistant, batch, "manual__1")
    change(assistant, "annotation", settle_hours=4)
    with pytest.raises(TaskDeferred):
        waited(assistant, batch, "manual__1")
    change(assistant, "annotation", settle_hours=2)
    frozen = waited(assistant, batch, "manual__1")
    assert people.progress(batch["batch_id"])["closed_at"]
    assert people.progress(batch["batch_id"])["missing"]["human"] > 0
    assert people.next("annotator", batch["batch_id"])["task"] is None
    change(assistant, "annotation", settle_hours=None)
    assert waited(assistant, batch, "scheduled__2") == frozen, "nobody is waited for in a closed batch"


def test_the_end_of_the_time_is_enough_too_where_a_settled_time_would_be(
    assistant: Plane, people: World, batch: dict[str, Any]  # noqa: F811
) -> None:  # fmt: skip
    people.clock.moment = datetime.now(UTC)
    label(people, batch, 25)
    change(assistant, "annotation", settle_hours=4)
    trigger = LabelTrigger(batch["batch_id"], "tiny", deadline=0.0)
    assert "4 h without a new label" in trigger._look()[0]
    assert trigger._look(True) == []
    change(assistant, "annotation", settle_hours=4, min_labels=26)
    assert trigger._look(True)[0].startswith("1 more labels")


def test_a_closed_batch_that_lost_labels_is_not_waited_for(
    assistant: Plane, people: World, batch: dict[str, Any]  # noqa: F811
) -> None:  # fmt: skip
    people.clock.moment = datetime.now(UTC) - timedelta(hours=3)
    label(people, batch, 22)
    change(assistant, "annotation", settle_hours=2)
    waited(assistant, batch, "manual__1")
    for gone in people.snapshot(batch["batch_id"])["labels"][:3]:
        people.ask("pipeline", "POST", f"/v1/labels/{gone['label_id']}/withdraw", json={"reason": "a slip"})
    with pytest.raises(NoAnswer, match=r"is closed, .* it lacks 1 more labels \(19 of 20\)\. Open a new one: .*rerun_salt"):
        waited(assistant, batch, "scheduled__2")


def test_a_closed_batch_whose_rubric_is_in_doubt_says_so_at_once(
    assistant: Plane, people: World, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    people.clock.moment = datetime.now(UTC) - timedelta(hours=3)
    label(people, batch, 22)
    change(assistant, "annotation", settle_hours=2)
    waited(assistant, batch, "manual__1")
    change(assistant, "annotation", min_kappa=0.6)
    monkeypatch.setattr(label_sensor, "rubric_doubt", lambda found, wanted: ["Cohen's kappa 0.20"])
    with pytest.raises(RubricInDoubt, match="Cohen's kappa 0.20. Say in the rubric"):
        waited(assistant, batch, "scheduled__2")


def test_a_batch_that_is_not_taken_after_all_stays_open(
    assistant: Plane, people: World, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    people.clock.moment = datetime.now(UTC) - timedelta(hours=3)
    label(people, batch, 22)
    change(assistant, "annotation", settle_hours=2)
    monkeypatch.setattr(label_sensor, "rubric_doubt", lambda found, wanted: ["Cohen's kappa 0.20"])
    with pytest.raises(FlowError, match="got labels since it was last looked at"):
        waited(assistant, batch, "manual__1")
    assert not people.progress(batch["batch_id"])["closed_at"]
