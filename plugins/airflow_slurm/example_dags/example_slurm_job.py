"""A job, a script that a function gives, and a wait for a job of that name: run it with ``{"folder": "/scratch/you"}``."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.sensors import SlurmJobSensor

FOLDER = "{{ params.folder }}/{{ run_id | replace(':', '-') | replace('+', '-') }}"

with DAG(
    "example_slurm_job",
    schedule=None,
    catchup=False,
    params={
        "folder": Param("/scratch/example", type="string", pattern="^/[A-Za-z0-9/._-]+$", description="A folder that all nodes share.")
    },
    default_args={"retries": 2, "pool": "default_pool"},
    tags=["slurm", "example"],
    doc_md=__doc__,
) as dag:
    # An argument vector: every part is quoted, whatever it holds.
    prepare = SlurmJobOperator(
        task_id="prepare",
        spec={
            "command": ["sh", "-c", 'mkdir -p "$1" && seq 1 100 > "$1/numbers.txt" && echo "wrote $1/numbers.txt"', "sh", FOLDER],
            "output": "{{ params.folder }}/prepare-%j.log",
            "mem": "100M",
            "time_limit": "00:05:00",
        },
        expected_output=f"{FOLDER}/numbers.txt",
    )

    @task.slurm(
        spec={
            "env": {"FOLDER": FOLDER},
            "output": "{{ params.folder }}/add-%j.log",
            "mem": "100M",
            "time_limit": "00:05:00",
            "requeue": True,
            "signal_lead_s": 60,
        },
        expected_output=f"{FOLDER}/sum.txt",
    )
    def add() -> str:
        """The text of a batch script. What varies comes through the job's environment, so nothing has to be quoted."""
        return """
            set -eu
            trap 'echo "asked to save and end"; exit 75' USR1
            awk '{ total += $1 } END { print total }' "$FOLDER/numbers.txt" > "$FOLDER/sum.txt"
            echo "the sum is $(cat "$FOLDER/sum.txt")"
        """

    # Here it waits for a job of this very DAG; it may be anybody's.
    seen = SlurmJobSensor(task_id="seen", job_id="{{ ti.xcom_pull(task_ids='add')['job_id'] }}", timeout=3600)

    prepare >> add() >> seen
