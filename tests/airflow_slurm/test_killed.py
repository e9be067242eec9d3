"""What becomes of a job whose worker is told to end, or whose task's time is over; deferred or not, the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred
from airflow.sdk.execution_time.timeout import timeout

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import JobFailed, JobFailedForGood, Resubmit, UnreadableAnswer
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import JobEnd, Owner
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.arrays import compact
from airflow_slurm.truth.view import JobView
from airflow_slurm.work import killed, steps

from .conftest import OTHER
from .crowd import Crowd
from .login_node import LoginNode
from .tasks import Make, Task

NAME = job_name_for("work", 1)


@pytest.fixture
def crowd(make: Make, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    """A cluster on which the job of the task runs."""
    there = Crowd({"7": (NAME, "RUNNING")})
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", '{"conn_type": "slurm", "host": "login", "login": "me", "extra": {"poll_interval_s": 0.3}}')
    monkeypatch.setattr(SlurmHook, "get_client", lambda self: there.get_client(self.slurm_conn_id))
    return there


@contextmanager
def told_to_end(operator: SlurmJobOperator, crowd: Crowd, *, ends: bool = False) -> Iterator[None]:
    """As Airflow's task runner: a signal, whose handler calls on_kill and lets the program go on; it comes once the job is waited for.

    :param ends: whether the job ends by itself a second later.
    """

    def handler(*_: object) -> None:
        operator.on_kill()
        if ends:
            threading.Timer(1.0, lambda: crowd.end("7")).start()

    def tell() -> None:
        soon(lambda: crowd.count("squeue") > 0)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        teller.join()
        signal.signal(signal.SIGTERM, before)


def soon(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60.0
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


def cancels(crowd: Crowd) -> list[str]:
    return [" ".join(argv) for argv in crowd.asked if argv[0] == "scancel"]


def states(monkeypatch: pytest.MonkeyPatch, state: str | None) -> None:
    monkeypatch.setattr(killed, "task_state", lambda owner: state)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_task_that_a_person_ends_ends_its_job_though_it_does_not_defer(
    make: Make, crowd: Crowd, store: FileReceipts, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    states(monkeypatch, state)
    task = make(deferrable=False)
    operator = task.make()
    with told_to_end(operator, crowd), pytest.raises(JobFailed):
        operator.execute(task.context)
    assert cancels(crowd) == ["scancel --batch --signal=USR1 7"]
    soon(lambda: store.get("work") is None)
    assert crowd.jobs == {}


@pytest.mark.parametrize("state", ["running", "restarting", None])
def test_a_worker_that_alone_is_stopped_ends_nothing(make: Make, crowd: Crowd, monkeypatch: pytest.MonkeyPatch, state: str | None) -> None:
    states(monkeypatch, state)
    task = make(deferrable=False)
    operator = task.make()
    with told_to_end(operator, crowd, ends=True):
        assert operator.execute(task.context)["state"] == "COMPLETED"
    assert cancels(crowd) == []


def test_a_job_that_another_run_waits_for_goes_on(make: Make, crowd: Crowd, store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    states(monkeypatch, "failed")
    task = make(deferrable=False)
    store.claim("work", OTHER)
    operator = task.make()
    with told_to_end(operator, crowd, ends=True):
        operator.execute(task.context)
    assert cancels(crowd) == []


def test_a_task_that_was_cleared_while_its_worker_asked_for_its_state_keeps_its_job(
    make: Make, crowd: Crowd, store: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make(deferrable=False)
    operator = task.make()

    def cleared_meanwhile(owner: Owner) -> str:
        store.claim("work", owner)  # the next try, which is the same owner
        return "failed"

    monkeypatch.setattr(killed, "task_state", cleared_meanwhile)
    with told_to_end(operator, crowd, ends=True):
        operator.execute(task.context)
    assert cancels(crowd) == []


def test_a_task_that_is_over_submits_nothing_more(make: Make, crowd: Crowd, store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    class GoesOn(SlurmJobOperator):
        def accept(self, context: Any, request_state: dict[str, Any], view: JobView) -> Any:
            raise Resubmit("interrupted")

    states(monkeypatch, "failed")
    task = make(GoesOn, deferrable=False)
    operator = task.make()
    with told_to_end(operator, crowd), pytest.raises(JobFailed, match="nothing is submitted any more"):
        operator.execute(task.context)
    assert store.end_of("work", 2) is None
    soon(lambda: store.get("work") is None)


def test_on_kill_takes_about_a_second_whatever_the_cluster_does(
    make: Make, crowd: Crowd, store: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    states(monkeypatch, "failed")
    crowd.saves = False
    operator = submitted(make, monkeypatch)
    operator.on_kill()
    assert crowd.jobs != {}, "it is back before the job has ended"
    soon(lambda: cancels(crowd) == ["scancel --batch --signal=USR1 7"])
    live = store.get("work")
    assert live is not None
    assert live.ending  # so that the reconciler ends it, and nobody adopts it


def test_without_anything_claimed_nothing_is_asked(make: Make, crowd: Crowd) -> None:
    make().make().on_kill()
    assert crowd.asked == []


def submitted(make: Make, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> SlurmJobOperator:
    """An operator whose process has submitted its job and does not wait for it yet."""

    def stands_still(*_: object) -> None:
        raise KeyboardInterrupt

    task = make(**kwargs)
    operator = task.make()
    with monkeypatch.context() as patched:
        patched.setattr(steps, "keep_links", stands_still)
        with pytest.raises(KeyboardInterrupt):
            operator.execute(task.context)
    return operator


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_time_that_is_over_while_submitting_gives_the_job_up(
    make: Make, crowd: Crowd, store: FileReceipts, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """As Airflow's task runner: on_kill is called while the alarm's exception is handled, and the task is still running."""
    states(monkeypatch, "running")
    operator = submitted(make, monkeypatch, deferrable=deferrable)
    try:
        raise AirflowTaskTimeout("Timeout")
    except AirflowTaskTimeout:
        operator.on_kill()
    soon(lambda: store.get("work") is None)
    assert cancels(crowd) == ["scancel --batch --signal=USR1 7"]


def timed_out(task: Task, seconds: float) -> None:
    """The task with Airflow's own alarm, in the worker."""
    with timeout(seconds):
        task.make().execute(task.context)


