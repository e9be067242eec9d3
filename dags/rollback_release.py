"""Puts the earlier champion back, in one step of one authorised person: one of `release.rollback_by` of the recipe, else its approvers."""

from typing import Any

from airflow.sdk import DAG, Param, task

PARAMS = {
    "name": Param("demo-quickstart", type="string", minLength=1, title="Registered name"),
    "why": Param(type="string", minLength=3, title="Why", description="Stands in the ledger"),
}

with DAG(
    "rollback_release", schedule=None, catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS, render_template_as_native_obj=True
) as dag:

    @task(retries=2)
    def roll_back(**context: Any) -> dict[str, Any]:
        from include.flows.rollback_tasks import rollback

        dag_run = context["dag_run"]
        who = getattr(dag_run, "triggering_user_name", None) or ""
        return rollback(context["params"]["name"], context["params"]["why"], who, request_id=dag_run.run_id)

    roll_back()
