"""The link of a validation report, asked for as Airflow's API server asks: for every task, without a worker behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def run(airflow_database: None) -> Iterator[str]:
    """A run with its task instances; one of them has left an address."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType
    from sqlalchemy import delete

    trigger_dag("align_policy", triggered_by=DagRunTriggeredByType.REST_API, run_id="linked", conf={})
    XComModel.set(key="validation_report", value="/alignment/validation/abc/", task_id="start", dag_id="align_policy", run_id="linked")
    yield "linked"
    with create_session() as session:
        session.execute(delete(DagRun))


def test_the_address_is_found_where_there_is_one_and_elsewhere_there_is_no_link(run: str) -> None:
    from airflow.models.taskinstancekey import TaskInstanceKey

    from alignment_plugin import AlignmentPlugin

    (link,) = AlignmentPlugin.global_operator_extra_links
    found = {task: link.get_link(None, ti_key=TaskInstanceKey("align_policy", task, run, 1, -1)) for task in ("start", "policy.optimise")}
    assert found == {"start": "/alignment/validation/abc/", "policy.optimise": ""}
