"""What a stage's task does around its job: plan it, place it, and take its end for what it is."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_slurm.errors import JobFailed, Resubmit, UnknownOutcome
from airflow_slurm.requests import Done, JobRequest
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.holds import output_decides
from airflow_slurm.truth.reconcile import FORGOTTEN, NO_ACCOUNTING
from airflow_slurm.truth.view import JobView
from include.domain.errors import IntegrityError
from include.domain.layout import AttemptName, RunDir, source_dir
from include.domain.spec import RunSpec
from include.flows import services
from include.flows.after_commit import after_commit, after_failure
from include.flows.foretelling import foretell, say_what_was_seen
from include.flows.live_run import lines_of
from include.flows.placing import place, stop_policy
from include.flows.planners import plan
from include.settings.catalogue import cluster, store_root
from include.stages.errors import Interrupted, NotComplete, RunFailed
from include.stages.plan import Plan
from include.stages.record import read_outputs, read_report, result
from include.stores.errors import NotFound

JOB_PREFIX = "align"
RESUBMIT_CAUSES = ("time_limit", "preempted", "node_fail", "boot_fail", "launch_failed", "requeued")
"""Losses that say nothing about the program: the next attempt follows in the same try of the task."""
SITE_CAUSES = ("no_module", "no_env_file", "wrong_image")
"""The job's script ended before the program had begun, and would again: a person puts it right."""
LOOK_AGAIN_S = 2.0
_AFTER_A_FAILURE_S = 4.0

log = logging.getLogger(__name__)
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Ended:
    """A job that ended: which run and attempt it was, what Slurm says of it, how long its report may take to appear."""

    spec: RunSpec
    attempt: str
    view: JobView
    deadline_s: float

    @classmethod
    def of(cls, request_state: Json, view: JobView) -> Self:
        carried = request_state["carry"]
        attempt = AttemptName(int(request_state["n"]), int(view.job_id), view.restarts)
        return cls(RunSpec.from_json(carried["spec"]), str(attempt), view, float(carried["deadline_s"]))

    @property
    def folder(self) -> str:
        return RunDir(self.spec.key).attempt(self.attempt)


def prepare(stage: str, run: Json, given: Json) -> JobRequest | Done:
    """The committed result of the same key, or the request for a job that makes it."""
    return request_of(plan(stage, run, given), run)


def request_of(made: Plan, run: Json, *, foretold: bool = False) -> JobRequest | Done:
    """The same for a plan; `foretold`: what it costs was said with its parts."""
    where, store, catalog = cluster(), services.store(), services.catalog()
    catalog.runs.plan(made.spec)
    if (done := catalog.runs.committed(made.key)) is not None:
        log.info("%s %s: reused, committed by attempt %s", made.spec.stage, made.key, done.attempt)
        return Done(committed(made.spec, run, reused=True), made.key)
    estimated = {} if foretold else foretell(made, run, where)
    placed = place(made, where, store_root(where), whereabouts(made, store.uri), estimated)
    log.info("%s %s: %s", made.spec.stage, made.key, placed.resources())
    return JobRequest(
        key=made.key,
        spec=placed.job,
        job_name=lambda n: job_name(made.key, n),
        stage_in=placed.stage_in(store),
        receipts=services.RECEIPTS,
        receipts_config=services.receipts_config(int(placed.resources()["gpus"]) * int(placed.resources()["nodes"])),
        max_unknown_s=where.max_unknown_s,
        max_wait_s=placed.max_wait_s,
        stop=stop_policy(where),
        lines=lines_of(made.key, store_root(where)),
        carry={"spec": made.spec.to_json(), "deadline_s": where.visibility_deadline_s},
    )


def job_name(key: str, n: int) -> str:
    """The name under which submission `n` of a stage's key can be found again in the queue."""
    return f"{JOB_PREFIX}-{key.removeprefix('sha256:')[:16]}-{n}"


def whereabouts(made: Plan, store_uri: str) -> Callable[[str], str]:
    """Where an input lies, relative to the store's root: the catalog knows artifacts; a base's raw file lies under its own sha256."""
    if made.spec.stage == "base_import":
        return source_dir
    return lambda digest: services.catalog().artifacts.locate(digest, store_uri)


def accept(ended: Ended, run: Json) -> dict[str, Any]:
    """The result of a job that ended.

    Raises:
        Resubmit: it saved and wants to go on, or was lost through no fault of its own.
        JobFailed: it failed; retryable where a next attempt could do better.
    """
    take(ended)
    return committed(ended.spec, run, reused=False)


def take(ended: Ended) -> None:
    """Commits what a job that ended has made; a key that is committed stays as it is. Raises as `accept` does."""
    if services.catalog().runs.committed(ended.spec.key) is not None:
        return
    patient = _may_be_whole(ended.view) and ended.view.cause != FORGOTTEN
    report = _report(ended, ended.deadline_s if patient else _AFTER_A_FAILURE_S)
    if report is None:
        if isinstance(error := _without_report(ended), JobFailed):
            after_failure(ended.spec, ended.attempt, None, error.cause or "no report", str(error))
        raise error
    try:
        _commit(ended, report)
    except (IntegrityError, NotFound) as error:
        raise JobFailed(f"the report of {ended.attempt} is complete, and its outputs are not: {error}", cause="output differs") from error


