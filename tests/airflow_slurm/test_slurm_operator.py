"""The operator from submission to result, each step on an instance of its own, as in separate processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_slurm.errors import InvalidSpec, JobFailed, JobFailedForGood, Resubmit, SubmitRefused, UnknownOutcome
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import STATE_KEY, Done, JobRequest, SlurmJobOperator
from airflow_slurm.receipts import Receipt
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.states import Phase
from airflow_slurm.spec import JobSpec
from airflow_slurm.triggers import SubmitLaterTrigger
from airflow_slurm.truth.view import JobView
from local.slurm_cluster import PrivateSlurm

from .conftest import CONN_ID, HASTY, connection_uri
from .looking import submit_held
from .tasks import Task

pytestmark = pytest.mark.slurm
JobsNamed = Callable[[str], list[tuple[str, str]]]


def test_from_submission_to_result(operator: Any, store: FileReceipts, key: str) -> None:
    result = Task(operator({"command": ["true"]})).run()
    assert (result["state"], result["n"]) == ("COMPLETED", 1)
    end = store.end_of(key, 1)
    assert end is not None
    assert (end.outcome, end.closed_by) == ("succeeded", "d/r1/t/-1")


def test_the_same_without_deferring(operator: Any, store: FileReceipts, key: str) -> None:
    task = Task(operator({"command": ["true"]}, deferrable=False))
    assert task.make().execute(task.context)["state"] == "COMPLETED"
    assert store.get(key) is None


def test_completed_without_the_expected_output_is_no_success(operator: Any, store: FileReceipts, key: str, shared: Path) -> None:
    make = operator({"command": ["true"]}, expected_output=f"{shared}/model", visibility_deadline_s=0.0)
    with pytest.raises(JobFailed, match="is not there") as caught:
        Task(make).run()
    assert caught.value.retryable
    end = store.end_of(key, 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("failed", "output_missing")


def test_expected_output_that_is_there(operator: Any, shared: Path) -> None:
    make = operator({"command": ["touch", f"{shared}/model"]}, expected_output=f"{shared}/model")
    assert Task(make).run()["state"] == "COMPLETED"


def test_a_failed_job_fails_the_task_and_the_next_try_submits_anew(operator: Any, store: FileReceipts, key: str, shared: Path) -> None:
    task = Task(operator({"body": f"[ -e {shared}/second ] || {{ touch {shared}/second; exit 3; }}"}))
    with pytest.raises(JobFailed, match="exit 3") as caught:
        task.run()
    assert not isinstance(caught.value, AirflowFailException)
    assert task.run()["n"] == 2


def test_a_cancelled_job_is_not_retried(operator: Any, connection: str) -> None:
    task = Task(operator({"command": ["sleep", "600"]}))
    deferred = task.execute()
    job_id = deferred.kwargs["request_state"]["job_id"]
    SlurmHook(connection).run(lambda client: client.cancel(job_id))
    with pytest.raises(JobFailedForGood, match="CANCELLED"):
        task.resume(deferred, task.wait(deferred))


def until_told(shared: Path) -> dict[str, str]:
    """A job that ends when a file is there."""
    return {"body": f"while [ ! -e {shared}/go ]; do sleep 0.1; done"}


def test_a_second_try_finds_the_running_job_again(operator: Any, jobs_named: JobsNamed, shared: Path) -> None:
    task = Task(operator(until_told(shared)))
    first, second = task.execute(), task.execute()
    (shared / "go").touch()
    states = [deferred.kwargs["request_state"] for deferred in (first, second)]
    assert states[0]["job_id"] == states[1]["job_id"]
    assert len(jobs_named(states[0]["job_name"])) == 1
    assert task.resume(second, task.wait(second))["job_id"] == states[0]["job_id"]


def test_a_second_try_finds_a_job_that_has_completed_meanwhile(operator: Any, jobs_named: JobsNamed, store: FileReceipts, key: str) -> None:
    task = Task(operator({"command": ["true"]}))
    first = task.execute()
    task.wait(first)  # and the worker that should have resumed died
    second = task.execute()
    result = task.resume(second, task.wait(second))
    assert (result["n"], result["job_id"]) == (1, first.kwargs["request_state"]["job_id"])
    assert len(jobs_named(first.kwargs["request_state"]["job_name"])) == 1


def test_two_runs_of_one_key_share_a_job_and_both_get_its_result(operator: Any, shared: Path) -> None:
    make = operator(until_told(shared))
    one, two = Task(make, "r1"), Task(make, "r2")
    first, second = one.execute(), two.execute()
    (shared / "go").touch()
    results = [one.resume(first, one.wait(first)), two.resume(second, two.wait(second))]
    assert results[0]["job_id"] == results[1]["job_id"]


def test_with_another_key_the_old_job_is_ended_before_the_new_one_is_sent(
    operator: Any, store: FileReceipts, key: str, jobs_named: JobsNamed
) -> None:
    task = Task(operator({"command": ["sleep", "600"]}))
    old = task.execute().kwargs["request_state"]
    task.make = operator({"command": ["true"]}, key=f"{key}/changed")
    assert task.run()["n"] == 1
    assert jobs_named(old["job_name"])[0][1] in ("FAILED", "CANCELLED")
    end = store.end_of(key, 1)
    assert end is not None
    assert end.outcome == "cancelled"


def test_with_another_key_the_old_job_of_another_run_goes_on(operator: Any, key: str, jobs_named: JobsNamed) -> None:
    make = operator({"command": ["sleep", "600"]})
    one, two = Task(make, "r1"), Task(make, "r2")
    old = one.execute().kwargs["request_state"]
    two.execute()
    one.make = operator({"command": ["true"]}, key=f"{key}/changed")
    one.run()
    assert jobs_named(old["job_name"])[0][1] in ("PENDING", "RUNNING")


def test_a_refused_job_fails_for_good_with_slurms_words(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unchecked(self: SlurmClient, *_: Any) -> None:
        """As at a site of which nothing is known."""

    monkeypatch.setattr(SlurmClient, "check_possible", unchecked)
    task = Task(operator({"command": ["true"], "partition": "nowhere"}))
    with pytest.raises(SubmitRefused, match="Invalid partition name specified"):
        task.make().execute(task.context)


def test_without_a_controller_the_task_waits_and_uses_up_no_retry(slurm: PrivateSlurm, operator: Any, jobs_named: JobsNamed) -> None:
    class Quick(SlurmJobOperator):
        def prepare(self, context: Any) -> JobRequest:
            base = super().prepare(context)
            assert isinstance(base, JobRequest)
            return JobRequest(base.key, base.spec, base.receipts, base.receipts_config, look_up_s=2.0, stop=HASTY)

    task = Task(operator({"command": ["true"]}, Quick))
    slurm.kill("slurmctld")
    later = task.execute()
    assert isinstance(later.trigger, SubmitLaterTrigger)
    assert later.kwargs["progress"]["tries"] == 1
    slurm.spawn("slurmctld")
    with pytest.raises(TaskDeferred) as caught:
        task.resume(later, {"status": "now"})
    state = caught.value.kwargs["request_state"]
    assert [job for job, _ in jobs_named(state["job_name"])] == [state["job_id"]]
    assert task.resume(caught.value, task.wait(caught.value))["state"] == "COMPLETED"


def test_a_full_queue_is_waited_for_without_a_retry_and_then_submitted_once(
    slurm: PrivateSlurm, operator: Any, jobs_named: JobsNamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "bin"
    full.mkdir()
    said = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    first = f"[ $(wc -l < \"$0.calls\") -gt 1 ] || {{ printf '{said}\\n' >&2; exit 1; }}"
    (full / "sbatch").write_text(f'#!/bin/sh\necho x >> "$0.calls"\n{first}\nPATH="${{PATH#*:}}" exec sbatch "$@"\n')
    (full / "squeue").write_text('#!/bin/sh\necho x >> "$0.calls"\nPATH="${PATH#*:}" exec squeue "$@"\n')
    for command in ("sbatch", "squeue"):
        (full / command).chmod(0o755)
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection_uri(slurm, slurm_bin=str(full)))
    task = Task(operator({"command": ["true"]}))
    later = task.execute()
    assert isinstance(later.trigger, SubmitLaterTrigger)
    assert later.kwargs["progress"]["nothing_sent"] is True
    (full / "squeue.calls").unlink(missing_ok=True)
    with pytest.raises(TaskDeferred) as caught:
        task.resume(later, {"status": "now"})
    looks = len((full / "squeue.calls").read_text().splitlines())
    assert looks <= 2  # one by name before, one with the submission: not half a minute of them
    state = caught.value.kwargs["request_state"]
    assert state["n"] == 1
    assert [job for job, _ in jobs_named(state["job_name"])] == [state["job_id"]]


class Interrupted(SlurmJobOperator):
    """Submits until its program has had three attempts, as one that saves and ends with 75 asks for."""

    def accept(self, context: Any, request_state: dict[str, Any], view: JobView) -> Any:
        if view.exit_code == 75:
            raise Resubmit("interrupted")
        return super().accept(context, request_state, view)


def test_an_interrupted_job_goes_on_in_the_next_submission_of_the_same_try(
    operator: Any, store: FileReceipts, key: str, shared: Path
) -> None:
    body = f"echo x >> {shared}/tries; [ $(wc -l < {shared}/tries) -ge 3 ] || exit 75"
    task = Task(operator({"body": body}, Interrupted))
    deferred = task.execute()
    for number in (2, 3):
        with pytest.raises(TaskDeferred) as caught:
            task.resume(deferred, task.wait(deferred))
        deferred = caught.value
        assert (deferred.kwargs["request_state"]["n"], deferred.kwargs["request_state"]["resubmits"]) == (number, number - 1)
    assert task.resume(deferred, task.wait(deferred))["n"] == 3
    ends = [store.end_of(key, n) for n in (1, 2, 3)]
    assert [end.outcome for end in ends if end] == ["interrupted", "interrupted", "succeeded"]


def test_work_that_was_done_before_submits_nothing(operator: Any, store: FileReceipts, key: str) -> None:
    class Reuses(SlurmJobOperator):
        def prepare(self, context: Any) -> Done:
            return Done({"artifact": "sha256:1"})

    task = Task(operator({"command": ["true"]}, Reuses))
    assert task.make().execute(task.context) == {"artifact": "sha256:1"}
    assert store.get(key) is None


def test_an_unknown_outcome_closes_nothing_and_is_not_retried(operator: Any, store: FileReceipts, key: str) -> None:
    task = Task(operator({"command": ["sleep", "600"]}))
    deferred = task.execute()
    view = JobView(deferred.kwargs["request_state"]["job_id"], phase=Phase.UNKNOWN, cause="nobody knows")
    with pytest.raises(UnknownOutcome, match="nobody knows") as caught:
        task.resume(deferred, {"status": "unknown", "view": view.to_json()})
    assert isinstance(caught.value, AirflowFailException)
    live = store.get(key)
    assert live is not None
    assert live.n == 1


def test_a_start_that_took_too_long_ends_the_job_and_the_task(
    operator: Any, connection: str, store: FileReceipts, key: str, jobs_named: JobsNamed
) -> None:
    before = SlurmHook(connection).run(
        lambda client: submit_held(client, JobSpec(command=("true",), output="/dev/null"), job_name_for(key, 9))
    )
    task = Task(operator({"command": ["true"], "dependency": f"afterany:{before.job_id}"}, max_wait_s=1.0))
    deferred = task.execute()
    event = task.wait(deferred)
    assert event["status"] == "waited_too_long"
    with pytest.raises(JobFailedForGood, match=r"\(Dependency\).*waited longer"):
        task.resume(deferred, event)
    assert store.get(key) is None
    assert jobs_named(deferred.kwargs["request_state"]["job_name"])[0][1] == "CANCELLED"


def test_a_job_that_started_at_the_last_moment_is_waited_for(operator: Any, store: FileReceipts, key: str) -> None:
    task = Task(operator({"command": ["true"]}, max_wait_s=100.0))
    first = task.execute()
    ended = task.wait(first)
    late = {"status": "waited_too_long", "view": JobView(ended["view"]["job_id"], state="PENDING").to_json()}
    with pytest.raises(TaskDeferred) as caught:
        task.resume(first, late)
    assert task.resume(caught.value, task.wait(caught.value))["state"] == "COMPLETED"


def test_what_the_task_asked_for_is_kept_before_anything_is_sent(operator: Any, key: str) -> None:
    seen: list[Any] = []

    class Looks(SlurmJobOperator):
        def prepare(self, context: Any) -> JobRequest:
            base = super().prepare(context)
            assert isinstance(base, JobRequest)
            stage = lambda n: seen.append((n, dict(context["task_state_store"][STATE_KEY])))  # noqa: E731
            return JobRequest(base.key, base.spec, base.receipts, base.receipts_config, stage_in=stage)

    Task(operator({"command": ["true"]}, Looks)).execute()
    assert [(n, kept["key"], kept["n"]) for n, kept in seen] == [(1, key, 1)]


def test_a_lost_job_is_looked_for_by_its_name_and_not_by_a_stale_id(operator: Any, store: FileReceipts, key: str) -> None:
    task = Task(operator({"command": ["true"]}))
    began = time.time()
    deferred = task.execute()
    live = store.get(key)
    assert live is not None
    assert isinstance(live.receipt, Receipt)
    assert deferred.kwargs["request_state"]["job_name"] == live.receipt.job_name
    assert began <= live.since <= time.time()


def test_a_job_spec_of_unknown_fields_is_refused_before_anything_is_claimed(operator: Any, store: FileReceipts) -> None:
    task = Task(operator({"command": ["true"], "partion": "batch"}))
    with pytest.raises(InvalidSpec, match="partion"):
        task.make().execute(task.context)
    assert store.live() == []


def test_a_job_that_would_write_outside_the_clusters_root_is_refused(
    operator: Any, slurm: PrivateSlurm, store: FileReceipts, key: str, jobs_named: JobsNamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection_uri(slurm, root="/runs"))
    task = Task(operator({"command": ["true"], "output": "/elsewhere/log.txt"}))
    with pytest.raises(InvalidSpec, match="does not lie below '/runs'"):
        task.make().execute(task.context)
    assert jobs_named(job_name_for(key, 1)) == []


def test_equal_specs_are_equal() -> None:
    assert JobSpec.from_mapping({"command": ["a", "b"]}) == JobSpec(command=("a", "b"))
