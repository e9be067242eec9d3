"""A worker that dies after it accepted a job: its retry runs nothing again, a cleared task does."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import ControllerUnreachable, JobFailed, SshUnreachable
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import JobEnd, Receipt
from airflow_slurm.requests import Done
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.shards import ShardEnd
from airflow_slurm.truth.view import JobView
from airflow_slurm.work import earlier, steps

from .tasks import Make, Task

KEY = "work"
VIEW = JobView("7", phase=Phase.SUCCEEDED, state="COMPLETED", elapsed_s=3.0)


def dies_after_accepting(task: Task, **event: Any) -> None:
    """Everything up to the end of ``execute_complete``; Airflow never hears of the result."""
    task.resume(task.execute(), {"status": "ended", "view": VIEW.to_json(), **event})


def test_its_retry_takes_the_accepted_job(make: Make, store: FileReceipts) -> None:
    task = make()
    dies_after_accepting(task)
    for _ in range(2):  # the retry may die as well
        assert task.make().execute(task.context) == {"job_id": "7", "n": 1, "state": "COMPLETED", "elapsed_s": 3.0}
    assert store.get(KEY) is None


def test_a_cleared_task_runs_anew(make: Make, store: FileReceipts) -> None:
    task = make()
    dies_after_accepting(task)
    task.clear()
    assert task.execute().kwargs["request_state"]["n"] == 2


def test_what_another_run_had_accepted_before_is_not_this_ones(make: Make, store: FileReceipts) -> None:
    dies_after_accepting(make())
    assert make(run_id="r2").execute().kwargs["request_state"]["n"] == 2


def test_a_job_that_failed_is_run_again(make: Make, store: FileReceipts) -> None:
    task = make()
    deferred = task.execute()
    store.close(KEY, 1, JobEnd("failed", view=VIEW))
    assert deferred is not None
    assert task.execute().kwargs["request_state"]["n"] == 2


def test_one_that_is_not_acceptable_any_more_is_run_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make()
    dies_after_accepting(task)

    def refuses(*_: Any) -> None:
        raise JobFailed("the output is gone", cause="output_missing")

    monkeypatch.setattr(SlurmJobOperator, "accept", refuses)
    assert task.execute().kwargs["request_state"]["n"] == 2


def test_an_array_gives_the_ends_of_all_its_shards(make: Make, store: FileReceipts) -> None:
    task = make(SlurmArrayOperator, shards=2)
    assert task.execute().kwargs["request_state"]["n"] == 1
    first = {"0": ShardEnd(0, 1, "7_0", "succeeded").to_json(), "1": ShardEnd(1, 1, "7_1", "failed", retryable=True).to_json()}
    store.close(KEY, 1, JobEnd("interrupted", "shards_failed", view=VIEW, shards=first))
    dies_after_accepting(task, tasks={"1": VIEW.to_json()})
    ends = task.make().execute(task.context)
    assert [(end["index"], end["n"], end["outcome"]) for end in ends] == [(0, 1, "succeeded"), (1, 2, "succeeded")]
    task.clear()
    assert task.execute().kwargs["request_state"]["array"] == "0-1"


class Answers:
    """What looking at a job's output comes to, time after time."""

    def __init__(self, *answers: Exception | str) -> None:
        self.left = list(answers)

    def __call__(self, *_: Any) -> str:
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_output_that_nobody_can_look_at_now_is_looked_at_later(make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlurmJobOperator, "accept", Answers(SshUnreachable("no way there"), SshUnreachable("still none"), "seen"))
    task = make()
    deferred, event = task.execute(), {"status": "ended", "view": VIEW.to_json()}
    for seconds in (10.0, 20.0):
        with pytest.raises(TaskDeferred) as later:
            task.resume(deferred, event)
        deferred, event = later.value, {"status": "now"}
        assert (deferred.method_name, deferred.trigger.seconds) == ("accept_later", seconds)
        assert store.get(KEY) is not None
    assert task.resume(deferred, event) == "seen"
    assert store.get(KEY) is None


def test_a_cluster_that_never_answers_again_leaves_it_to_the_next_try(
    make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmJobOperator, "accept", Answers(SshUnreachable("no way there"), "seen"))
    task = make()
    event = {"status": "ended", "view": VIEW.to_json(), "later": {"first_at": time.time() - steps.ACCEPT_WITHIN_S, "tries": 9}}
    with pytest.raises(SshUnreachable, match="no way there"):
        task.resume(task.execute(), event)
    live = store.get(KEY)
    assert live is not None
    assert live.n == 1
    assert task.execute().kwargs["request_state"]["n"] == 1  # found again, not submitted again


class Reuses(SlurmJobOperator):
    """Its first try asks for a job; from then on the work is done."""

    done_key: str | None = KEY
    tries = 0

    def prepare(self, context: Any) -> Any:
        type(self).tries += 1
        return super().prepare(context) if type(self).tries == 1 else Done("kept", self.done_key)


