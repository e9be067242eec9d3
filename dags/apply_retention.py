"""Says once a week which checkpoints and caches nothing needs any more, and removes them where ALIGN_PRUNE_AFTER_DAYS is set or somebody asks."""

from typing import Any

from airflow.sdk import DAG, Param, task

PARAMS = {
    "older_than_days": Param(None, type=["null", "number"], minimum=0, title="Age in days", description="As the site says, unless given"),
    "apply": Param(None, type=["null", "boolean"], title="Remove", description="As the site says, unless given"),
}

with DAG(
    "apply_retention",
    schedule="0 3 * * 6",
    catchup=False,
    max_active_runs=1,
    tags=["alignment", "slurm"],
    doc_md=__doc__,
    params=PARAMS,
    render_template_as_native_obj=True,
) as dag:

    @task(retries=0)
    def prune_store(**context: Any) -> dict[str, Any]:
        from include.flows.retention import apply_retention

        params = context["params"]
        who = getattr(context["dag_run"], "triggering_user_name", None) or "apply_retention, by schedule"
        return apply_retention(params["older_than_days"], params["apply"], who)

    prune_store()
