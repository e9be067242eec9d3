"""Measures, for each interval, what was champion at its end. Scheduled by time, so that `airflow backfill` re-evaluates earlier champions.

No human task, no asset that a release listens to. An earlier verdict is never overwritten; each carries gate code and suite.
"""

from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, task

from include.flows.array_stage_operator import ArrayStageOperator
from include.flows.scheduled import scheduled


def evaluation(dag_id: str, recipe: str) -> DAG:
    """The evaluation of champions, by default of `recipe`."""
    with DAG(
        dag_id,
        schedule=CronDataIntervalTimetable("0 4 * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=2,
        tags=["alignment"],
        doc_md=__doc__,
        params={
            "recipe": Param(recipe, type="string", minLength=1, title="Recipe", description="Whose champion, and by whose gates"),
            "suite": Param(
                "then", type="string", enum=["then", "now"], title="Suite", description="As it was at the release, or as it is now"
            ),
        },
    ) as dag:

        @task(multiple_outputs=True, retries=1)
        def champion_then(**context: Any) -> dict[str, Any]:
            from include.flows.champion_evaluation import champion_then as find

            return find(dict(context["params"]), context["dag_run"], context.get("data_interval_end"))

        @task(retries=0)
        def judge(chosen: Any, measured: Any) -> dict[str, Any]:
            from include.flows.champion_evaluation import judge_champion

            return judge_champion(chosen, measured)

        chosen: Any = champion_then()
        measured = ArrayStageOperator(task_id="measure", stage="evaluate", run=chosen["run"], given={"wanted": chosen["wanted"]})
        judge(chosen, measured.output)
    return dag


for _dag_id, _recipe in scheduled("evaluate_policy"):
    globals()[_dag_id] = evaluation(_dag_id, _recipe)
