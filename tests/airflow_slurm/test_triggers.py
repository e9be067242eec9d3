"""What a trigger does besides waiting: travel as JSON, share one loop, and act on a person's decision only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm import triggers
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import Receipt
from airflow_slurm.slurm.parse import queue_rows
from airflow_slurm.slurm.states import Phase
from airflow_slurm.triggers import SlurmJobTrigger, SubmitLaterTrigger, Wait, as_json, due
from airflow_slurm.truth.reconcile import NO_ACCOUNTING
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.poller import Snapshot, Watched, hub_of
from airflow_slurm.watch.waiting import ENDING_GRACE_S, due_of_tasks

from .conftest import OTHER, OWNER
from .looking import owners_of


@pytest.fixture
def wait(tmp_path: Path) -> Wait:
    """A job that somebody waits for."""
    config = {"root": str(tmp_path / "receipts")}
    return Wait("k", 1, "9912", "job-k-1", 100.0, OWNER, "airflow_slurm.file_receipts.FileReceipts", config, submitted_at=100.0)


def test_a_trigger_is_rebuilt_from_what_it_serialises(wait: Wait) -> None:
    trigger = SlurmJobTrigger("c1", as_json(wait))
    path, kwargs = trigger.serialize()
    again = SlurmJobTrigger(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == (path, kwargs)
    assert Wait.from_json(again.wait) == wait


def test_a_wait_of_a_newer_version_can_be_read(wait: Wait) -> None:
    assert Wait.from_json(as_json(wait) | {"a_new_field": 1}) == wait


def test_triggers_of_one_connection_share_a_loop(wait: Wait) -> None:
    first, second = SlurmJobTrigger("c1", as_json(wait)), SlurmJobTrigger("c1", as_json(replace(wait, job_id="1", key="other")))
    assert first.shared_stream_key() == second.shared_stream_key()
    assert SlurmJobTrigger("c2", as_json(wait)).shared_stream_key() != first.shared_stream_key()


async def test_a_job_is_watched_while_its_trigger_runs_and_no_longer(wait: Wait) -> None:
    trigger = SlurmJobTrigger("c-watch", as_json(wait))
    hub = hub_of(trigger.shared_stream_key())
    seen: list[list[str]] = []

    async def stream() -> AsyncIterator[Snapshot]:
        seen.append([job.job_id for job in hub.jobs.values()])
        yield Snapshot(200.0, frozenset({"another"}))
        yield Snapshot(201.0, frozenset({"9912"}), queue=None, trouble="no answer")

    assert [event async for event in trigger.filter_shared_stream(stream())] == []
    assert seen == [["9912"]]
    assert hub.jobs == {}


def test_a_snapshot_says_nothing_about_a_job_that_was_not_asked_for() -> None:
    assert Snapshot(1.0, frozenset({"1"}), queue={}).of(Watched("2", "x", 0.0)) is None


def test_a_row_of_another_name_is_not_about_this_job() -> None:
    row = queue_rows("7|7|RUNNING|0|0|1|1|1|1|n1|None|newer-job\n")[0]
    snapshot = Snapshot(1.0, frozenset({"7"}), queue={"7": row})
    mine, other = snapshot.of(Watched("7", "newer-job", 0.0)), snapshot.of(Watched("7", "older-job", 0.0))
    assert mine is not None
    assert mine.queue == row
    assert other is not None
    assert other.queue is None


@pytest.mark.parametrize(
    ("view", "now", "status"),
    [
        (JobView("1", phase=Phase.SUCCEEDED), 0, "ended"),
        (JobView("1", phase=Phase.LOST), 0, "ended"),
        (JobView("1", phase=Phase.RUNNING), 10**9, None),
        (JobView("1", phase=Phase.UNKNOWN, unknown_since=100), 3699, None),
        (JobView("1", phase=Phase.UNKNOWN, unknown_since=100), 3700, "unknown"),
        (JobView("1", phase=Phase.UNKNOWN, unknown_since=100, cause=NO_ACCOUNTING), 101, "unknown"),
        (JobView("1", phase=Phase.WAITING), 699, None),
        (JobView("1", phase=Phase.WAITING), 700, "waited_too_long"),
        (JobView("1", phase=Phase.WAITING, restarts=1), 10**6, None),
        (JobView("1", phase=Phase.WAITING, reason="BadConstraints", reason_looks=3, reason_since=100), 101, "never_starts"),
        (JobView("1", phase=Phase.WAITING, reason="BadConstraints", reason_looks=2, reason_since=100), 300, None),
        (JobView("1", phase=Phase.WAITING, reason="PartitionNodeLimit", reason_looks=9, reason_since=100), 399, None),
        (JobView("1", phase=Phase.WAITING, reason="PartitionNodeLimit", reason_looks=9, reason_since=100), 400, "never_starts"),
        (JobView("1", phase=Phase.WAITING, reason="AssocMaxJobsLimit", reason_looks=99, reason_since=100), 600, None),
        (JobView("1", phase=Phase.WAITING, reason="SomethingNew", reason_looks=99, reason_since=100), 600, None),
        (JobView("1", phase=Phase.RUNNING, reason="BadConstraints", reason_looks=9, reason_since=100), 600, None),
    ],
)
def test_when_something_has_to_be_decided(wait: Wait, view: JobView, now: float, status: str | None) -> None:
    assert due(view, replace(wait, max_wait_s=600.0), now) == status


@pytest.mark.parametrize(
    ("view", "status"),
    [
        (JobView("1", phase=Phase.RUNNING), "timed_out"),
        (JobView("1", phase=Phase.WAITING), "timed_out"),
        (JobView("1", phase=Phase.SUCCEEDED), "ended"),
        # Nothing can be given up for sure while nobody knows what is: that has a deadline of its own.
        (JobView("1", phase=Phase.UNKNOWN, unknown_since=990), None),
    ],
)
def test_the_trigger_holds_the_tasks_execution_timeout(wait: Wait, view: JobView, status: str | None) -> None:
    late = replace(wait, deadline=1000.0)
    assert due(view, late, 999.0) in (None, "ended")
    assert due(view, late, 1000.0) == status
    assert due_of_tasks([view, JobView("2", phase=Phase.SUCCEEDED)], late, 1000.0) == status


RUNS, ENDED = JobView("1", phase=Phase.RUNNING), JobView("2", phase=Phase.SUCCEEDED)
DOUBTFUL = JobView("3", phase=Phase.UNKNOWN, unknown_since=3990)
UNKNOWN = JobView("3", phase=Phase.UNKNOWN, unknown_since=0)
ENDS = JobView("4", phase=Phase.ENDING, missing_since=990)
WAITS = JobView("5", phase=Phase.WAITING)
HOPELESS = JobView("6", phase=Phase.WAITING, reason="BadConstraints", reason_looks=3, reason_since=0)


@pytest.mark.parametrize(
    ("views", "status"),
    [
        ([RUNS, DOUBTFUL], "timed_out"),
        ([RUNS, UNKNOWN, ENDED], "timed_out"),
        ([RUNS, ENDS], "timed_out"),
        ([WAITS, DOUBTFUL], "timed_out"),
        ([ENDS, ENDED], None),
        ([DOUBTFUL, ENDED], None),
        ([UNKNOWN, ENDED], "unknown"),
        ([ENDED], "ended"),
    ],
)
def test_the_time_of_an_array_is_over_whatever_is_unknown_of_some_of_its_tasks(
    wait: Wait, views: list[JobView], status: str | None
) -> None:
    late = replace(wait, deadline=4000.0, max_unknown_s=3600.0)
    assert due_of_tasks(views, late, 4000.0) == status


@pytest.mark.parametrize(
    ("views", "status"),
    [
        ([WAITS, HOPELESS], "waited_too_long"),
        ([WAITS, UNKNOWN], "waited_too_long"),
        ([WAITS, HOPELESS, UNKNOWN], "waited_too_long"),
        ([HOPELESS, UNKNOWN], "never_starts"),
        ([HOPELESS, ENDED], "never_starts"),
        ([WAITS, RUNS], None),
        ([WAITS, HOPELESS, replace(ENDED, end_time=3401.0)], None),
        ([WAITS, HOPELESS, replace(ENDED, end_time=3400.0)], "waited_too_long"),
        ([WAITS, UNKNOWN, replace(ENDED, end_time=3000.0), replace(ENDED, end_time=3400.0)], "waited_too_long"),
        ([WAITS, RUNS, replace(ENDED, end_time=3000.0)], None),
        ([HOPELESS, RUNS], None),
        ([WAITS, DOUBTFUL], None),
    ],
)
def test_an_array_of_which_nothing_starts_is_given_up(wait: Wait, views: list[JobView], status: str | None) -> None:
    assert due_of_tasks(views, replace(wait, max_wait_s=600.0), 4000.0) == status


def test_what_has_left_the_queue_at_its_deadline_is_waited_for_until_accounting_knows(wait: Wait) -> None:
    late = replace(wait, deadline=1000.0)
    assert due(ENDS, late, 1000.0) is None
    assert due(ENDS, late, 1000.0 + ENDING_GRACE_S) == "timed_out"
    assert due(replace(ENDS, phase=Phase.SUCCEEDED), late, 1001.0) == "ended"


WAITING = JobView("1", phase=Phase.WAITING, state="PENDING")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (WAITING, replace(WAITING, reason="Priority"), "job 1 PENDING (Priority): jobs of higher priority come first; clears by itself"),
        (
            WAITING,
            replace(WAITING, reason="BadConstraints"),
            "job 1 PENDING (BadConstraints): no set of nodes fits what it asks for; never clears",
        ),
        (WAITING, replace(WAITING, reason="SomethingNew"), "job 1 PENDING (SomethingNew)"),
        (WAITING, replace(WAITING, estimated_start=7200.0), "job 1 PENDING expected to start 1970-01-01 02:00 UTC"),
        (replace(WAITING, estimated_start=7200.0), replace(WAITING, estimated_start=7500.0), None),
        (
            replace(WAITING, estimated_start=7200.0),
            replace(WAITING, estimated_start=7800.0),
            "job 1 PENDING expected to start 1970-01-01 02:10 UTC",
        ),
        (WAITING, WAITING, None),
    ],
)
def test_what_is_news_for_the_log(before: JobView, after: JobView, said: str | None) -> None:
    assert (after.explained() if after.differs(before) else None) == said


async def test_a_submission_that_has_to_wait_wakes_up_once() -> None:
    path, kwargs = SubmitLaterTrigger(0.01).serialize()
    assert path == "airflow_slurm.triggers.SubmitLaterTrigger"
    assert [event.payload async for event in SubmitLaterTrigger(**kwargs).run()] == [{"status": "now"}]


class NoCluster:
    """At the process edge: a hook whose cluster must not be asked, or whose questions are counted."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, conn_id: str) -> NoCluster:
        return self

    def get_client(self) -> NoCluster:
        self.asked += 1
        return self

    async def __aenter__(self) -> NoCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


