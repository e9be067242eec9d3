"""What the task of a stage that is made in parts does: one array for the parts that are not committed, then the job that takes them all."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_slurm.errors import JobFailed, Resubmit, UnknownOutcome
from airflow_slurm.requests import Done, JobRequest
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.shards import ShardEnd, settle
from airflow_slurm.truth.view import JobView
from include.domain.canonical import digest
from include.domain.layout import AttemptName
from include.domain.spec import RunSpec
from include.flows import services, stage_work
from include.flows.after_commit import stage_log
from include.flows.array_placing import PlacedArray
from include.flows.foretelling import foretell
from include.flows.placing import place, stop_policy
from include.flows.planners import plan
from include.settings.catalogue import cluster, store_root
from include.stages.parts import PlannedPart, Taken, planned_parts, taking
from include.stages.plan import Plan
from include.stores.catalog.receipts import CatalogReceipts

PART_RETRIES = 2
"""How often parts that failed are sent again within one try of the task; interrupted ones go on as often as a job alone does."""
GO_ON = {"parts": "committed"}
"""What the array's end gives: the task goes on with the whole."""
_NOT_ITS_FAULT = (*stage_work.RESUBMIT_CAUSES, FORGOTTEN)

log = logging.getLogger(__name__)
Json = Mapping[str, Any]


def prepare(stage: str, run: Json, given: Json) -> JobRequest | Done:
    """The committed result; or the array of the parts that are not committed; or, with all of them, the job of the whole."""
    whole = plan(stage, run, given)
    parts, runs = planned_parts(whole), services.catalog().runs
    if not parts or runs.committed(whole.key) is not None:
        return stage_work.request_of(whole, run)
    for one in (whole, *(part.plan for part in parts)):
        runs.plan(one.spec)
    taken = {part.name: found for part in parts if (found := _taken(part)) is not None}
    if len(taken) < len(parts):
        foretell(whole, run, cluster())
        return _array(whole, parts, taken)
    log.info("%s %s: made of %d parts", stage, whole.key, len(parts))
    return stage_work.request_of(taking(whole, taken), run, foretold=True)


def _taken(part: PlannedPart) -> Taken | None:
    """What a committed part gave, and where it lies."""
    catalog, root, store = services.catalog(), store_root(cluster()), services.store().uri
    if (done := catalog.runs.committed(part.key)) is None:
        return None
    places = {
        name: {"artifact": (digest_ := done.outputs[name].digest), "path": f"{root}/{catalog.artifacts.locate(digest_, store)}"}
        for name in (part.output, *part.beside)
    }
    return Taken(part.key, **places.pop(part.output), beside=places)


def _array(whole: Plan, parts: Sequence[PlannedPart], taken: Mapping[str, Taken]) -> JobRequest:
    where, store = cluster(), services.store()
    placed = [place(part.plan, where, store_root(where), stage_work.whereabouts(part.plan, store.uri)) for part in parts]
    array = PlacedArray(digest("stage-array", [part.key for part in parts]), placed)
    wanted = placed[0].resources()
    config = services.receipts_config(int(wanted["gpus"]) * int(wanted["nodes"]))
    config["parts"] = {str(task): part.key for task, part in enumerate(parts)}
    for task, part in enumerate(parts):
        state = "committed before" if part.name in taken else f"task {task}"
        log.info("%s, part %s: %s, %s", whole.spec.stage, part.name, state, part.key)
    receipts = CatalogReceipts(**config)
    return JobRequest(
        key=array.key,
        spec=lambda n: array.job(n, receipts.held(array.key, n)),
        job_name=lambda n: stage_work.job_name(array.key, n),
        stage_in=lambda n: array.stage_in(store, n, receipts.held(array.key, n)),
        receipts=services.RECEIPTS,
        receipts_config=config,
        max_unknown_s=where.max_unknown_s,
        max_wait_s=placed[0].max_wait_s,
        stop=stop_policy(where),
        carry={"parts": {str(task): part.name for task, part in enumerate(parts)}, "deadline_s": where.visibility_deadline_s},
    )


def accept(request_state: dict[str, Any]) -> dict[str, Any]:
    """Takes the end of every task for what it is and commits those that are complete.

    Raises:
        Resubmit: some saved and want to go on, or were lost, or failed and have not been sent again too often: only these are sent.
        JobFailed: a part failed for good, or too often.
    """
    ends = _ends(request_state)
    request_state["shards"] = {str(end.index): end.to_json() for end in ends}
    settle(ends, "parts", used=int(request_state["resubmits"]), most=PART_RETRIES, blameless=(*_NOT_ITS_FAULT, "interrupted"))
    return dict(GO_ON)


