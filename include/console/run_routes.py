"""Routes of alignment runs. Each asks Airflow for the right on runs of the DAG behind them: to see, to start, to change."""

from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import APIRouter, Depends, Header

from include.console import alignment_runs, comparing
from include.console.airflow_runs import DAG_ID
from include.console.reading import catalog
from include.console.run_body import CompareBody, FieldRefused, RunBody

router = APIRouter(prefix="/v1/alignment-runs")


def _may(method: Any) -> Any:
    return Depends(requires_access_dag(method, DagAccessEntity.RUN, DAG_ID))


@router.post("", status_code=202, dependencies=[_may("POST")])
def submit(body: RunBody, user: GetUserDep, idempotency_key: Annotated[str, Header(max_length=200)] = "") -> dict[str, Any]:
    """Asks for a run; the same key with the same body is the same run."""
    if not idempotency_key.strip():
        raise FieldRefused(
            "Idempotency-Key", "the header is missing: give each request a key of its own, and repeat it when you repeat the request"
        )
    found = alignment_runs.submit(catalog(), idempotency_key, body, user.get_name())
    return {"runId": found.run_id, "state": found.state}


@router.get("", dependencies=[_may("GET")])
def newest() -> list[dict[str, Any]]:
    """The newest hundred runs, newest first, each as it was last seen."""
    return [{"runId": r.run_id, "state": r.state, "askedBy": r.asked_by, "createdAt": r.created_at} for r in catalog().requests.newest()]


@router.post("/compare", dependencies=[_may("GET")])
def compare(body: CompareBody) -> dict[str, Any]:
    """Parameters, metrics and lineage of two to ten runs, side by side."""
    opened = catalog()
    return comparing.compare(opened, [opened.requests.get(run_id) for run_id in dict.fromkeys(body.runs)])


@router.get("/{run_id}", dependencies=[_may("GET")])
def get(run_id: str) -> dict[str, Any]:
    opened = catalog()
    return alignment_runs.shown(opened, alignment_runs.find(opened, run_id))


@router.delete("/{run_id}", status_code=202, dependencies=[_may("PUT")])
def cancel(run_id: str, user: GetUserDep) -> dict[str, Any]:
    """Cancels in order; answers `cancelling` until the job has let go of its nodes."""
    found = alignment_runs.cancel(catalog(), run_id, user.get_name())
    return {"runId": found.run_id, "state": found.state}


@router.get("/{run_id}/metrics", dependencies=[_may("GET")])
def metrics(run_id: str) -> dict[str, Any]:
    opened = catalog()
    return alignment_runs.metrics(opened, alignment_runs.find(opened, run_id))
