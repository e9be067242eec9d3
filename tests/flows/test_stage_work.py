"""What a job's end is taken for: on a real catalog and a real store, with Slurm's word and the program's report in all combinations."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.errors import JobFailed, Resubmit, UnknownOutcome
from airflow_slurm.requests import Done, JobRequest
from airflow_slurm.slurm.states import TABLE, Phase
from airflow_slurm.truth.holds import GONE as LOST_BY_ITS_CONTROLLER
from airflow_slurm.truth.holds import ROLLED_BACK
from airflow_slurm.truth.view import JobView
from include.domain.canonical import sha256_bytes
from include.domain.layout import RunDir
from include.domain.manifest import FileEntry, Manifest
from include.domain.spec import Report, RunSpec
from include.flows import services, stage_work
from include.flows.stage_work import RESUBMIT_CAUSES, Ended
from tests.flows.conftest import Plane
from tests.flows.things import SFT_GIVEN

ATTEMPT = "2-41.0"
WEIGHTS = b"weights"
POLICY = Manifest("model", (FileEntry("model.safetensors", len(WEIGHTS), sha256_bytes(WEIGHTS)),))
COMPLETED = JobView("41", phase=Phase.SUCCEEDED, state="COMPLETED", exit_code=0)
FAILED = JobView("41", phase=Phase.FAILED, state="FAILED", cause="failed", exit_code=1)
TIMEOUT = JobView("41", phase=Phase.FAILED, state="TIMEOUT", cause="time_limit")
GONE = JobView("41", phase=Phase.UNKNOWN, state="", cause="no_accounting")
CANCELLED = JobView("41", phase=Phase.FAILED, state="CANCELLED", cause="cancelled", doubtful=True)
NODE_FAILED = JobView("41", phase=Phase.LOST, state="NODE_FAIL", cause="node_fail", retryable=True, doubtful=True)
ROLLED_BACK_JOB = JobView("41", phase=Phase.LOST, state="PENDING", cause=ROLLED_BACK, retryable=True)


class Job:
    """A job of SFT that ran as submission 2, and what it left in the store."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.run = plane.run()
        self.spec: RunSpec = stage_work.plan("sft", self.run, SFT_GIVEN).spec
        services.catalog().runs.plan(self.spec)
        self.folder = Path(plane.store_root, RunDir(self.spec.key).attempt(ATTEMPT))

    def leaves(self, weights: bytes = WEIGHTS, **changed: Any) -> None:
        """report.json and output/, whole but for what is changed."""
        good = Report(self.spec.key, ATTEMPT, "complete", "last_step", 1, 40, 40, {"loss": 0.5}, {"policy": POLICY.digest})
        output = self.folder / "output/policy"
        output.mkdir(parents=True, exist_ok=True)
        (output / "model.safetensors").write_bytes(weights)
        manifests = {"schema": "align/outputs/v1", "artifacts": {"policy": POLICY.to_json()}}
        (self.folder / "output/manifest.json").write_text(json.dumps(manifests))
        (self.folder / "report.json").write_text(json.dumps(dataclasses.replace(good, **changed).to_json()))

    def ended(self, view: JobView) -> Ended:
        state = {"n": 2, "carry": {"spec": self.spec.to_json(), "deadline_s": 0}}
        return Ended.of(state, view)

    def accept(self, view: JobView) -> dict[str, Any]:
        return stage_work.accept(self.ended(view), self.run)

    @property
    def committed(self) -> str | None:
        done = services.catalog().runs.committed(self.spec.key)
        return done.attempt if done else None


