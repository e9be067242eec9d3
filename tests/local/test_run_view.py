"""A run as a person reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from local.run_view import answer_address, duration, first_failure, log_lines, run_address, stage_address, stages

NOW = datetime(2026, 3, 1, 12, 10, tzinfo=UTC)


def task(task_id: str, state: str | None, began: str | None = None, ended: str | None = None) -> dict[str, Any]:
    def moment(clock: str | None) -> str | None:
        return f"2026-03-01T{clock}Z" if clock else None

    return {"task_id": task_id, "state": state, "map_index": -1, "start_date": moment(began), "end_date": moment(ended)}


def test_stages_come_in_the_order_in_which_they_began() -> None:
    found = stages(
        [task("sft.train", "running", "12:05:00"), task("base.import_base", "success", "12:00:00", "12:01:00"), task("data.x", None)]
    )
    assert [(s.name, s.state, s.seconds(NOW)) for s in found] == [("base", "done", 60.0), ("sft", "running", 300.0)]


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["success", "failed"], "failed"),
        (["failed", "running"], "failed"),
        (["success", "awaiting_input"], "asks a person"),
        (["success", "up_for_retry"], "to be tried again"),
        (["deferred", "success"], "waiting"),
        (["success", "queued"], "about to start"),
        (["success", None], "running"),
        (["success", "skipped"], "done"),
        (["success", "upstream_failed"], "not finished"),
    ],
)
def test_a_stage_takes_the_state_that_matters_most(states: list[str | None], said: str) -> None:
    members = [task(f"release.t{i}", state, "12:00:00" if state else None, "12:01:00") for i, state in enumerate(states)]
    assert stages(members)[0].state == said


def test_a_stage_that_was_skipped_is_shown_and_one_never_reached_is_not() -> None:
    found = stages([task("release.dossier", "skipped"), task("policy.optimise", "upstream_failed", ended="12:00:00")])
    assert [(s.name, s.state) for s in found] == [("release", "skipped")]


def test_a_line_holds_state_time_and_link() -> None:
    run = run_address("http://127.0.0.1:1", "alignment_refresh", "demo-1")
    stage = stages([task("sft.train", "deferred", "12:05:00")])[0]
    line = stage.line(stage_address(run, stage), NOW)
    assert line.split() == [
        "sft",
        "waiting",
        "train",
        "5:00",
        "min",
        "http://127.0.0.1:1/dags/alignment_refresh/runs/demo-1/tasks/group/sft",
    ]


def test_links_of_a_lone_task_of_a_mapped_one_and_of_an_odd_run_id() -> None:
    run = run_address("http://h", "d", "manual__2026-03-01T12:00:00+00:00")
    assert run == "http://h/dags/d/runs/manual__2026-03-01T12%3A00%3A00%2B00%3A00"
    assert stage_address(run, stages([task("resolve", "running", "12:00:00")])[0]) == f"{run}/tasks/resolve"
    assert answer_address(run, "release.approve", 0) == f"{run}/tasks/release.approve/mapped/0/required_actions"
    assert answer_address(run, "release.approve", -1) == f"{run}/tasks/release.approve/required_actions"


def test_the_first_failure_is_the_one_to_explain() -> None:
    later = task("a.x", "failed", "12:00:00", "12:09:00")
    earlier = task("b.y", "failed", "12:00:00", "12:04:00")
    assert first_failure([later, earlier, task("c.z", "upstream_failed")]) == earlier
    assert first_failure([task("c.z", "success")]) is None


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (185, "3:05 min")])
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_last_words_of_a_log_hold_the_exception_and_no_markers() -> None:
    content = [
        {"event": "::group::Log message source details", "sources": ["a"]},
        {"event": "one"},
        {"event": "Task failed with exception", "error_detail": [{"exc_type": "IntegrityError", "exc_value": "step-20 does not verify"}]},
        {"event": "  "},
    ]
    assert log_lines(content) == ["one", "Task failed with exception", "IntegrityError: step-20 does not verify"]
    assert log_lines(content, 1) == ["IntegrityError: step-20 does not verify"]
    assert log_lines("a\nb\nc", 2) == ["b", "c"]
    assert log_lines(None) == []
