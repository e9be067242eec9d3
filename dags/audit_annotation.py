"""Looks once a week at all labels of the week: each annotator's gold accuracy, distance from the majority, habit of side and length; each rubric's kappa.

Scheduled by time, so that `airflow backfill` audits earlier weeks. The report is kept (`bin/align audit`) whatever it says; `review` is red where
a threshold is crossed: who or which rubric is to be reviewed stands there. Nothing is withdrawn by itself. Without a label it is green: *nothing to audit*.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, task

from include.flows.scheduled import scheduled


def _time(title: str, description: str) -> Param:
    return Param(None, type=["null", "string"], format="date-time", title=title, description=description)


def _share(title: str, description: str) -> Param:
    return Param(None, type=["null", "number"], minimum=0, maximum=1, title=title, description=description)


def _count(title: str, description: str) -> Param:
    return Param(None, type=["null", "integer"], minimum=1, title=title, description=description)


PARAMS = {
    "since": _time("Since", "Empty: the interval's begin; a week before `until` where that is given"),
    "until": _time("Until", "Empty: the interval's end; when the run was due where `since` is given"),
    "rubric": Param(None, type=["null", "string"], minLength=1, title="Rubric", description="One version, name@version; empty: all"),
    "recipe": Param(
        scheduled("audit_annotation")[0][1], type="string", minLength=1, title="Recipe", description="Whose thresholds hold where none is given"
    ),
    "min_gold_accuracy": _share("Gold accuracy", "At least; empty: as the recipe says, else 0.8"),
    "min_gold_labels": _count("Gold labels", "From so many on somebody is judged by them; empty: as the recipe says"),
    "min_kappa": Param(
        None, type=["null", "number"], minimum=-1, maximum=1, title="Cohen's kappa", description="At least; empty: as the recipe says, else 0.6"
    ),
    "min_majority_agreement": _share("As most others", "At least; empty: the recipe's min_agreement"),
    "side_alpha": _share("Habit of side", "How improbable it must be, over all annotators; empty: 0.01"),
    "min_short_win_share": _share("Short answers win", "At least, where one is short; empty: as the recipe says"),
    "min_items": _count("Items", "From so many on anything but gold is judged; empty: 20"),
}  # fmt: skip

with DAG(
    "audit_annotation",
    schedule=CronDataIntervalTimetable("0 0 * * 1", timezone="UTC"),
    catchup=False,
    max_active_runs=2,
    tags=["alignment"],
    doc_md=__doc__,
    params=PARAMS,
    render_template_as_native_obj=True,
) as dag:

    @task(retries=3, retry_delay=timedelta(minutes=5))
    def audit(**context: Any) -> dict[str, Any]:
        from include.flows.annotation_audit import audit_labels, interval_of
        from include.flows.chain import actor

        params = dict(context["params"])
        begin, end = context.get("data_interval_start"), context.get("data_interval_end")
        return audit_labels(params, interval_of(params, context["dag_run"], begin, end), actor())

    @task(retries=0)
    def review(told: Any) -> str:
        from include.flows.annotation_audit import require_no_review

        return require_no_review(told)

    review(audit())
