"""What a reader of the console must be allowed in Airflow, for the DAG that is the whole chain. A site with several teams gives these rights by DAG."""

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends

CHAIN = "alignment_refresh"


def _may_read(entity: DagAccessEntity) -> Any:
    return Depends(requires_access_dag("GET", entity, CHAIN))


RUNS = _may_read(DagAccessEntity.RUN)
"""Releases, impact, comparisons, cost: what a run made."""
DECISIONS = _may_read(DagAccessEntity.AUDIT_LOG)
"""The ledger, and what shows its rows: lineage and a deployment's page. Who decided what, by name."""
VALUES = _may_read(DagAccessEntity.TASK_LOGS)
"""Pages of a validation: values of the data."""
