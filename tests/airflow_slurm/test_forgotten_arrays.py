"""Arrays that their controller forgot when it died: what never ran is lost and sent again, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import JobEnd
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.arrays import by_id, ran_by
from airflow_slurm.truth.holds import GONE
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.following import ArrayFollower
from airflow_slurm.watch.poller import Hub, Snapshot
from airflow_slurm.watch.waiting import Wait

from .conftest import OWNER
from .login_node import LoginNode
from .tasks import Make
from .test_arrays import queued
from .test_arrays import recorded as row

BOOTED = Answer("Configuration data as of 999\nBOOT_TIME               = 200\n", "", 0)
FILES = "airflow_slurm.file_receipts.FileReceipts"


def looked(at: float, rows: list[Any], queue: dict[str, Any] | None = None) -> Snapshot:
    return Snapshot(at, frozenset({"22"}), queue or {}, by_id(rows))


def follower(store: FileReceipts | None = None, queued_at: float | None = 100.0, node: LoginNode | None = None) -> ArrayFollower:
    kept = (FILES, {"root": str(store.root)}) if store is not None else ("", {})
    wait = Wait("k", 1, "22", "a", 90.0, OWNER, *kept, array="0-2", queued_at=queued_at, max_unknown_s=600.0)
    return ArrayFollower(wait, Hub(client=node or LoginNode(scontrol=[BOOTED])), structlog.get_logger())


def causes(event: dict[str, Any] | None) -> dict[str, str]:
    assert event is not None
    return {index: view.get("cause", "") for index, view in event["tasks"].items()}


async def test_an_array_of_which_nothing_ran_is_forgotten_as_a_whole() -> None:
    waits = [row("22", "22_[0-2]", "PENDING")]
    watching = follower()
    assert await watching.look(looked(300.0, waits)) is None
    event = await watching.look(looked(500.0, waits))
    assert causes(event) == {"0": FORGOTTEN, "1": FORGOTTEN, "2": FORGOTTEN}
    assert event is not None
    assert (event["status"], event["view"]["phase"], event["view"]["cause"]) == ("ended", "lost", FORGOTTEN)


async def test_the_tasks_that_had_run_stay_unknown_and_a_person_is_called_at_the_deadline() -> None:
    rows = [row("23", "22_0", "RUNNING"), row("22", "22_[1-2]", "PENDING")]
    watching = follower()
    for at in (300.0, 500.0):
        assert await watching.look(looked(at, rows)) is None
    event = await watching.look(looked(1200.0, rows))
    assert causes(event) == {"0": GONE, "1": FORGOTTEN, "2": FORGOTTEN}
    assert event is not None
    assert event["status"] == "unknown"


@pytest.mark.parametrize(
    ("submitted_at", "queued_at", "forgotten"),
    [(100.0, 260.0, False), (260.0, 100.0, True), (100.0, 200.0, False), (100.0, None, False)],
    ids=["worker behind", "worker ahead", "within one second", "nobody knows"],
)
async def test_the_clock_of_a_worker_does_not_say_whether_a_controller_was_started_anew(
    submitted_at: float, queued_at: float | None, forgotten: bool
) -> None:
    """The controller was started at 200 by its own clock."""
    wait = Wait("k", 1, "22", "a", 90.0, OWNER, "", {}, array="0-2", submitted_at=submitted_at, queued_at=queued_at, max_unknown_s=600.0)
    watching = ArrayFollower(wait, Hub(client=LoginNode(scontrol=[BOOTED])), structlog.get_logger())
    events = [await watching.look(looked(at, [])) for at in (300.0, 500.0, 1200.0)]
    event = next(event for event in events if event is not None)
    assert event["status"] == ("ended" if forgotten else "unknown")
    assert set(causes(event).values()) == {FORGOTTEN if forgotten else "neither queue nor accounting knows it"}


async def test_of_a_controller_that_was_not_started_anew_nothing_is_forgotten() -> None:
    watching = follower(queued_at=201.0)
    for at in (300.0, 500.0):
        assert await watching.look(looked(at, [])) is None
    event = await watching.look(looked(1200.0, []))
    assert event is not None
    assert event["status"] == "unknown"


async def test_a_task_that_somebody_removed_is_not_forgotten_while_the_controller_knows_the_rest() -> None:
    """A restart between submission and removal makes no difference: the array is there."""
    waits = {"22_0": queued(JobID="22", JobArrayID="22_[0,2]"), "22_2": queued(JobID="22", JobArrayID="22_[0,2]")}
    node = LoginNode(scontrol=[BOOTED])
    watching = follower(node=node)
    for at in (300.0, 500.0):
        assert await watching.look(looked(at, [], waits)) is None
    assert node.asked == []


async def test_what_an_earlier_process_saw_run_is_not_forgotten(store: FileReceipts) -> None:
    store.claim("k", OWNER)
    store.observe("k", 1, JobView("22", phase=Phase.RUNNING, state="RUNNING", tasks={"RUNNING": "0", "PENDING": "1-2"}))
    watching = follower(store)
    for at in (300.0, 500.0):
        assert await watching.look(looked(at, [])) is None
    event = await watching.look(looked(1200.0, []))
    assert causes(event) == {"0": GONE, "1": FORGOTTEN, "2": FORGOTTEN}


def test_which_tasks_may_have_run() -> None:
    assert ran_by({"PENDING": "0-3,7", "not seen yet": "9", "RUNNING": "4-5", "UNKNOWN": "6", "CANCELLED": "8"}) == {4, 5, 6, 8}
    assert ran_by({}) == set()


def ended(index: int, phase: Phase, state: str, cause: str = "") -> dict[str, Any]:
    return JobView(f"7_{index}", phase=phase, state=state, cause=cause, retryable=phase is not Phase.SUCCEEDED).to_json()


def test_only_the_forgotten_shards_are_submitted_again_and_no_retry_is_used_up(make: Make, store: FileReceipts) -> None:
    task = make(SlurmArrayOperator, shards=3, shard_retries=0)
    done = {
        "0": ended(0, Phase.SUCCEEDED, "COMPLETED"),
        "1": ended(1, Phase.LOST, "PENDING", FORGOTTEN),
        "2": ended(2, Phase.LOST, "", FORGOTTEN),
    }
    whole = JobView("7", phase=Phase.LOST, cause=FORGOTTEN).to_json()
    first = task.execute()
    again = again_after(task, first, {"status": "ended", "view": whole, "tasks": done})
    assert (again.kwargs["request_state"]["array"], again.kwargs["request_state"]["n"]) == ("1-2", 2)
    end = store.end_of("work", 1)
    assert end is not None
    assert (end.outcome, end.cause, end.shards["0"]["outcome"]) == ("interrupted", FORGOTTEN, "succeeded")
    # All that is left is forgotten once more, and then ends well.
    left = {index: done[index] for index in ("1", "2")}
    third = again_after(task, again, {"status": "ended", "view": whole, "tasks": left})
    assert (third.kwargs["request_state"]["array"], third.kwargs["request_state"]["n"]) == ("1-2", 3)
    well = {index: ended(int(index), Phase.SUCCEEDED, "COMPLETED") for index in ("1", "2")}
    result = task.resume(third, {"status": "ended", "view": JobView("9", phase=Phase.SUCCEEDED).to_json(), "tasks": well})
    assert [(end["index"], end["n"]) for end in result] == [(0, 1), (1, 3), (2, 3)]


def test_a_shard_that_failed_beside_a_forgotten_one_still_fails_the_try(make: Make, store: FileReceipts) -> None:
    task = make(SlurmArrayOperator, shards=2, shard_retries=1)
    done = {"0": ended(0, Phase.FAILED, "FAILED", "failed"), "1": ended(1, Phase.LOST, "", FORGOTTEN)}
    event = {"status": "ended", "view": JobView("7", phase=Phase.LOST, cause=FORGOTTEN).to_json(), "tasks": done}
    again = again_after(task, task.execute(), event)
    with pytest.raises(Exception, match=r"1 of 2 shards failed \(0\)"):
        task.resume(again, event)
    assert [end.outcome for n in (1, 2) if isinstance(end := store.end_of("work", n), JobEnd)] == ["interrupted", "failed"]


def again_after(task: Any, deferred: Any, event: dict[str, Any]) -> Any:
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as caught:
        task.resume(deferred, event)
    return caught.value