@pytest.fixture
def job(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(stage_work, "_AFTER_A_FAILURE_S", 0.0)
    monkeypatch.setattr(stage_work, "LOOK_AGAIN_S", 0.0)
    return Job(plane)


def test_a_complete_report_of_a_completed_job_is_committed(job: Job) -> None:
    job.leaves()
    given = job.accept(COMPLETED)
    assert (given["key"], given["attempt"], given["reused"]) == (job.spec.key, ATTEMPT, False)
    assert given["outputs"] == {"policy": {"kind": "model", "digest": POLICY.digest}}
    assert job.committed == ATTEMPT


def test_what_is_committed_is_told_to_mlflow_and_registered(job: Job) -> None:
    job.leaves()
    job.accept(COMPLETED)
    assert job.plane.registry.runs == [job.spec.key]
    assert job.plane.registry.versions == [("demo-tiny-sft", POLICY.digest)]


def test_taking_the_end_again_gives_the_same_and_commits_once(job: Job) -> None:
    job.leaves()
    first = job.accept(COMPLETED)
    (job.folder / "report.json").unlink()
    assert job.accept(COMPLETED) == first
    assert job.accept(FAILED) == first, "what is committed stands, whatever is said of the job later"


def test_a_job_that_saved_and_asked_to_go_on_is_submitted_again(job: Job) -> None:
    job.leaves(outcome="interrupted", stop_reason="signal", last_step=17)
    with pytest.raises(Resubmit) as caught:
        job.accept(TIMEOUT)
    assert caught.value.cause == "interrupted"
    assert job.committed is None
    (row,) = services.catalog().runs.attempts(job.spec.key)
    assert row.report is not None
    assert (row.name, row.report.outcome, row.report.last_step) == (ATTEMPT, "interrupted", 17)


def test_the_report_of_a_job_that_failed_is_kept_too(job: Job) -> None:
    job.leaves(outcome="failed", stop_reason="error", last_step=3, message="out of memory")
    with pytest.raises(JobFailed, match="out of memory"):
        job.accept(FAILED)
    (row,) = services.catalog().runs.attempts(job.spec.key)
    assert row.report is not None
    assert (row.report.outcome, row.report.message) == ("failed", "out of memory")


def test_a_job_that_a_guard_stopped_is_told_to_mlflow_with_guard_reason_and_figures(job: Job) -> None:
    job.leaves(outcome="failed", stop_reason="guard", last_step=3, message="kl_negative: batch KL -2.6", summary={"guard": "kl_negative"})
    (job.folder / "metrics.jsonl").write_text(json.dumps({"step": 3, "loss": 0.5, "kl": -2.6, "time": 1.0, "tokens": 1}) + "\n")
    with pytest.raises(JobFailed, match="batch KL"):
        job.accept(FAILED)
    (log,) = job.plane.registry.logs
    assert (log.spec.key, log.committed) == (job.spec.key, None)
    assert log.outcome == {"outcome": "failed", "stop_reason": "guard", "guard": "kl_negative", "message": "kl_negative: batch KL -2.6"}
    assert [(attempt.name, [row["kl"] for row in attempt.metrics]) for attempt in log.attempts] == [(ATTEMPT, [-2.6])]
    assert json.loads(log.artifacts["report.json"])["summary"]["guard"] == "kl_negative"
    assert job.plane.registry.versions == []


def test_a_job_that_failed_without_a_word_is_told_to_mlflow_by_what_slurm_says(job: Job) -> None:
    with pytest.raises(JobFailed, match="left no report"):
        job.accept(FAILED)
    (log,) = job.plane.registry.logs
    assert (log.outcome["outcome"], log.outcome["stop_reason"], log.outcome["guard"]) == ("failed", "failed", "none")
    assert "left no report in" in log.outcome["message"]
    assert log.artifacts == {}


def test_what_is_submitted_again_is_no_failure_to_mlflow(job: Job) -> None:
    with pytest.raises(Resubmit):
        job.accept(TIMEOUT)
    job.leaves(outcome="interrupted", stop_reason="signal", last_step=17)
    with pytest.raises(Resubmit):
        job.accept(TIMEOUT)
    assert job.plane.registry.logs == []


def test_a_tracker_that_does_not_answer_hides_no_failure(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.leaves(outcome="failed", stop_reason="error", last_step=3, message="out of memory")

    def away(_: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(job.plane.registry, "log_run", away)
    with pytest.raises(JobFailed, match="out of memory"):
        job.accept(FAILED)


def test_losses_are_named_as_slurms_states_are_here() -> None:
    assert set(RESUBMIT_CAUSES) <= {info.cause for info in TABLE.values()}
    assert {info.cause for info in TABLE.values() if info.may_return} <= set(RESUBMIT_CAUSES)


@pytest.mark.parametrize("cause", ["time_limit", "preempted", "node_fail"])
def test_a_job_that_was_lost_without_a_report_is_submitted_again(job: Job, cause: str) -> None:
    with pytest.raises(Resubmit) as caught:
        job.accept(JobView("41", phase=Phase.LOST, state="NODE_FAIL", cause=cause))
    assert caught.value.cause == cause


def test_completed_without_a_report_is_no_success(job: Job) -> None:
    with pytest.raises(JobFailed, match="COMPLETED alone is no success") as caught:
        job.accept(COMPLETED)
    assert (caught.value.cause, caught.value.retryable) == ("no report", True)
    assert job.committed is None


def test_failed_without_a_report_says_where_its_words_are(job: Job) -> None:
    with pytest.raises(JobFailed, match=f"left no report in .*{ATTEMPT}") as caught:
        job.accept(FAILED)
    assert (caught.value.cause, caught.value.retryable) == ("failed", True)


def test_a_complete_report_that_slurm_contradicts_is_no_success(job: Job) -> None:
    job.leaves()
    with pytest.raises(JobFailed, match="is complete, but Slurm says job 41 FAILED") as caught:
        job.accept(FAILED)
    assert (caught.value.cause, caught.value.retryable) == ("contradiction", True)
    assert job.committed is None


@pytest.mark.parametrize(("reason", "retryable"), [("error", True), ("guard", False)])
def test_the_programs_own_failure_is_told_in_its_words(job: Job, reason: str, retryable: bool) -> None:
    job.leaves(outcome="failed", stop_reason=reason, message="loss is nan at step 7")
    with pytest.raises(JobFailed, match="loss is nan at step 7") as caught:
        job.accept(FAILED)
    assert (caught.value.cause, caught.value.retryable) == (reason, retryable)


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"last_step": 39}, "step 39"), ({"attempt": "1-40.0"}, "1-40.0"), ({"outputs": {"policy": "sha256:" + "9" * 64}}, "names outputs")],
)
def test_a_report_that_is_not_of_this_whole_run_is_never_committed_nor_retried(job: Job, changed: dict[str, Any], words: str) -> None:
    job.leaves(**changed)
    with pytest.raises(JobFailed, match=words) as caught:
        job.accept(COMPLETED)
    assert not caught.value.retryable
    assert job.committed is None


