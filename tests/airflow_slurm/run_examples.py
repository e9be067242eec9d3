"""Run as a program: the examples by ``dag.test()`` with a database of their own, then what the tab *Slurm* shows of them.

Prints one line of JSON. Arguments: the folder of the DAG files, a folder that the cluster's nodes share.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote


def main(dags: Path, folder: str) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.db import initdb

    initdb()
    bag = DagBag(dag_folder=dags, bundle_path=dags, bundle_name="dags-folder")
    told: dict[str, Any] = {"import_errors": bag.import_errors}
    for dag_id in ("example_slurm_job", "example_slurm_array"):
        run = bag.dags[dag_id].test(run_conf={"folder": folder, "shards": 3})
        told[dag_id] = {"run_id": run.run_id, "tasks": states_of(dag_id, run.run_id)}
    told["example_slurm_job"]["add"] = result_of("example_slurm_job", told["example_slurm_job"]["run_id"], "add")
    told["example_slurm_reconcile"] = reconciled(bag.dags["example_slurm_reconcile"], told["example_slurm_job"]["run_id"])
    told["job_page"] = page("example_slurm_job", told["example_slurm_job"]["run_id"], "add", "/output/1")
    told["array_page"] = page("example_slurm_array", told["example_slurm_array"]["run_id"], "score", "/output/1?shard=2")
    return told


def reconciled(dag: Any, run_id: str) -> dict[str, Any]:
    """A pass over submissions of a task that has ended, of one of a DAG run that is deleted, and of one that Airflow has not ended."""
    from airflow_slurm.receipts import load_store
    from airflow_slurm.settings import configured_receipts

    store: Any = load_store(*configured_receipts())
    run = {"dag_id": "example_slurm_job", "run_id": run_id}
    store.claim("ended", run | {"task_id": "add", "map_index": -1})
    store.claim("deleted", run | {"run_id": "never was", "task_id": "add", "map_index": -1})
    store.claim("unknown", run | {"task_id": "no such task", "map_index": -1})
    passed = dag.test()
    ends = {key: end.cause for key in ("ended", "deleted", "unknown") if (end := store.end_of(key, 1)) is not None}
    return {"tasks": states_of(dag.dag_id, passed.run_id), "ends": ends}


def states_of(dag_id: str, run_id: str) -> dict[str, str]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        rows = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id))
        return {row.task_id: str(row.state) for row in rows}


def result_of(dag_id: str, run_id: str, task_id: str) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.scalars(XComModel.get_many(run_id=run_id, dag_ids=dag_id, task_ids=task_id, key="return_value")).one()
        return XComModel.deserialize_value(found)


def page(dag_id: str, run_id: str, task_id: str, output: str) -> dict[str, Any]:
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi.testclient import TestClient

    from airflow_slurm.web.app import create_app

    init_auth_manager()
    app = create_app()
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="v", role="viewer")
    client = TestClient(app)
    address = f"/dags/{dag_id}/runs/{quote(run_id, safe='')}/tasks/{task_id}/-1"
    shown, tail = client.get(address), client.get(address + output)
    return {"status": [shown.status_code, tail.status_code], "page": shown.text, "output": tail.text}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