def accept_unknown(ended: Ended, run: Json) -> dict[str, Any]:
    """Takes what a job whose outcome nobody knows has made, if that is whole. Anything else stays unknown, and a person decides."""
    if take_unknown(ended):
        return committed(ended.spec, run, reused=False)
    raise UnknownOutcome(
        f"what became of job {ended.view.job_id} ({ended.spec.stage}, {ended.spec.key}) is not known: {ended.view.describe()}. "
        f"Look at the cluster, then say what happened: bin/align resolve {ended.spec.key} lost|ended --why '…'"
    )


def take_unknown(ended: Ended) -> bool:
    """Commits what a job of unknown outcome has made; whether that is known then.

    A complete report with outputs that verify is written last, and is the evidence that Slurm can't give any more. A report that says less says
    nothing about what the job does now, but at a site without accounting: there it has left the queue, and any report is its end.

    Raises:
        Resubmit, JobFailed: as `accept`, at a site without accounting.
    """
    if services.catalog().runs.committed(ended.spec.key) is not None:
        return True
    if (report := _report(ended, ended.deadline_s)) is None:
        return False
    try:
        _commit(ended, report, gone=True)
    except (Resubmit, JobFailed, IntegrityError, NotFound) as less:
        if ended.view.cause == NO_ACCOUNTING:
            raise
        log.warning("job %s left a report that does not tell how it ended: %s", ended.view.job_id, less)
        return False
    return True


def _may_be_whole(view: JobView) -> bool:
    return view.phase == Phase.SUCCEEDED or output_decides(view)


def _without_report(ended: Ended) -> Exception:
    view, stage = ended.view, ended.spec.stage
    if view.cause in RESUBMIT_CAUSES:
        return Resubmit(str(view.cause))
    words = f"{stage}: job {view.job_id} ended as {view.describe()} and left no report in {ended.folder}; its words are in the job's log"
    if view.phase == Phase.SUCCEEDED:
        return JobFailed(f"{words}. COMPLETED alone is no success.", retryable=True, cause="no report")
    return JobFailed(words, retryable=view.cause not in SITE_CAUSES, cause=str(view.cause or "no report"))


def _report(ended: Ended, deadline_s: float) -> dict[str, Any] | None:
    """report.json of the attempt; shared file systems show files late, so it is looked for until the deadline."""
    path, store = f"{ended.folder}/report.json", services.store()
    until = time.monotonic() + deadline_s
    while not store.exists(path):
        if time.monotonic() >= until:
            return None
        time.sleep(LOOK_AGAIN_S)
    found: dict[str, Any] = store.read_json(path)
    return found


def _commit(ended: Ended, report: dict[str, Any], *, gone: bool = False) -> None:
    """Commits a complete attempt whose outputs are all there by size; the job itself has hashed them."""
    spec, store = ended.spec, services.store()
    try:
        checked = read_report(report, spec, ended.attempt)
        if not gone and not _may_be_whole(ended.view):
            words = f"the report of {ended.attempt} is complete, but Slurm says {ended.view.describe()}"
            raise JobFailed(words, retryable=True, cause="contradiction")
        manifests = read_outputs(store.read_json(f"{ended.folder}/output/manifest.json"), checked)
    except Interrupted as error:
        services.catalog().runs.record_report(spec.key, ended.attempt, report)
        log.warning("%s; the next attempt resumes from its last checkpoint", error)
        raise Resubmit("interrupted") from error
    except RunFailed as error:
        services.catalog().runs.record_report(spec.key, ended.attempt, report)
        after_failure(spec, ended.attempt, report)
        raise JobFailed(str(error), retryable=report["stop_reason"] == "error", cause=str(report["stop_reason"])) from error
    except NotComplete as error:
        raise JobFailed(str(error), retryable=False, cause="not complete") from error
    for name, manifest in manifests.items():
        store.check_sizes(f"{ended.folder}/output/{name}", manifest)
    outputs = {name: manifest.to_json() for name, manifest in manifests.items()}
    services.catalog().runs.commit_attempt(spec.key, ended.attempt, report, outputs, store.uri)
    say_what_was_seen(report)


def committed(spec: RunSpec, run: Json, *, reused: bool) -> dict[str, Any]:
    """The result as the catalog has it, after what follows a commit has been done (again): links, tracker."""
    done = services.catalog().runs.committed(spec.key)
    if done is None:
        raise NotComplete(f"{spec.key} is not committed")
    after_commit(spec, done, run)
    outputs = {name: {"kind": out.kind, "digest": out.digest} for name, out in done.outputs.items()}
    return result(spec, done.attempt, done.report, outputs, reused=reused).to_json()
