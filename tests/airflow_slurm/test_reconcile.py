"""From what queue and accounting say to one truth, moment by moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase, parse_state
from airflow_slurm.truth.reconcile import DEFAULT_GRACES, FORGOTTEN, NO_ACCOUNTING, Observation, forgotten, judge, may_be_forgotten
from airflow_slurm.truth.view import Change, Incarnation, JobView

START = JobView("90210")
ENDED = {"COMPLETED", "FAILED", "PREEMPTED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "REQUEUED"}


def queued(state: str, restarts: int = 0, reason: str = "None", code: int = 0) -> QueueRow:
    return QueueRow("90210", "90210", parse_state(state), restarts, code, 0, 10.0, 20.0, 90.0, 1, "n1", reason, "x")


def accounted(*states: str, code: int = 0) -> list[AccountingRow]:
    return [
        AccountingRow(
            "90210",
            "90210",
            parse_state(state),
            code,
            0,
            10.0 + i,
            None if state == "PENDING" else 20.0 + i,
            30.0 + i if state in ENDED else None,
            10.0,
            1,
            "n1",
            "x",
        )
        for i, state in enumerate(states)
    ]


def replay(*steps: tuple[float, QueueRow | None, list[AccountingRow] | None]) -> list[JobView]:
    view, views = START, []
    for at, queue, accounting in steps:
        view = judge(view, Observation(at, queue, True, accounting))
        views.append(view)
    return views


def test_accounting_that_lags_ends_nothing() -> None:
    views = replay(
        (6, queued("PENDING"), []),
        (18, queued("PENDING"), accounted("PENDING")),
        (60, queued("RUNNING"), accounted("RUNNING")),
        (400, None, accounted("RUNNING")),
        (430, None, accounted("COMPLETED")),
    )
    assert [view.phase for view in views] == [Phase.WAITING, Phase.WAITING, Phase.RUNNING, Phase.ENDING, Phase.SUCCEEDED]
    assert (views[-1].exit_code, views[-1].missing_since) == (0, None)


def test_a_requeued_job_goes_on_although_accounting_still_shows_the_preemption() -> None:
    views = replay(
        (0, queued("RUNNING"), accounted("RUNNING")),
        (60, queued("PENDING", 1), accounted("PREEMPTED", "PENDING")),
        (600, queued("RUNNING", 1), accounted("PREEMPTED", "RUNNING")),
        (4000, None, accounted("PREEMPTED", "COMPLETED")),
    )
    assert [view.phase for view in views] == [Phase.RUNNING, Phase.WAITING, Phase.RUNNING, Phase.SUCCEEDED]
    assert [run.state for run in views[-1].incarnations] == ["PREEMPTED", "COMPLETED"]
    assert views[-1].restarts == 1


def test_a_preempted_job_that_does_not_come_back_is_lost_and_may_be_tried_again() -> None:
    views = replay(
        (0, queued("RUNNING"), accounted("RUNNING")),
        (60, None, accounted("PREEMPTED")),
        (200, None, accounted("PREEMPTED")),
        (700, None, accounted("PREEMPTED")),
    )
    assert [view.phase for view in views] == [Phase.RUNNING, Phase.ENDING, Phase.ENDING, Phase.LOST]
    assert (views[-1].cause, views[-1].retryable) == ("preempted", True)


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL"])
def test_a_job_that_was_submitted_so_that_it_cannot_come_back_is_lost_at_once_when_it_is_pushed_out(state: str) -> None:
    graces = replace(DEFAULT_GRACES, returns=False)
    for seen in (Observation(60, None, True, accounted(state)), Observation(60, queued(state), True, accounted(state))):
        view = judge(judge(START, Observation(0, queued("RUNNING"))), seen, graces)
        # A failed node says less: its word may be a restarted controller's.
        assert view.phase is (Phase.LOST if state == "PREEMPTED" else Phase.ENDING)
    # One that came back all the same was given that later by somebody.
    again = judge(START, Observation(0, queued("RUNNING", 1)))
    assert judge(again, Observation(60, None, True, accounted("CANCELLED", "PREEMPTED")), graces).phase is Phase.ENDING


def test_a_job_that_the_queue_shows_as_pushed_out_is_lost_when_it_still_does() -> None:
    """Where Slurm puts a job back, the queue has it as waiting in the same moment (recorded); where it ends it, it shows that."""
    running = judge(START, Observation(0, queued("RUNNING")))
    once = judge(running, Observation(60, queued("PREEMPTED"), True, None))
    assert (once.phase, judge(once, Observation(120, queued("PREEMPTED"), True, None)).phase) == (Phase.ENDING, Phase.LOST)
    assert judge(once, Observation(120, queued("PENDING", 1), True, None)).phase is Phase.WAITING
    assert judge(once, Observation(120, None, True, accounted("PREEMPTED"))).phase is Phase.ENDING
    failed = judge(running, Observation(60, queued("NODE_FAIL"), True, None))
    assert judge(failed, Observation(120, queued("NODE_FAIL"), True, None)).phase is Phase.ENDING


def test_an_old_end_is_not_believed_after_a_newer_run_was_seen() -> None:
    views = replay(
        (0, queued("RUNNING", restarts=1), []),
        (10, None, accounted("FAILED")),
        (20, None, accounted("FAILED", "COMPLETED")),
    )
    assert [view.phase for view in views] == [Phase.RUNNING, Phase.ENDING, Phase.SUCCEEDED]


def test_a_job_that_nobody_knows_is_unknown_after_a_grace_and_never_failed() -> None:
    views = replay((0, queued("RUNNING"), None), (10, None, []), (100, None, []), (140, None, []))
    assert [view.phase for view in views] == [Phase.RUNNING, Phase.ENDING, Phase.ENDING, Phase.UNKNOWN]
    assert views[-1].unknown_since == 10
    assert not views[-1].ended


def test_unknown_is_left_when_the_end_shows_up_late() -> None:
    views = replay((0, None, []), (500, None, []), (510, None, accounted("FAILED", code=3)))
    assert [view.phase for view in views] == [Phase.ENDING, Phase.UNKNOWN, Phase.FAILED]
    assert (views[-1].exit_code, views[-1].unknown_since) == (3, None)


def test_a_controller_that_does_not_answer_says_nothing() -> None:
    running = judge(START, Observation(0, queued("RUNNING")))
    silent = Observation(50, queue_read=False, trouble="connect failure")
    soon = judge(running, silent)
    late = judge(soon, Observation(200, queue_read=False, trouble="connect failure"))
    assert (soon.phase, soon.unknown_since) == (Phase.RUNNING, 50)
    assert (late.phase, late.cause) == (Phase.UNKNOWN, "connect failure")
    back = judge(late, Observation(300, queued("RUNNING")))
    assert (back.phase, back.unknown_since, back.cause) == (Phase.RUNNING, None, "")


def test_accounting_that_does_not_answer_leaves_the_end_open() -> None:
    views = replay((0, queued("RUNNING"), None), (10, None, None), (200, None, None))
    assert [view.phase for view in views] == [Phase.RUNNING, Phase.ENDING, Phase.UNKNOWN]


def test_an_end_that_the_queue_shows_needs_no_accounting() -> None:
    view = replay((0, queued("FAILED", code=7), None))[0]
    assert (view.phase, view.exit_code, view.elapsed_s) == (Phase.FAILED, 7, 70.0)


def test_a_site_without_accounting_says_so() -> None:
    view = START
    for at in (0.0, 130.0):
        view = judge(view, Observation(at, None, True, None, accounting_kept=False))
    assert (view.phase, view.cause) == (Phase.UNKNOWN, NO_ACCOUNTING)


def test_what_has_ended_stays_ended() -> None:
    ended = replay((0, None, accounted("COMPLETED")))[0]
    assert judge(ended, Observation(1, queued("RUNNING"))) == ended


def test_a_new_state_of_a_newer_slurm_is_unknown_and_has_a_deadline() -> None:
    view = replay((5, queued("TELEPORTING"), None))[0]
    assert (view.phase, view.unknown_since) == (Phase.UNKNOWN, 5)


def test_the_estimated_start_of_a_waiting_job_is_shown() -> None:
    view = replay((5, queued("PENDING", reason="Priority"), None))[0]
    assert (view.estimated_start, view.start_time) == (20.0, None)
    assert view.describe() == "job 90210 PENDING (Priority) expected to start 1970-01-01 00:00 UTC on n1"


@pytest.mark.parametrize("view", [START, replay((0, None, accounted("REQUEUED", "CANCELLED by 12")))[0]])
def test_a_view_survives_json(view: JobView) -> None:
    import json

    assert JobView.from_json(json.loads(json.dumps(view.to_json()))) == view


def test_a_view_of_a_newer_version_can_be_read() -> None:
    assert JobView.from_json(START.to_json() | {"a_new_field": 1}) == START


def after_a_grace(*states: str, before: JobView = START) -> tuple[JobView, Observation]:
    """A job that neither queue nor accounting shows in a run, past the grace."""
    first = judge(before, Observation(0, None, True, accounted(*states)))
    seen = Observation(500, None, True, accounted(*states))
    return judge(first, seen), seen


@pytest.mark.parametrize("states", [(), ("PENDING",)])
def test_a_job_that_a_new_controller_does_not_know_and_nobody_saw_run_is_lost(states: tuple[str, ...]) -> None:
    view, seen = after_a_grace(*states)
    assert may_be_forgotten(view, seen)
    lost = forgotten(view, booted_at=200.0, submitted_at=100.0)
    assert (lost.phase, lost.cause, lost.retryable, lost.ended) == (Phase.LOST, FORGOTTEN, True, True)


def test_under_the_same_controller_it_stays_unknown() -> None:
    view, _ = after_a_grace()
    assert forgotten(view, booted_at=99.0, submitted_at=100.0) == view
    assert forgotten(view, booted_at=None, submitted_at=100.0) == view


def test_a_job_that_anybody_saw_run_is_not_forgotten() -> None:
    running = judge(START, Observation(0, queued("RUNNING")))
    assert not may_be_forgotten(*after_a_grace(before=running))
    assert not may_be_forgotten(*after_a_grace("RUNNING"))
    earlier = JobView("90210", history=(Change(1.0, "PENDING"), Change(2.0, "RUNNING")))
    assert not may_be_forgotten(*after_a_grace(before=earlier))


AGAIN = replace(START, state="PENDING", restarts=1, put_back_at=11.0, history=(Change(1.0, "RUNNING"), Change(2.0, "PENDING", restarts=1)))


@pytest.mark.parametrize(
    ("changed", "states", "lost"),
    [
        ({}, ("PREEMPTED", "PENDING"), True),
        # The first run's end never reached accounting, as the controller died with it; its time of submission tells that it is the first's.
        ({}, ("RUNNING",), True),
        ({"put_back_at": None}, ("RUNNING",), False),
        ({"put_back_at": 10.0}, ("RUNNING",), False),
        ({}, ("RUNNING", "PENDING"), True),
        ({}, (), True),
        # It ran again, or may have.
        ({}, ("PREEMPTED", "RUNNING"), False),
        ({"start_time": 20.0}, ("PREEMPTED", "PENDING"), False),
        ({"history": (*AGAIN.history, Change(3.0, "RUNNING", restarts=1))}, ("PREEMPTED", "PENDING"), False),
        ({"incarnations": (Incarnation(1, "COMPLETED"),)}, ("PREEMPTED", "PENDING"), False),
        ({"incarnations": (Incarnation(0, "PREEMPTED"),)}, ("PREEMPTED", "PENDING"), True),
        # Only accounting was told that it was put back: no look came by.
        ({"restarts": 0, "state": "RUNNING", "start_time": 20.0, "put_back_at": None, "history": (Change(1.0, "RUNNING"),)}, ("PREEMPTED", "PENDING"), True),
        ({"restarts": 0, "state": "RUNNING", "start_time": 20.0, "put_back_at": None, "history": (Change(1.0, "RUNNING"),)}, ("CANCELLED", "PENDING"), False),
    ],
)  # fmt: skip
def test_a_job_that_was_put_back_and_of_which_no_run_is_known_since_is_lost(
    changed: dict[str, Any], states: tuple[str, ...], lost: bool
) -> None:
    view, seen = after_a_grace(*states, before=replace(AGAIN, **changed))
    assert view.phase is Phase.UNKNOWN
    assert may_be_forgotten(view, seen) is lost


def test_what_the_runs_before_cost_is_kept_of_a_job_that_was_put_back_and_forgotten() -> None:
    rows = [replace(row, gpus=4) for row in accounted("PREEMPTED")] + accounted("RUNNING", "PENDING")[1:]
    view = judge(AGAIN, Observation(0, None, True, rows))
    lost = forgotten(judge(view, Observation(500, None, True, rows)), booted_at=200.0, submitted_at=view.put_back_at)
    assert (lost.cause, lost.lost_gpu_seconds) == (FORGOTTEN, 40.0)


def test_when_slurm_put_a_job_back_is_its_new_time_of_submission() -> None:
    first = judge(START, Observation(0, queued("RUNNING")))
    again = judge(first, Observation(60, replace(queued("PENDING", 1), submit_time=55.0)))
    assert (first.put_back_at, again.put_back_at, again.submit_time) == (None, 55.0, 10.0)
    # Of one that only accounting saw put back, it is accounting's.
    assert judge(first, Observation(60, None, True, accounted("PREEMPTED", "PENDING"))).put_back_at == 11.0
    assert judge(first, Observation(60, None, True, accounted("PREEMPTED", "RUNNING"))).put_back_at is None


def test_while_somebody_does_not_answer_nothing_is_forgotten() -> None:
    view, seen = after_a_grace()
    assert not may_be_forgotten(view, Observation(500, None, True, None))
    assert not may_be_forgotten(view, Observation(500, None, False))
    assert not may_be_forgotten(view, Observation(500, None, True, [], accounting_kept=False))
    assert not may_be_forgotten(START, seen)


def test_the_gpu_time_of_each_run_is_what_it_was_given_and_that_of_a_run_that_slurm_ended_is_lost() -> None:
    rows = [replace(row, gpus=gpus) for row, gpus in zip(accounted("PREEMPTED", "REQUEUED", "COMPLETED"), (4, None, 2), strict=True)]
    view = replay((0, queued("RUNNING", 2), accounted("RUNNING")), (60, None, rows))[-1]
    assert [(run.gpus, run.gpu_seconds, run.lost) for run in view.incarnations] == [(4, 40.0, True), (None, None, True), (2, 20.0, False)]
    assert view.lost_gpu_seconds == 40.0
    # Accounting has not heard of the last run yet: what it says of the one before is not that one's.
    late = replay((0, queued("RUNNING", 2), []), (60, queued("COMPLETED", 2), rows[:2]))[-1]
    assert [run.gpus for run in late.incarnations] == [4, None, None]
    assert JobView.from_json(view.to_json()) == view


def test_fields_of_a_newer_version_are_passed_over_at_any_depth() -> None:
    view = replace(START, incarnations=(Incarnation(0, "RUNNING"),), history=(Change(1.0, "RUNNING"),))
    value = view.to_json() | {"newer": 1}
    value["incarnations"][0]["newer"] = value["history"][0]["newer"] = 1
    assert JobView.from_json(value) == view