def looks(monkeypatch: pytest.MonkeyPatch, view: JobView) -> list[str]:
    """The site answers every look with this view; the other commands that are sent to it."""
    sent: list[str] = []

    async def look(client: Any, receipt: Receipt, since: float, before: Any = None) -> JobView:
        return view

    async def give_up(client: Any, store: Any, key: str, *_: Any, **__: Any) -> None:
        sent.append(key)

    monkeypatch.setattr(earlier, "look", look)
    monkeypatch.setattr(earlier, "give_up", give_up)
    return sent


@pytest.mark.parametrize(("state", "outcome"), [("COMPLETED", "succeeded"), ("CANCELLED", "ended")])
def test_work_that_turns_out_to_be_done_is_not_other_work(
    make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, outcome: str
) -> None:
    """A worker that died between committing a result and closing the submission."""
    phase = Phase.SUCCEEDED if state == "COMPLETED" else Phase.FAILED
    task = make(type("Once", (Reuses,), {"tries": 0}))
    task.execute()
    given_up = looks(monkeypatch, replace(VIEW, phase=phase, state=state))
    assert task.make().execute(task.context) == "kept"
    end = store.end_of(KEY, 1)
    assert end is not None
    assert (end.outcome, end.cause, end.closed_by) == (outcome, "done_before", "d/r1/t/-1")
    assert given_up == []
    assert "other work" not in capsys.readouterr().out


def test_its_job_is_left_alone_while_it_runs_and_while_nobody_answers(
    make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make(type("Once", (Reuses,), {"tries": 0}))
    task.execute()
    given_up = looks(monkeypatch, replace(VIEW, phase=Phase.RUNNING, state="RUNNING"))
    assert task.make().execute(task.context) == "kept"

    async def nobody(*_: Any) -> None:
        raise ControllerUnreachable("down")

    monkeypatch.setattr(earlier, "look", nobody)
    assert task.make().execute(task.context) == "kept"
    assert store.get(KEY) is not None
    assert given_up == []


@pytest.mark.parametrize("done_key", ["another", None])
def test_the_job_of_another_key_is_given_up_when_no_job_is_needed(
    make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch, done_key: str | None
) -> None:
    task = make(type("Once", (Reuses,), {"tries": 0, "done_key": done_key}))
    task.execute()
    given_up = looks(monkeypatch, VIEW)
    assert task.make().execute(task.context) == "kept"
    assert given_up == [KEY]
    assert "slurm_submission" not in task.state


def test_a_task_whose_time_is_over_gives_its_job_up_and_may_be_retried(
    make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make(execution_timeout=timedelta(minutes=5))
    task.ti.start_date = datetime(2026, 1, 1, tzinfo=UTC)
    given_up = looks(monkeypatch, replace(VIEW, phase=Phase.RUNNING, state="RUNNING"))
    deferred = task.execute()
    assert deferred.trigger.wait["deadline"] == datetime(2026, 1, 1, 0, 5, tzinfo=UTC).timestamp()
    runs = replace(VIEW, phase=Phase.RUNNING, state="RUNNING").to_json()
    with pytest.raises(JobFailed, match="execution_timeout is over") as caught:
        task.resume(deferred, {"status": "timed_out", "view": runs})
    assert (caught.value.retryable, caught.value.cause, given_up) == (True, "timed_out", [KEY])


@pytest.mark.parametrize("cause", ["preempted", "node_fail", "boot_fail", "launch_failed"])
def test_what_slurm_lost_is_submitted_again_in_the_same_try_but_not_for_ever(make: Make, store: FileReceipts, cause: str) -> None:
    lost = {"status": "ended", "view": JobView("7", phase=Phase.LOST, state="LOST", cause=cause, retryable=True).to_json()}
    task = make(loss_retries=2)
    asked = task.execute()
    for n in (2, 3):
        with pytest.raises(TaskDeferred) as again:
            task.resume(asked, lost)
        asked = again.value
        assert asked.kwargs["request_state"]["n"] == n
        end = store.end_of(KEY, n - 1)
        assert end is not None
        assert (end.outcome, end.cause) == ("interrupted", cause)
    with pytest.raises(JobFailed) as failed:
        task.resume(asked, lost)
    assert (failed.value.retryable, failed.value.cause) == (True, cause)


@pytest.mark.parametrize(
    "view",
    [
        JobView("7", phase=Phase.FAILED, state="FAILED", cause="failed", retryable=True, exit_code=1),
        JobView("7", phase=Phase.FAILED, state="TIMEOUT", cause="time_limit", retryable=True),
        JobView("7", phase=Phase.LOST, state="NODE_FAIL", cause="node_fail", retryable=True, doubtful=True),
    ],
)
def test_what_the_program_or_a_doubtful_end_cost_is_for_airflows_retries(make: Make, view: JobView) -> None:
    task = make()
    with pytest.raises(JobFailed) as failed:
        task.resume(task.execute(), {"status": "ended", "view": view.to_json()})
    assert failed.value.retryable is True
