"""What OpenLineage is told of a job, where its provider is installed: cluster, job, submission, runs and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_slurm.settings import schema_address
from airflow_slurm.truth.view import JobView

#: Counted up with every change of what :func:`facts_of` gives; the schema of each version is in ``web/schemas``, and served for good.
SCHEMA_VERSION = "1-0-0"


def facts_of(state: Mapping[str, Any], view: JobView) -> dict[str, Any]:
    """The facet's values, as plain JSON."""
    return {
        "connection": state["conn_id"],
        "cluster": view.cluster or state["cluster"],
        "jobId": view.job_id,
        "jobName": state["job_name"],
        "key": state["key"],
        "submission": state["n"],
        "attempt": view.restarts + 1,
        "state": view.state,
        "nodes": view.nodes,
        "nodeList": view.node_list,
        "elapsedSeconds": view.elapsed_s,
        "tasks": dict(view.tasks),
    }


def lineage_of(facts: Mapping[str, Any] | None) -> Any:
    """An ``OperatorLineage`` with the run facet ``slurm``; None without facts, or where the provider isn't installed."""
    if facts is None:
        return None
    try:
        import attrs
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.facet_v2 import RunFacet
    except ImportError:
        return None

    @attrs.define
    class SlurmRunFacet(RunFacet):
        """See :func:`facts_of`."""

        job: dict[str, Any]

        @staticmethod
        def _get_schema() -> str:
            return schema_address(SCHEMA_VERSION)

    return OperatorLineage(run_facets={"slurm": SlurmRunFacet(job=dict(facts))})