def test_an_output_of_another_size_is_named_and_not_committed(job: Job) -> None:
    job.leaves(weights=WEIGHTS[:-1])
    with pytest.raises(JobFailed, match=r"model\.safetensors") as caught:
        job.accept(COMPLETED)
    assert (caught.value.cause, caught.value.retryable) == ("output differs", True)
    assert job.committed is None


def test_without_accounting_a_complete_report_is_taken(job: Job) -> None:
    job.leaves()
    assert stage_work.accept_unknown(job.ended(GONE), job.run)["attempt"] == ATTEMPT
    assert job.committed == ATTEMPT


@pytest.mark.parametrize("cause", [LOST_BY_ITS_CONTROLLER, "accounting does not answer", "the controller does not answer"])
def test_whatever_makes_an_outcome_unknown_a_whole_run_is_a_success(job: Job, cause: str) -> None:
    job.leaves()
    assert stage_work.accept_unknown(job.ended(dataclasses.replace(GONE, cause=cause)), job.run)["attempt"] == ATTEMPT
    assert job.committed == ATTEMPT
    # The worker may die here: the next one finds it committed, whatever has become of the files meanwhile.
    (job.folder / "report.json").unlink()
    assert stage_work.accept_unknown(job.ended(dataclasses.replace(GONE, cause=cause)), job.run)["attempt"] == ATTEMPT


@pytest.mark.parametrize(
    "changed",
    [
        {"outcome": "interrupted", "stop_reason": "signal", "last_step": 17},
        {"outcome": "failed", "stop_reason": "error"},
        {"last_step": 39},
        {"attempt": "1-40.0"},
        {"weights": WEIGHTS[:-1]},
        {"outputs": {"policy": "sha256:" + "9" * 64}},
    ],
)
def test_one_that_is_less_than_whole_stays_unknown_and_is_not_sent_again(job: Job, changed: dict[str, Any]) -> None:
    job.leaves(**changed)
    with pytest.raises(UnknownOutcome, match=f"bin/align resolve {job.spec.key}"):
        stage_work.accept_unknown(job.ended(dataclasses.replace(GONE, cause=LOST_BY_ITS_CONTROLLER)), job.run)
    assert job.committed is None