def test_the_execution_timeout_of_a_task_that_does_not_defer_ends_its_job_in_order(make: Make, crowd: Crowd, store: FileReceipts) -> None:
    crowd.saves = False
    task = make(deferrable=False, execution_timeout=timedelta(seconds=4), stop_grace_s=1.0)
    with pytest.raises(JobFailed, match="execution_timeout is over") as caught:
        timed_out(task, 4.0)
    assert (caught.value.retryable, caught.value.cause) == (True, "timed_out")
    assert cancels(crowd) == ["scancel --batch --signal=USR1 7", "scancel 7"]
    end = store.end_of("work", 1)
    assert end is not None
    assert (end.outcome, end.cause, crowd.jobs) == ("cancelled", "given_up", {})


def test_the_alarm_of_a_worker_that_waits_never_comes_in_the_middle_of_an_end(make: Make, crowd: Crowd, store: FileReceipts) -> None:
    """The task was started a while before Airflow set its alarm."""
    crowd.saves = False
    task = make(deferrable=False, execution_timeout=timedelta(seconds=5), stop_grace_s=4.0)
    task.ti.start_date = datetime.now(UTC) - timedelta(seconds=2.5)
    with pytest.raises(JobFailed, match="execution_timeout is over"):
        timed_out(task, 5.0)
    assert store.get("work") is None


def test_a_job_that_ended_before_its_time_was_over_is_taken_and_not_cancelled(make: Make, crowd: Crowd, store: FileReceipts) -> None:
    """Since the last look before the alarm; accounting is late with the end besides."""
    crowd.late = 2
    task = make(deferrable=False, execution_timeout=timedelta(seconds=4))

    class JustBefore(timeout):
        def handle_timeout(self, *rung: Any) -> None:
            crowd.end("7")
            super().handle_timeout(*rung)

    with JustBefore(4):
        assert task.make().execute(task.context)["state"] == "COMPLETED"
    assert cancels(crowd) == []
    end = store.end_of("work", 1)
    assert end is not None
    assert end.outcome == "succeeded"


def test_a_deferred_task_looks_again_before_it_gives_up(make: Make, crowd: Crowd, store: FileReceipts) -> None:
    task = make(execution_timeout=timedelta(minutes=5))
    deferred = task.execute()
    crowd.end("7")
    runs = JobView("7", phase=Phase.RUNNING, state="RUNNING").to_json()
    with pytest.raises(TaskDeferred) as again:
        task.resume(deferred, {"status": "timed_out", "view": runs})
    event = task.wait(again.value)
    assert event["status"] == "ended"
    assert task.resume(again.value, event)["state"] == "COMPLETED"


