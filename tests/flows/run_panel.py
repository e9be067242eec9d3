"""Run as a program: the panel's task and the gates by ``dag.test()``, against an annotation service that runs, with a database of Airflow's own.

ALIGN_TEST_STATE: a JSON file with run, wanted and measured, as the tasks before would give them. Prints one line of JSON: each task's state, and the verdict.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from include.flows import label_sensor
from include.flows.judge_operator import JudgeOperator
from include.flows.panel_sensor import PanelSensor


def panel(state: dict[str, Any]) -> DAG:
    with DAG("panel", schedule=None) as dag:

        @task(multiple_outputs=True)
        def before() -> dict[str, Any]:
            return state

        @task
        def gates(run: Any, wanted: Any, measured: Any, people: Any, judge: Any) -> dict[str, Any]:
            from include.flows.evaluation_tasks import Asked, judge_candidate

            return judge_candidate(run, wanted, measured, Asked(people, judge, "dag:panel/test/gates/1"))

        given: Any = before()
        asked = PanelSensor(task_id="ask_people", run=given["run"], wanted=given["wanted"], measured=given["measured"])
        judged = JudgeOperator(task_id="ask_judge", run=given["run"], given={"wanted": given["wanted"], "measured": given["measured"]})
        gates(given["run"], given["wanted"], given["measured"], asked.output, judged.output)
    return dag


dag = panel(json.loads(Path(os.environ["ALIGN_TEST_STATE"]).read_text()))


def main() -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from sqlalchemy import select

    initdb()
    label_sensor.POLL_INTERVAL_S = 0.3
    here = Path(__file__).resolve()
    bag = DagBag(dag_folder=here, bundle_path=here.parent, bundle_name="dags-folder")
    assert not bag.import_errors, bag.import_errors
    run = bag.dags["panel"].test()
    with create_session() as session:
        rows = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == "panel", TaskInstance.run_id == run.run_id)).all()
        return {row.task_id: str(row.state) for row in rows} | {"verdict": next(r for r in rows if r.task_id == "gates").xcom_pull("gates")}


if __name__ == "__main__":
    print(json.dumps(main()))
