"""A stage of the chain as an Airflow task: planned here, run by Slurm, taken as done only when the catalog has committed it."""

import time
from collections.abc import Mapping
from typing import Any

from airflow.sdk.definitions.context import Context

from airflow_slurm.errors import JobFailed, Resubmit, UnknownOutcome
from airflow_slurm.operators import Done, JobRequest, SlurmJobOperator
from airflow_slurm.states import Phase
from airflow_slurm.view import JobView
from include.domain.layout import AttemptName, RunDir
from include.domain.spec import RunSpec
from include.flows import services
from include.flows.placing import place
from include.flows.planners import plan
from include.settings.catalogue import cluster, store_root
from include.stages.errors import Interrupted, NotComplete, RunFailed
from include.stages.record import read_outputs, read_report, result

JOB_PREFIX = "align"
_RESUBMIT_CAUSES = ("time_limit", "preempted", "node_failure")
_LOOK_AGAIN_S = 2.0


class StageOperator(SlurmJobOperator):
    """Runs one stage.

    :param stage: base_import, sft, generate, reward_model, policy, evaluate or shadow.
    :param run: what `resolve` returned (templated).
    :param given: earlier results that the stage needs, by name (templated).

    The result is a ``StageResult`` as JSON. The same inputs reuse the committed attempt without a job; a living job of the same key is
    adopted, from whichever DAG run it came.
    """

    template_fields = (*SlurmJobOperator.template_fields, "run", "given")
    ui_color = "#d7e8f7"

    def __init__(self, *, stage: str, run: Any, given: Mapping[str, Any], **kwargs: Any) -> None:
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("pool", "slurm_submissions")
        super().__init__(**kwargs)
        self.stage = stage
        self.run = run
        self.given = dict(given)

    def execute(self, context: Context) -> Any:
        self.slurm_conn_id = cluster().slurm_conn_id
        return super().execute(context)

    def prepare(self, context: Context) -> JobRequest | Done:
        where, store, catalog = cluster(), services.store(), services.catalog()
        made = plan(self.stage, self.run, self.given)
        catalog.runs.plan(made.spec)
        if (done := catalog.runs.committed(made.key)) is not None:
            self.log.info("%s %s: reused, committed by attempt %s", made.spec.stage, made.key, done.attempt)
            return Done(self._committed(made.spec, reused=True))
        placed = place(made, where, store_root(where), lambda digest: catalog.artifacts.locate(digest, store.uri))
        self.log.info("%s %s: resources %s", made.spec.stage, made.key, placed.resources())
        return JobRequest(
            key=made.key,
            spec=placed.job,
            job_name=lambda n: f"{JOB_PREFIX}-{made.key.removeprefix('sha256:')[:16]}-{n}",
            stage_in=placed.stage_in(store),
            receipts=services.RECEIPTS,
            receipts_config=services.receipts_config(),
            max_unknown_s=where.max_unknown_s,
            carry={"spec": made.spec.to_json(), "deadline_s": where.visibility_deadline_s},
        )

    def accept(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        spec = RunSpec.from_json(request_state["carry"]["spec"])
        attempt = str(AttemptName(request_state["n"], int(view.job_id), view.restarts))
        if services.catalog().runs.committed(spec.key) is not None:
            return self._committed(spec, reused=False)
        report = self._report(spec, attempt, float(request_state["carry"]["deadline_s"]) if view.phase == Phase.SUCCEEDED else 4.0)
        if report is None:
            raise self._without_report(spec, attempt, view)
        try:
            checked = read_report(report, spec, attempt)
        except Interrupted as error:
            self.log.warning("%s; the next attempt resumes from its last checkpoint", error)
            raise Resubmit("interrupted") from error
        except RunFailed as error:
            raise JobFailed(str(error), retryable=report.get("stop_reason") == "error", cause=str(report.get("stop_reason"))) from error
        except NotComplete as error:
            raise JobFailed(str(error), retryable=False, cause="not complete") from error
        if view.phase != Phase.SUCCEEDED:
            raise JobFailed(f"the report of {attempt} is complete, but Slurm says {view.describe()}", retryable=True, cause="contradiction")
        self._commit(spec, attempt, report, read_outputs(self._outputs(spec, attempt), checked))
        return self._committed(spec, reused=False)

    def accept_unknown(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        """A site without accounting: the job is gone and a complete report is there. Anything else stays unknown."""
        spec = RunSpec.from_json(request_state["carry"]["spec"])
        attempt = str(AttemptName(request_state["n"], int(view.job_id), view.restarts))
        if view.cause == "no_accounting" and (report := self._report(spec, attempt, float(request_state["carry"]["deadline_s"]))):
            checked = read_report(report, spec, attempt)
            self._commit(spec, attempt, report, read_outputs(self._outputs(spec, attempt), checked))
            return self._committed(spec, reused=False)
        raise UnknownOutcome(
            f"what became of job {view.job_id} ({spec.stage}, {spec.key}) is not known: {view.describe()}. Look at the cluster, then say what "
            f"happened: bin/align resolve {spec.key} lost|ended --why '…'"
        )

    def _without_report(self, spec: RunSpec, attempt: str, view: JobView) -> Exception:
        if view.cause in _RESUBMIT_CAUSES:
            return Resubmit(str(view.cause))
        words = f"{spec.stage}: job {view.job_id} ended as {view.describe()} and left no report in attempts/{attempt}; its words are in the job's log"
        if view.phase == Phase.SUCCEEDED:
            return JobFailed(f"{words}. Slurm's COMPLETED alone is no success.", retryable=True, cause="no report")
        return JobFailed(words, retryable=True, cause=str(view.cause or "no report"))

    def _report(self, spec: RunSpec, attempt: str, deadline_s: float) -> dict[str, Any] | None:
        """report.json of the attempt; shared file systems show files late, so it is looked for until the deadline."""
        path, store = f"{RunDir(spec.key).attempt(attempt)}/report.json", services.store()
        until = time.monotonic() + deadline_s
        while not store.exists(path):
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK_AGAIN_S)
        found: dict[str, Any] = store.read_json(path)
        return found

    def _outputs(self, spec: RunSpec, attempt: str) -> dict[str, Any]:
        found: dict[str, Any] = services.store().read_json(f"{RunDir(spec.key).attempt(attempt)}/output/manifest.json")
        return found

    def _commit(self, spec: RunSpec, attempt: str, report: Mapping[str, Any], manifests: Mapping[str, Any]) -> None:
        store = services.store()
        folder = RunDir(spec.key).attempt(attempt)
        for name, manifest in manifests.items():
            store.check_sizes(f"{folder}/output/{name}", manifest)
        outputs = {name: manifest.to_json() for name, manifest in manifests.items()}
        services.catalog().runs.commit_attempt(spec.key, attempt, dict(report), outputs, store.uri)

    def _committed(self, spec: RunSpec, *, reused: bool) -> dict[str, Any]:
        """The result as the catalog has it, after what follows a commit has been done (again): links, tracker."""
        from include.flows.after_commit import after_commit

        done = services.catalog().runs.committed(spec.key)
        if done is None:
            raise NotComplete(f"{spec.key} is not committed")
        after_commit(spec, done, self.run)
        outputs = {name: {"kind": o.kind, "digest": o.digest} for name, o in done.outputs.items()}
        return result(spec, done.attempt, done.report, outputs, reused=reused).to_json()