def test_a_report_without_its_outputs_stays_unknown(job: Job) -> None:
    job.leaves()
    (job.folder / "output/manifest.json").unlink()
    with pytest.raises(UnknownOutcome):
        stage_work.accept_unknown(job.ended(dataclasses.replace(GONE, cause=LOST_BY_ITS_CONTROLLER)), job.run)
    assert job.committed is None


def test_without_accounting_an_interrupted_run_goes_on(job: Job) -> None:
    job.leaves(outcome="interrupted", stop_reason="signal", last_step=17)
    with pytest.raises(Resubmit):
        stage_work.accept_unknown(job.ended(GONE), job.run)


@pytest.mark.parametrize("view", [CANCELLED, NODE_FAILED, ROLLED_BACK_JOB])
def test_a_whole_run_that_its_controller_lost_is_a_success_whatever_slurm_says(job: Job, view: JobView) -> None:
    job.leaves()
    assert job.accept(view)["attempt"] == ATTEMPT
    assert job.committed == ATTEMPT


@pytest.mark.parametrize(
    ("view", "error", "cause"),
    [(CANCELLED, JobFailed, "cancelled"), (NODE_FAILED, Resubmit, "node_fail"), (ROLLED_BACK_JOB, JobFailed, ROLLED_BACK)],
)
def test_without_a_report_its_end_stays_what_slurm_says(job: Job, view: JobView, error: type[Exception], cause: str) -> None:
    with pytest.raises(error) as caught:
        job.accept(view)
    assert getattr(caught.value, "cause", None) == cause
    assert job.committed is None


def test_an_unknown_end_without_a_report_calls_a_person_and_closes_nothing(job: Job) -> None:
    with pytest.raises(UnknownOutcome, match=f"bin/align resolve {job.spec.key}"):
        stage_work.accept_unknown(job.ended(GONE), job.run)
    assert job.committed is None


def test_a_committed_key_is_reused_without_a_job(job: Job) -> None:
    job.leaves()
    job.accept(COMPLETED)
    done = stage_work.prepare("sft", job.run, SFT_GIVEN)
    assert isinstance(done, Done)
    assert done.result["reused"] is True
    assert done.result["outputs"]["policy"]["digest"] == POLICY.digest


def test_a_key_that_is_not_committed_asks_for_a_job_of_its_name(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = services.catalog()
    for digest in (SFT_GIVEN["base"]["outputs"]["base"]["digest"], SFT_GIVEN["datasets"]["demonstrations"]["artifact"]):
        monkeypatch.setattr(catalog.artifacts, "locate", lambda wanted, store: f"somewhere/{wanted[-4:]}")
        assert digest
    request = stage_work.prepare("sft", job.run, SFT_GIVEN)
    assert isinstance(request, JobRequest)
    assert request.key == job.spec.key
    assert request.name_of(3) == f"align-{job.spec.key.removeprefix('sha256:')[:16]}-3"
    assert request.carry["spec"] == job.spec.to_json()
    assert json.loads(json.dumps(request.carry)) == request.carry


def test_a_job_has_as_long_to_save_as_its_cluster_says_and_may_wait_for_a_week(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_work, "whereabouts", lambda made, uri: lambda digest: "somewhere")

    def asked(cluster: dict[str, Any] | None = None, **job: Any) -> JobRequest:
        plane.change_cluster(**cluster or {})
        made = stage_work.plan("sft", plane.run(), SFT_GIVEN)
        request = stage_work.request_of(dataclasses.replace(made, job=made.job.model_copy(update=job)), plane.run())
        assert isinstance(request, JobRequest)
        return request

    assert (asked().max_wait_s, asked().stop.grace_s, asked().stop.signal) == (168 * 3600.0, 60.0, "USR1")
    assert asked({"signal_lead_s": 300}).stop.grace_s == 300.0
    assert asked({"max_wait_h": 2.0}).max_wait_s == 7200.0
    assert asked({"max_wait_h": None}).max_wait_s is None
    assert asked({"max_wait_h": 2.0}, max_wait_h=0.5).max_wait_s == 1800.0