def accept_unknown(request_state: dict[str, Any]) -> dict[str, Any]:
    """Takes the tasks whose outcome nobody knows, as `stage_work.take_unknown` does; with all of them known, the end is taken as `accept` does.

    Raises:
        UnknownOutcome: of some nobody can say; a person decides.
    """
    names, tasks = request_state["carry"]["parts"], request_state["tasks"]
    open_ones = {task: ended for task, ended in _ended(request_state).items() if not JobView.from_json(tasks[str(task)]).ended}
    unknown = [task for task, ended in open_ones.items() if ended is None or not stage_work.take_unknown(ended)]
    if not unknown:
        return accept(request_state)
    raise UnknownOutcome(
        f"what became of job {request_state['job_id']} (parts {', '.join(names[str(task)] for task in unknown)}) is not known. "
        f"Look at the cluster, then say what happened: bin/align resolve {request_state['key']} lost|ended --why '…'"
    )


def _held(request_state: Json) -> dict[int, tuple[str, int]]:
    receipts = CatalogReceipts(**request_state["receipts_config"])
    return receipts.held(request_state["key"], int(request_state["n"]))


def _ends(request_state: Json) -> list[ShardEnd]:
    names, tasks = request_state["carry"]["parts"], request_state["tasks"]
    ends = []
    for task, ended in _ended(request_state).items():
        view = JobView.from_json(tasks[str(task)])
        end = ShardEnd.of(task, int(request_state["n"]), view)
        where = f"part {names[str(task)]}" + (f" on {view.node_list}" if view.node_list else "")
        ends.append(_end(end, where, ended))
        log.info("Slurm: task %s, %s: %s %s", view.job_id, where, ends[-1].outcome, ends[-1].cause or "")
    return ends


def _ended(request_state: Json) -> dict[int, stage_work.Ended | None]:
    """Each task's run and attempt; None for one that has made no attempt. They share one deadline for what appears late."""
    until = time.monotonic() + float(request_state["carry"]["deadline_s"])
    found: dict[int, stage_work.Ended | None] = {}
    for task, (key, n) in sorted(_held(request_state).items()):
        view = JobView.from_json(request_state["tasks"][str(task)])
        planned = services.catalog().runs.get(key)
        attempt = _attempt(key, n, until if view.succeeded else 0.0)
        if planned is None or attempt is None:
            found[task] = None
            continue
        _keep(request_state, planned.spec, n, replace(view, job_id=str(attempt.job_id)))
        found[task] = stage_work.Ended(planned.spec, str(attempt), view, max(0.0, until - time.monotonic()))
    return found


def _attempt(key: str, n: int, until: float) -> AttemptName | None:
    """The newest attempt of submission `n`: only its folder tells a task's own job id."""
    while True:
        mine = [name for name in services.store().attempts(key) if name.n == n]
        if mine or time.monotonic() >= until:
            return mine[-1] if mine else None
        time.sleep(stage_work.LOOK_AGAIN_S)


def _keep(request_state: Json, spec: RunSpec, n: int, view: JobView) -> None:
    """Each incarnation's state and GPU-seconds, under the part's own key."""
    CatalogReceipts(**request_state["receipts_config"]).observe(spec.key, n, view)


def _end(end: ShardEnd, where: str, ended: stage_work.Ended | None) -> ShardEnd:
    try:
        if ended is None:
            if end.cause in _NOT_ITS_FAULT:
                raise Resubmit(end.cause)
            raise JobFailed(
                f"{end.state or 'not seen'}, and no attempt was made",
                retryable=end.retryable or not end.cause,
                cause=end.cause or "no attempt",
            )
        stage_work.take(ended)
        services.registry().log_run(_log_of(ended.spec))
    except Resubmit as again:
        return replace(end, cause=again.cause, detail=where, retryable=True)
    except JobFailed as error:
        return replace(end, cause=error.cause or "failed", detail=f"{where}: {error}", retryable=error.retryable)
    return replace(end, outcome="succeeded", cause="", detail=where)


def _log_of(spec: RunSpec) -> Any:
    done = services.catalog().runs.committed(spec.key)
    assert done is not None, "taken just now"
    return stage_log(spec, done)
