"""Jobs that run until a file says that they may end, for :mod:`tests.e2e.test_slurm_tasks`."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_slurm.operators import SlurmJobOperator

FOLDER = f"{os.environ['ALIGN_STORE_ROOT']}/held/{{{{ run_id }}}}"
#: It says that it runs, saves when it is asked to, and ends well once it may.
BODY = """
trap 'touch "$FOLDER/$TASK.saved"; exit 75' USR1
echo "$SLURM_JOB_ID" >> "$FOLDER/$TASK.runs"
until [ -e "$FOLDER/end" ]; do sleep 0.2; done
"""

#: Two tasks each. In the last two, ``other`` waits in its worker; one of them gives its tasks a deadline, the other one further tries:
#: Airflow counts those, too, that find its API server not up yet.
PATIENCE = float(os.environ.get("ALIGN_TEST_PATIENCE") or 1)
IN_WORKER = ("slurm_deadline", "slurm_restarted")
SETTINGS = {"slurm_deadline": {"execution_timeout": timedelta(seconds=60 * PATIENCE)}, "slurm_restarted": {"retries": 9}}

for dag_id in ("slurm_held", "slurm_deleted", *IN_WORKER):
    settings = {"retries": 0, "pool": "slurm_submissions", **SETTINGS.get(dag_id, {})}
    with DAG(dag_id, schedule=None, catchup=False, default_args=settings) as dag:
        for task_id in ("train", "other"):
            SlurmJobOperator(
                task_id=task_id,
                slurm_conn_id="slurm_local",
                stop_grace_s=30,
                deferrable=task_id == "train" or dag_id not in IN_WORKER,
                spec={
                    "body": BODY,
                    "env": {"FOLDER": FOLDER, "TASK": task_id},
                    "output": f"{FOLDER}/{task_id}-%j.log",
                    "mem": "50M",
                    "ntasks": 1,
                    "time_limit": 20,
                },
            )
    globals()[dag_id] = dag