async def killed(wait: Wait, state: str | None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What on_kill does while Airflow has the task in some state: the jobs that it ends."""
    ended: list[dict[str, Any]] = []

    async def end_submission(client: Any, store: Any, submission: Any, *args: Any, **kwargs: Any) -> None:
        ended.append({"key": submission.key, "job_id": submission.receipt.job_id, "by": kwargs["by"]})

    monkeypatch.setattr(triggers, "task_state", lambda owner: state)
    monkeypatch.setattr("airflow_slurm.work.shared.SlurmHook", NoCluster())
    monkeypatch.setattr("airflow_slurm.work.stop.end_submission", end_submission)
    await SlurmJobTrigger("c1", as_json(wait)).on_kill()
    while triggers._DETACHED:
        await asyncio.gather(*triggers._DETACHED)
    return ended


@pytest.fixture
def claimed(wait: Wait) -> FileReceipts:
    """The store behind the trigger, with its job in it."""
    store = FileReceipts(**wait.receipts_config)
    store.claim("k", OWNER)
    store.record("k", 1, Receipt("9912", "job-k-1", "c1"))
    return store


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed"])
async def test_a_job_ends_when_its_task_is_over(wait: Wait, claimed: FileReceipts, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await killed(wait, state, monkeypatch) == [{"key": "k", "job_id": "9912", "by": "on_kill"}]
    live = claimed.get("k")
    assert live is not None
    assert live.ending


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "deferred", "up_for_retry", "restarting"])
async def test_clearing_a_late_call_or_a_restart_ends_nothing(
    wait: Wait, claimed: FileReceipts, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await killed(wait, state, monkeypatch) == []
    assert owners_of(claimed, "k") == [OWNER]


async def test_a_job_of_two_runs_outlives_the_first(wait: Wait, claimed: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed.claim("k", OTHER)
    assert await killed(wait, "failed", monkeypatch) == []
    assert owners_of(claimed, "k") == [OTHER]


async def test_a_task_that_was_cleared_while_its_old_trigger_asked_for_its_state_keeps_its_job(
    wait: Wait, claimed: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cleared_meanwhile(owner: Any) -> str:
        claimed.claim("k", OWNER)  # the next try, which is the same owner
        return "failed"

    monkeypatch.setattr("airflow_slurm.work.shared.SlurmHook", NoCluster())
    monkeypatch.setattr(triggers, "task_state", cleared_meanwhile)
    await SlurmJobTrigger("c1", as_json(wait)).on_kill()
    while triggers._DETACHED:
        await asyncio.gather(*triggers._DETACHED)
    live = claimed.get("k")
    assert live is not None
    assert (live.owners, live.ending) == ((OWNER,), False)


async def test_what_on_kill_could_not_do_is_left_to_the_reconciler(
    wait: Wait, claimed: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(owner: Any) -> str:
        raise ConnectionError("the API server is gone")

    monkeypatch.setattr(triggers, "task_state", gone)
    await SlurmJobTrigger("c1", as_json(wait)).on_kill()
    await asyncio.gather(*triggers._DETACHED)
    assert owners_of(claimed, "k") == [OWNER]


def test_the_state_of_a_mapped_task_is_found_under_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def states(**kwargs: Any) -> dict[str, dict[str, str]]:
        asked.append(kwargs)
        return {"r1": {"t_3": "failed", "t": "running"}}

    monkeypatch.setattr(triggers.RuntimeTaskInstance, "get_task_states", staticmethod(states))
    assert triggers.task_state(OWNER | {"map_index": 3}) == "failed"
    assert triggers.task_state(OWNER) == "running"
    assert triggers.task_state(OWNER | {"run_id": "r9"}) is None
    assert asked[0] == {"dag_id": "d", "task_ids": ["t"], "run_ids": ["r1"], "map_index": 3}


async def test_an_event_carries_what_the_task_needs_to_go_on_and_the_loop_is_closed_before_it(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dag.test()` of Airflow 3.3 resumes a task with the event alone, and drops the trigger's generator where it stands."""
    closed: list[str] = []

    async def loop(cls: Any, kwargs: dict[str, Any]) -> AsyncIterator[Snapshot]:
        try:
            ended = JobView("9912", phase=Phase.SUCCEEDED, state="COMPLETED")
            monkeypatch.setattr("airflow_slurm.watch.following.judge", lambda before, seen, graces: ended)
            yield Snapshot(200.0, frozenset({"9912"}), {})
        finally:
            closed.append("loop")

    monkeypatch.setattr(SlurmJobTrigger, "open_shared_stream", classmethod(loop))
    trigger = SlurmJobTrigger("c1", as_json(replace(wait, receipts="")), {"n": 1})
    events = SlurmJobTrigger(**trigger.serialize()[1]).run()
    event = await anext(events)
    assert event.payload["request_state"] == {"n": 1}
    assert closed == ["loop"]
    await events.aclose()
    later = SubmitLaterTrigger(0.01, {"tries": 2})
    assert [event.payload async for event in SubmitLaterTrigger(**later.serialize()[1]).run()] == [
        {"status": "now", "progress": {"tries": 2}}
    ]
