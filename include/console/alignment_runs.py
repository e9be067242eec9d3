"""Alignment runs as an API: asked for once, started in Airflow, looked at, cancelled in order.

The request and all that it was resolved to are in the catalog before anything starts; a call that died half-way is finished by the
same call again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from include.console import airflow_runs
from include.console.run_body import RunBody
from include.console.run_plan import resolve
from include.stores.errors import Conflict, NotFound

if TYPE_CHECKING:
    from include.stores.catalog import Catalog
    from include.stores.catalog.receipts import Submission
    from include.stores.catalog.requests import Request

STATES: Mapping[str, str] = {"queued": "queued", "running": "running", "success": "succeeded", "failed": "failed"}
"""Airflow's word → ours."""


def submit(opened: "Catalog", idempotency_key: str, body: RunBody, who: str) -> "Request":
    """The run of this key: accepted and started now, or the one that is there.

    Raises:
        Conflict: the key was used for another request, or by another person.
        FieldRefused: a field cannot be honoured. Unusable: nothing could start now.
    """
    asked = body.model_dump(mode="json", exclude_none=True)
    known = opened.requests.by_key(idempotency_key)
    if known is None:
        airflow_runs.check_ready()
        known = _accept(opened, idempotency_key, {"asked": asked, **resolve(opened, body, who).to_json()}, who)
    if known.body["asked"] != asked or known.asked_by != who:
        raise Conflict(f"idempotency key {idempotency_key!r} was used for another request, {known.run_id}")
    if known.dag_run_id is None and known.state == "queued":
        name = airflow_runs.start(known.run_id, {"state": known.body["state"]}, who)
        known = opened.requests.set_state(known.run_id, "queued", name)
        if known.state in ("cancelling", "cancelled"):  # it was cancelled while it started, by someone who found no DAG run to end
            airflow_runs.end(name)
    return known


def _accept(opened: "Catalog", idempotency_key: str, body: Mapping[str, Any], who: str) -> "Request":
    """Of two calls at once with one key, the first decides what it was resolved to (a newer reward model may have come in between)."""
    try:
        return opened.requests.accept(idempotency_key, body, who)
    except Conflict:
        if (first := opened.requests.by_key(idempotency_key)) is None:
            raise
        return first


def find(opened: "Catalog", run_id: str) -> "Request":
    """The run, its state brought in line with Airflow's and with the job's."""
    found = opened.requests.get(run_id)
    seen = seen_state(opened, found)
    return found if seen in (found.state, "unknown") else opened.requests.set_state(run_id, seen)


def seen_state(opened: "Catalog", found: "Request") -> str:
    """The state now. `unknown`: Airflow no longer has the DAG run, and nobody wrote down how it ended."""
    from include.stores.catalog.requests import FINAL

    if found.state in FINAL or found.dag_run_id is None:
        return found.state
    state = STATES.get(airflow_runs.state_of(found.dag_run_id) or "", "unknown")
    if found.state == "cancelling" and state in ("failed", "unknown"):
        return "cancelling" if jobs_of(opened, found) else "cancelled"
    return found.state if found.state == "cancelling" and state != "succeeded" else state


def jobs_of(opened: "Catalog", found: "Request") -> list["Submission"]:
    """The live submissions that this run owns, alone or with others, or that it has let go of last and that have not ended yet."""
    from include.stores.catalog.receipts import CatalogReceipts

    receipts = CatalogReceipts(opened.database.url.render_as_string(hide_password=False))
    return [item for item in receipts.live() if any(_is_owner(owner, found) for owner in item.owners) or _is_ending(item, found)]


def _is_ending(item: "Submission", found: "Request") -> bool:
    return item.key == found.body["key"] and item.ending and not item.owners


def _is_owner(owner: Mapping[str, Any], found: "Request") -> bool:
    return owner.get("dag_id") == airflow_runs.DAG_ID and owner.get("run_id") == found.dag_run_id


def cancel(opened: "Catalog", run_id: str, who: str) -> "Request":
    """Ends the run in order: its DAG run fails, so its task lets go of the job, which saves and ends unless another run owns it too.

    `cancelling` until the job has let go of its nodes, then `cancelled`. What has ended stays as it ended.
    """
    from include.stores.catalog.requests import FINAL

    found = find(opened, run_id)
    if found.state in FINAL:
        return found
    if found.state != "cancelling":
        opened.ledger.append("note", {"why": f"alignment run {run_id} is cancelled", "run_id": run_id}, who, subject=run_id)
        # The name is written down also where the call that started the DAG run died before it could say so.
        found = opened.requests.set_state(run_id, "cancelling", airflow_runs.dag_run_id(run_id))
    try:
        airflow_runs.end(str(found.dag_run_id))
    except NotFound:
        return opened.requests.set_state(run_id, "cancelled")
    return find(opened, run_id)


def shown(opened: "Catalog", found: "Request") -> dict[str, Any]:
    """A run as JSON."""
    jobs = [{"key": s.key, "n": s.n, "jobId": s.receipt.job_id if s.receipt else None, "ending": s.ending} for s in jobs_of(opened, found)]
    config = found.body["config"]
    return {
        "runId": found.run_id,
        "state": seen_state(opened, found),
        **found.body["asked"],
        "configDigest": config["digest"],
        "stageKey": found.body["key"],
        "dag": airflow_runs.DAG_ID,
        "dagRunId": found.dag_run_id,
        "jobs": jobs,
        "askedBy": found.asked_by,
        "createdAt": found.created_at,
        "changedAt": found.changed_at,
    }


def metrics(opened: "Catalog", found: "Request") -> dict[str, Any]:
    """Final metrics of the committed attempt, and what each attempt left behind. Curves are in MLflow, in the run of the stage's key."""
    key = found.body["key"]
    done = opened.runs.committed(key)
    attempts = [
        {
            "attempt": row.name,
            "state": row.state,
            "gpuSeconds": row.gpu_seconds,
            "lost": row.lost,
            "outcome": row.report.outcome if row.report else None,
            "lastStep": row.report.last_step if row.report else None,
            "askedSteps": row.report.asked_steps if row.report else None,
            "metrics": dict(row.report.metrics) if row.report else {},
        }
        for row in opened.runs.attempts(key)
    ]
    answer = {"runId": found.run_id, "state": seen_state(opened, found), "stageKey": key, "attempts": attempts}
    answer |= {"committed": done.attempt if done else None, "metrics": dict(done.report.metrics) if done else {}}
    if done is None and answer["state"] == "succeeded":
        answer["message"] = "the run ended under another stage key: the code changed between the request and the run; see its DAG run"
    return answer
