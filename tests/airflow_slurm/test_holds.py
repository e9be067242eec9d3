"""Jobs that a controller brought back in their first hold: lifted if they never ran, never started beside themselves, and nobody else's hold."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import TaskDeferred

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import JobFailed, UnknownOutcome
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.parse import queue_rows
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.holds import GONE, NODES_REPORT_WITHIN_S, ROLLED_BACK
from airflow_slurm.truth.reconcile import FORGOTTEN, NO_ACCOUNTING, Observation, judge
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.poller import Hub, take_snapshot
from airflow_slurm.watch.waiting import Wait
from airflow_slurm.work.earlier import settle_hold

from .conftest import OWNER
from .held_jobs import DOWN, NONE_KEPT, RAN, Files, Node, Site, Watch
from .tasks import Make


async def test_a_release_that_was_forgotten_is_made_again_when_the_nodes_have_reported(kept: FileReceipts) -> None:
    watch = Watch(kept, Node(Site()))
    while watch.at + 60.0 - 160.0 < NODES_REPORT_WITHIN_S:  # the hold is first seen at 160
        assert await watch.look() is None
        assert watch.done() == []
    assert await watch.looks(2) is None
    assert watch.done() == ["scontrol release 7"]
    assert await watch.looks(5) is None
    assert watch.done() == ["scontrol release 7"]


async def test_a_job_that_accounting_knows_to_have_run_is_its_tasks_to_decide_and_is_not_started_beside_itself(kept: FileReceipts) -> None:
    watch = Watch(kept, Node(Site(sacct=Answer(RAN, "", 0))))
    event = await watch.looks(8)
    assert event is not None
    assert (event["status"], event["view"]["phase"]) == (ROLLED_BACK, "waiting")
    assert watch.done() == []


async def test_a_job_that_was_seen_to_run_is_not_let_go_even_if_accounting_has_not_heard_of_it(kept: FileReceipts) -> None:
    node = Node(Site())
    watch = Watch(kept, node)
    node.site.rows["7"] = ["RUNNING", "None", "60", "(null)"]
    assert await watch.look() is None
    node.site.rows["7"] = ["PENDING", "JobHeldUser", "N/A", "(null)"]
    again = Watch(kept, node)  # another triggerer has taken over: what was seen is in the store
    event = await again.looks(8)
    assert event is not None
    assert event["status"] == ROLLED_BACK


@pytest.mark.parametrize("sacct", [DOWN, NONE_KEPT, Answer("", "", 0)])
async def test_what_may_have_run_and_nobody_can_say_is_not_started_again_under_its_id(kept: FileReceipts, sacct: Answer) -> None:
    watch = Watch(kept, Node(Site(sacct=sacct)))
    event = await watch.looks(12)
    assert event is not None
    assert event["status"] == ROLLED_BACK
    assert watch.done() == []


@pytest.mark.parametrize("row", [["PENDING", "JobHeldUser", "60", "(null)"], ["PENDING", "JobHeldUser", "N/A", "afterok:6(unfulfilled)"]])
async def test_a_hold_that_is_or_may_be_somebodys_stays_and_costs_no_command(kept: FileReceipts, row: list[str]) -> None:
    watch = Watch(kept, Node(Site({"7": row})))
    assert await watch.looks(12) is None
    assert [argv[0] for argv in watch.node.asked] == ["squeue"] * 12
    assert sum("EligibleTime" in str(argv) for argv in watch.node.asked) == 1


async def test_a_job_cancelled_by_a_person_in_its_hold_is_cancelled_and_nothing_else(kept: FileReceipts) -> None:
    watch = Watch(kept, Node(Site()))
    assert await watch.looks(2) is None
    watch.node.site.rows["7"] = ["CANCELLED", "None", "N/A", "(null)"]
    event = await watch.look()
    assert event is not None
    assert (event["view"]["phase"], event["view"]["cause"]) == ("failed", "cancelled")


async def test_a_thousand_held_jobs_cost_what_one_costs(kept: FileReceipts) -> None:
    count = 1000
    site = Site({str(i): ["PENDING", "JobHeldUser", "60", "(null)"] for i in range(1, count + 1)})
    node = Node(site)
    hub = Hub(client=node)
    config = {"root": str(kept.root)}
    followers = [
        follower_of(Wait("k", 1, str(i), "a", 40.0, OWNER, "airflow_slurm.file_receipts.FileReceipts", config), hub, structlog.get_logger())
        for i in range(1, count + 1)
    ]
    for follower in followers:
        follower._known = True  # the store is not what is counted
        follower._observe = _kept_elsewhere  # type: ignore[method-assign]
    for _ in range(4):
        snapshot = await take_snapshot(node, [follower.watched for follower in followers])
        for follower in followers:
            assert await follower.look(snapshot) is None
    assert [argv[0] for argv in node.asked] == ["squeue"] * 4


async def _kept_elsewhere(view: JobView) -> None:
    return None


async def test_of_an_array_the_tasks_that_ran_are_ended_and_the_others_let_go(kept: FileReceipts) -> None:
    held = ["PENDING", "JobHeldUser", "N/A", "(null)"]
    node = Node(Site({"7_0": ["RUNNING", "None", "60", "(null)"], "7_1": list(held), "7_2": list(held)}))
    node.site.sacct = Answer("7|7_[0-2]|PENDING|0:0|50|Unknown|Unknown|0|1|None assigned|a\n", "", 0)
    watch = Watch(kept, node, "0-2")
    assert await watch.look() is None
    node.site.rows["7_0"] = list(held)
    assert await watch.looks(7) is None
    assert watch.done() == ["scancel --state=PENDING 7_0", "scontrol release 7"]
    for index in (1, 2):
        node.site.rows[f"7_{index}"] = ["COMPLETED", "None", "60", "(null)"]
    event = await Watch(kept, node, "0-2").looks(3)  # another triggerer, which finds a task cancelled
    assert [note["detail"]["ended"] for note in kept.incidents("k", 1)] == [["7_0"]]
    assert event is not None
    assert {index: view.get("cause", "") for index, view in event["tasks"].items()} == {"0": FORGOTTEN, "1": "", "2": ""}


def rolled_back() -> dict[str, Any]:
    return {"status": ROLLED_BACK, "view": JobView("7", phase=Phase.WAITING, state="PENDING", reason="JobHeldUser").to_json()}


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """At the process edge: what was done about the hold; True for lifted."""
    done: list[bool] = []
    monkeypatch.setattr("airflow_slurm.work.held.settle_hold", lambda state, lift: done.append(lift))
    return done


def test_a_rolled_back_job_that_made_what_it_should_is_done_and_cancelled_in_its_hold(
    make: Make,
    store: FileReceipts,
    settled: list[bool],
    there: Files,
) -> None:
    there.add("/scratch/out")
    task = make(expected_output="/scratch/out")
    assert task.resume(task.execute(), rolled_back())["job_id"] == "7"
    end = store.end_of("work", 1)
    assert end is not None
    assert (end.outcome, settled) == ("succeeded", [False])


def test_a_job_that_is_brought_back_for_ever_fails_its_try(make: Make, store: FileReceipts, settled: list[bool]) -> None:
    task = make()
    first = task.execute()
    first.kwargs["request_state"]["resubmits"] = first.kwargs["request_state"]["max_resubmits"]
    with pytest.raises(JobFailed, match="brought it back 21 times"):
        task.resume(first, rolled_back())
    end = store.end_of("work", 1)
    assert end is not None
    # Nothing of it is left that somebody could start beside the next try's.
    assert (end.outcome, settled) == ("failed", [False])


async def test_at_a_site_without_accounting_a_job_that_is_gone_is_for_a_person_at_once(kept: FileReceipts) -> None:
    watch, keeps = Watch(kept, Node(Site(sacct=NONE_KEPT))), True
    watch.node.config = "BOOT_TIME               = 60\n"
    watch.node.site.rows["7"] = ["RUNNING", "None", "60", "(null)"]
    assert await watch.look() is None
    watch.node.site.rows.clear()
    event = None
    while event is None and watch.at < 1000.0:
        snapshot = await take_snapshot(watch.node, [watch.follower.watched], keeps)
        keeps, watch.at = snapshot.accounting_kept, watch.at + 60.0
        event = await watch.follower.look(replace(snapshot, at=watch.at))
    assert event is not None
    assert (event["status"], event["view"]["cause"]) == ("unknown", NO_ACCOUNTING)


@pytest.mark.parametrize("expected", [None, "/scratch/out"])
def test_one_that_did_not_or_of_which_nothing_is_expected_runs_again_under_its_id(
    make: Make,
    store: FileReceipts,
    settled: list[bool],
    there: Files,
    expected: str | None,
) -> None:
    task = make(expected_output=expected)
    with pytest.raises(TaskDeferred) as again:
        task.resume(task.execute(), rolled_back())
    state = again.value.kwargs["request_state"]
    assert (state["n"], state["job_id"], settled) == (1, "7", [True])
    assert store.end_of("work", 1) is None
    done = {"status": "ended", "view": JobView("7", phase=Phase.SUCCEEDED, state="COMPLETED").to_json()}
    there.add("/scratch/out")
    assert task.resume(again.value, done)["job_id"] == "7"


def test_a_hold_is_lifted_or_the_job_cancelled_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(Site())
    monkeypatch.setattr(SlurmHook, "run", lambda self, question: asyncio.run(question(node)))
    state = {"job_id": "7", "cluster": None, "conn_id": "nowhere"}
    settle_hold(state, lift=True)
    settle_hold(state, lift=False)
    assert [" ".join(argv) for argv in node.asked] == ["scontrol release 7", "scancel --state=PENDING 7"]


def test_a_job_that_was_cancelled_is_no_success_whatever_is_there(make: Make, there: Files) -> None:
    there.add("/scratch/out")
    task = make(expected_output="/scratch/out")
    view = JobView("7", phase=Phase.FAILED, state="CANCELLED", cause="cancelled").to_json()
    with pytest.raises(Exception, match="cancelled"):
        task.resume(task.execute(), {"status": "ended", "view": view})


@pytest.mark.parametrize(("booted_at", "cause"), [(60, GONE), (49, "neither queue nor accounting knows it")])
async def test_a_run_that_is_gone_with_its_controller_is_unknown_for_that_reason(kept: FileReceipts, booted_at: int, cause: str) -> None:
    node = Node(Site({"7": ["RUNNING", "None", "60", "(null)"]}, Answer("", "", 0)))
    node.config = f"BOOT_TIME               = {booted_at}\n"
    watch = Watch(kept, node)
    assert await watch.look() is None
    del node.site.rows["7"]
    event = await watch.looks(70)
    assert event is not None
    assert (event["status"], event["view"]["cause"]) == ("unknown", cause)


@pytest.mark.parametrize(
    ("cause", "is_there", "done"), [(GONE, True, True), (GONE, False, False), ("accounting does not answer", True, False)]
)
def test_of_an_unknown_outcome_only_a_run_that_is_gone_is_judged_by_its_output(
    make: Make,
    store: FileReceipts,
    there: Files,
    cause: str,
    is_there: bool,
    done: bool,
) -> None:
    there |= {"/scratch/out"} if is_there else set()
    task = make(expected_output="/scratch/out")
    first = task.execute()
    event = {"status": "unknown", "view": JobView("7", phase=Phase.UNKNOWN, state="RUNNING", cause=cause).to_json()}
    if done:
        assert task.resume(first, event)["job_id"] == "7"
    else:
        with pytest.raises(UnknownOutcome):
            task.resume(first, event)
    end = store.end_of("work", 1)
    assert (end.outcome if end is not None else None) == ("succeeded" if done else None)


def test_shards_that_were_rolled_back_use_up_no_retry(make: Make) -> None:
    task = make(SlurmArrayOperator, shards=2, shard_retries=0)
    tasks = {
        "0": JobView("7_0", phase=Phase.SUCCEEDED, state="COMPLETED").to_json(),
        "1": JobView("7_1", phase=Phase.LOST, state="CANCELLED", cause=FORGOTTEN, retryable=True).to_json(),
    }
    with pytest.raises(TaskDeferred) as again:
        task.resume(task.execute(), {"status": "ended", "view": JobView("7", phase=Phase.LOST).to_json(), "tasks": tasks})
    assert again.value.kwargs["request_state"]["array"] == "1"


def test_a_launch_that_failed_is_the_sites_doing() -> None:
    row = queue_rows("7|7|PENDING|1|0|50|N/A|N/A|1||launch failed requeued held|a\n")[0]
    view = judge(JobView("7"), Observation(100.0, row))
    assert (view.phase, view.cause, view.retryable) == (Phase.WAITING, "launch_failed", True)
    assert not row.held_by_us
