"""Takes labels back: by id, or all that one annotator said. Later datasets are built without them; what learnt from them is named."""

from typing import Any

from airflow.sdk import DAG, Param, task

PARAMS = {
    "labels": Param([], type="array", items={"type": "string", "minLength": 1}, title="Labels", description="Ids of labels, one a line"),
    "annotator": Param(None, type=["string", "null"], title="Annotator", description="A pseudonym: all their labels"),
    "why": Param(type="string", minLength=3, maxLength=2000, title="Why", description="Stands in the ledger"),
    "taint": Param(
        False,
        type="boolean",
        title="Taint",
        description="They are wrong, not only unwanted: nothing that learnt from them is released any more",
    ),
}

with DAG(
    "withdraw_labels", schedule=None, catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS, render_template_as_native_obj=True
) as dag:

    @task(retries=2)
    def withdraw(**context: Any) -> dict[str, Any]:
        from include.flows.withdrawing import Asked, withdraw_labels

        params = context["params"]
        who = getattr(context["dag_run"], "triggering_user_name", None) or ""
        return withdraw_labels(Asked(tuple(params["labels"]), params["annotator"], params["why"], who, taint=params["taint"]))

    withdraw()