def test_one_that_hangs_in_its_end_is_given_up_after_all(make: Make, crowd: Crowd, store: FileReceipts) -> None:
    task = make(stop_grace_s=0.2)
    deferred = task.execute()
    crowd.jobs["7"] = (NAME, "COMPLETING")
    hangs = JobView("7", phase=Phase.ENDING, state="COMPLETING").to_json()
    with pytest.raises(JobFailed, match="execution_timeout is over"):
        task.resume(deferred, {"status": "timed_out", "view": hangs})
    assert crowd.jobs == {}


@pytest.mark.parametrize("silent", [1, 2])
def test_a_cluster_that_does_not_answer_while_a_job_is_given_up_uses_up_no_try(
    make: Make, crowd: Crowd, store: FileReceipts, silent: int
) -> None:
    """The question whether it has started, or the end itself: which the reconciler may bring about meanwhile."""
    crowd.jobs["7"] = (NAME, "PENDING")
    crowd.silent_looks = (silent,)
    task = make(max_wait_s=60.0, stop_grace_s=0.2)
    event = {"status": "waited_too_long", "view": JobView("7", phase=Phase.WAITING, state="PENDING").to_json()}
    with pytest.raises(TaskDeferred) as later:
        task.resume(task.execute(), event)
    assert later.value.method_name == "accept_later"
    if silent == 2:
        crowd.end("7", "CANCELLED by 1000")
        store.close("work", 1, JobEnd("cancelled", "given_up", closed_by="reconciler"))
    with pytest.raises(JobFailedForGood, match="max_wait_s"):
        task.resume(later.value, {"status": "now"})
    assert (crowd.jobs, store.get("work")) == ({}, None)


def test_of_an_array_that_stands_still_only_what_waits_is_cancelled_and_the_rest_is_taken(
    make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = f"7|7_[1-2]|PENDING|0|0|50|N/A|N/A|1||PartitionDown|{NAME}\n"
    node = LoginNode(squeue=[Answer(stuck, "", 0)])
    monkeypatch.setattr(SlurmHook, "get_client", lambda self: node)
    task = make(SlurmArrayOperator, shards=3, max_wait_s=60.0, shard_retries=0)
    waits = JobView("7", phase=Phase.WAITING, state="PENDING", reason="PartitionDown")
    done = JobView("7_0", phase=Phase.SUCCEEDED, state="COMPLETED")
    event = {"status": "waited_too_long", "view": waits.to_json(), "tasks": {"0": compact(done), "1": compact(waits), "2": compact(waits)}}
    with pytest.raises(TaskDeferred) as again:
        task.resume(task.execute(), event)
    assert [argv for argv in node.asked if argv[0] == "scancel"] == [["scancel", "--state=PENDING", "7"]]
    gone = JobView("7_1", phase=Phase.FAILED, state="CANCELLED", cause="cancelled")
    tasks = {"0": compact(done), "1": compact(gone), "2": compact(gone)}
    with pytest.raises(JobFailedForGood, match="2 of 3 shards"):
        task.resume(again.value, {"status": "ended", "view": gone.to_json(), "tasks": tasks})
    end = store.end_of("work", 1)
    assert end is not None
    assert end.shards["0"]["outcome"] == "succeeded"


def test_an_array_of_which_nothing_has_started_is_given_up_whole_with_the_reason(make: Make, crowd: Crowd, store: FileReceipts) -> None:
    crowd.jobs["7"] = (NAME, "PENDING")
    crowd.reason = "PartitionDown"
    task = make(SlurmArrayOperator, shards=3, max_wait_s=60.0)
    waits = JobView("7", phase=Phase.WAITING, state="PENDING", reason="PartitionDown")
    event = {"status": "waited_too_long", "view": waits.to_json(), "tasks": {str(i): compact(waits) for i in range(3)}}
    with pytest.raises(JobFailedForGood, match=r"max_wait_s.*PartitionDown: the partition is down; clears by a person"):
        task.resume(task.execute(), event)
    assert (crowd.jobs, store.get("work")) == ({}, None)


def test_an_answer_that_cannot_be_read_uses_up_no_retry(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def garbled(*_: Any, **__: Any) -> None:
        raise UnreadableAnswer("squeue printed a line of an unknown form")

    task = make()
    monkeypatch.setattr(steps, "submit", garbled)
    assert task.execute().method_name == "submit_again"
