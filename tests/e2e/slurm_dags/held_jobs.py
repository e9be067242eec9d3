"""Jobs that run until a file says that they may end, for :mod:`tests.e2e.test_slurm_tasks`."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_slurm.operators import SlurmJobOperator

FOLDER = f"{os.environ['ALIGN_STORE_ROOT']}/held/{{{{ run_id }}}}"
#: It says that it runs, saves when it is asked to, and ends well once it may.
BODY = """
trap 'touch "$FOLDER/$TASK.saved"; exit 75' USR1
echo "$SLURM_JOB_ID" >> "$FOLDER/$TASK.runs"
until [ -e "$FOLDER/end" ]; do sleep 0.2; done
"""

for dag_id in ("slurm_held", "slurm_deleted"):
    with DAG(dag_id, schedule=None, catchup=False, default_args={"retries": 0, "pool": "slurm_submissions"}) as dag:
        for task_id in ("train", "other"):
            SlurmJobOperator(
                task_id=task_id,
                slurm_conn_id="slurm_local",
                stop_grace_s=30,
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
