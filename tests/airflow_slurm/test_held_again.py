"""Jobs that wait in a hold after they ran: Slurm could not launch them again, or somebody holds them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_slurm.errors import ControllerUnreachable, JobFailed
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import history_of
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.parse import QueueRow, queue_rows
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.holds import has_stood
from airflow_slurm.truth.reconcile import FORGOTTEN, LAUNCH_FAILED_HELD, Observation, judge
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.waiting import HELD_AGAIN, Wait

from .held_jobs import Files, Node, Site, Watch
from .tasks import Make

ANEW, BEFORE = "BOOT_TIME               = 60\n", "BOOT_TIME               = 40\n"


class Again(Site):
    """The job has been put back once."""

    def show(self, argv: Any) -> str:
        return super().show(argv).replace("|0|0|50|", "|1|0|55|")


def held(reason: str, *, job_id: str = "7") -> Node:
    node = Node(
        Again({job_id: ["PENDING", reason, "60", "(null)"]}, Answer("7|7|CANCELLED by 0|0:0|50|None|60|0|1|None assigned|a\n", "", 0))
    )
    node.config = ANEW
    return node


@pytest.mark.parametrize(("config", "cause"), [(ANEW, FORGOTTEN), (BEFORE, "launch_failed")])
async def test_what_slurm_could_not_launch_again_is_ended_in_its_hold_and_lost(kept: FileReceipts, config: str, cause: str) -> None:
    """Where the controller was started anew, what an earlier run made decides (as of a forgotten one); else it is a loss as any other."""
    node = held(LAUNCH_FAILED_HELD)
    node.config = config
    watch = Watch(kept, node)
    assert await watch.looks(3) is None  # three minutes: its nodes report
    assert "scancel" not in " ".join(watch.done())
    event = await watch.looks(3)
    assert event is not None
    assert watch.done().count("scancel --state=PENDING 7") == 1
    view = event["view"]
    assert (event["status"], view["phase"], view["cause"], view["retryable"], view["doubtful"]) == ("ended", "lost", cause, True, False)
    # Whoever takes over after that finds it cancelled, and knows why.
    second = await Watch(kept, node).look()
    assert second is not None
    assert (second["view"]["phase"], second["view"]["cause"]) == ("lost", cause)


async def test_the_store_is_never_opened_in_the_loops_own_thread(kept: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []
    of = Wait.store
    monkeypatch.setattr(Wait, "store", lambda wait: opened.append(threading.current_thread() is threading.main_thread()) or of(wait))
    assert await Watch(kept, held(LAUNCH_FAILED_HELD)).looks(6) is not None
    assert opened
    assert not any(opened)


async def test_a_hold_that_is_lifted_meanwhile_is_left_alone(kept: FileReceipts) -> None:
    node = held(LAUNCH_FAILED_HELD)
    watch = Watch(kept, node)
    assert await watch.looks(3) is None
    node.site.rows["7"] = ["PENDING", "Priority", "60", "(null)"]
    assert await watch.looks(10) is None
    assert watch.done() == []


async def test_while_the_controller_does_not_say_when_it_was_started_nothing_is_ended(
    kept: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = held(LAUNCH_FAILED_HELD)

    async def silent(cluster: str | None = None) -> None:
        raise ControllerUnreachable("not now")

    monkeypatch.setattr(node, "controller", silent)
    watch = Watch(kept, node)
    assert await watch.looks(10) is None
    assert watch.done() == []


@pytest.mark.parametrize("reason", ["JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "job requeued in held state"])
async def test_a_job_that_somebody_holds_is_its_tasks_to_look_at_once(kept: FileReceipts, reason: str) -> None:
    node = held(reason)
    watch = Watch(kept, node)
    event = await watch.looks(6)
    assert event is not None
    assert (event["status"], event["view"]["phase"], event["view"]["restarts"]) == (HELD_AGAIN, "waiting", 1)
    assert watch.done() == ["scontrol show config"]
    # Its task found it not done: nobody asks again about this run of it, not even after a restart.
    kept.incident("k", 1, HELD_AGAIN, {"job_id": "7", "restarts": 1})
    assert await Watch(kept, node).looks(10) is None


async def test_of_a_controller_that_lost_nothing_a_hold_is_that_persons_and_costs_one_question(kept: FileReceipts) -> None:
    node = held("JobHeldAdmin")
    node.config = BEFORE
    watch = Watch(kept, node)
    assert await watch.looks(20) is None
    assert watch.done() == ["scontrol show config"]


async def test_tasks_of_an_array_that_could_not_be_launched_are_ended_together(kept: FileReceipts) -> None:
    node = held(LAUNCH_FAILED_HELD)
    node.site.rows = {f"7_{i}": ["PENDING", LAUNCH_FAILED_HELD if i else "Priority", "60", "(null)"] for i in range(3)}
    watch = Watch(kept, node, "0-2")
    assert await watch.looks(5) is None
    assert watch.done() == ["scancel --state=PENDING 7_1 7_2"]
    assert {i: view.cause for i, view in watch.follower._views.items()} == {0: "", 1: FORGOTTEN, 2: FORGOTTEN}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("reason", "restarts", "looks", "at", "stands"),
    [
        (LAUNCH_FAILED_HELD, 1, 2, 150.0, True),
        (LAUNCH_FAILED_HELD, 1, 2, 149.0, False),
        (LAUNCH_FAILED_HELD, 0, 2, 500.0, False),
        (LAUNCH_FAILED_HELD, 1, 1, 500.0, False),
        ("BeginTime", 1, 2, 500.0, False),
    ],
)
def test_which_holds_have_stood(reason: str, restarts: int, looks: int, at: float, stands: bool) -> None:
    row: QueueRow = queue_rows(f"7|7|PENDING|{restarts}|0|50|N/A|N/A|1||{reason}|a\n")[0]
    view = JobView("7")
    for look in range(looks):
        view = judge(view, Observation(float(look) if look < looks - 1 else at, row))
    assert has_stood(view, row, at, 150.0) is stands


def lost(cause: str) -> dict[str, Any]:
    view = JobView("7", phase=Phase.LOST, state="CANCELLED", cause=cause, retryable=True, restarts=2)
    return {"status": "ended", "view": view.to_json()}


@pytest.mark.parametrize("cause", [FORGOTTEN, "launch_failed"])
def test_what_could_not_be_launched_is_submitted_again_in_the_same_try_or_done(make: Make, there: Files, cause: str) -> None:
    task = make(expected_output="/out", output="/logs/%j.txt", loss_retries=1)
    there.add("/logs/7.txt")
    with pytest.raises(TaskDeferred) as again:
        task.resume(task.execute(), lost(cause))
    assert again.value.kwargs["request_state"]["n"] == 2
    there.add("/out")
    if cause == FORGOTTEN:  # the controller had lost a run: that may have made it
        assert task.resume(again.value, lost(cause))["n"] == 2
    else:
        with pytest.raises(JobFailed, match="launch_failed"):
            task.resume(again.value, lost(cause))


@pytest.mark.parametrize("done", [True, False])
def test_a_held_job_that_has_made_what_it_should_is_done_and_any_other_waits_on(
    make: Make, store: FileReceipts, there: Files, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    settled: list[bool] = []
    monkeypatch.setattr("airflow_slurm.work.held.settle_hold", lambda state, lift: settled.append(lift))
    there |= {"/out"} if done else set()
    task = make(expected_output="/out")
    view = JobView("7", phase=Phase.WAITING, state="PENDING", reason="JobHeldAdmin", restarts=1)
    event, first = {"status": HELD_AGAIN, "view": view.to_json()}, task.execute()
    if done:
        assert task.resume(first, event)["job_id"] == "7"
        end = store.end_of("work", 1)
        assert end is not None
        assert (end.outcome, settled) == ("succeeded", [False])
        return
    with pytest.raises(TaskDeferred) as on:
        task.resume(first, event)
    state = on.value.kwargs["request_state"]
    assert (state["n"], state["job_id"], state["resubmits"], settled) == (1, "7", 0, [])
    notes = [note for record in history_of(store, "work") for note in record.incidents]
    assert [(note["what"], note["detail"]["restarts"]) for note in notes] == [(HELD_AGAIN, 1)]
