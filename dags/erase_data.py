"""Erases persons or prompts: their texts go from datasets, candidates, rollouts and the annotation service, and never come in again.

Without `apply` it only says what it would take away. Digests, lineage and the ledger stay: what was erased, when, by whom and why.
"""

from typing import Any

from airflow.sdk import DAG, Param, task

PARAMS = {
    "subjects": Param([], type="array", items={"type": "string", "minLength": 1}, title="Persons", description="subject_ref, one a line"),
    "prompts": Param(
        [], type="array", items={"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}, title="Prompts", description="prompt ids"
    ),
    "why": Param(type="string", minLength=3, maxLength=2000, title="Why", description="Stands in the ledger; no personal data here"),
    "apply": Param(False, type="boolean", title="Apply", description="Without it, nothing is changed"),
    "taint": Param(True, type="boolean", title="Taint", description="Nothing that learnt from them is released any more"),
}

with DAG(
    "erase_data",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["alignment"],
    doc_md=__doc__,
    params=PARAMS,
    render_template_as_native_obj=True,
) as dag:

    @task(retries=2)
    def erase(**context: Any) -> dict[str, Any]:
        from include.flows.erasing import Asked
        from include.flows.erasing import erase as take_away

        params = context["params"]
        who = getattr(context["dag_run"], "triggering_user_name", None) or ""
        asked = Asked(tuple(params["subjects"]), tuple(params["prompts"]), params["why"], who, apply=params["apply"], taint=params["taint"])
        return take_away(asked)

    erase()
