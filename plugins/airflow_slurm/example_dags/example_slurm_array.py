"""Sharded work as one job array: eight shards, three at a time, and only those that failed run again."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_slurm.array_operator import SlurmArrayOperator

FOLDER = "{{ params.folder }}/{{ run_id | replace(':', '-') | replace('+', '-') }}"

with DAG(
    "example_slurm_array",
    schedule=None,
    catchup=False,
    params={
        "folder": Param("/scratch/example", type="string", pattern="^/[A-Za-z0-9/._-]+$", description="A folder that all nodes share."),
        "shards": Param(8, type="integer", minimum=1, maximum=1000),
    },
    default_args={"retries": 2},
    tags=["slurm", "example"],
    doc_md=__doc__,
) as dag:
    score = SlurmArrayOperator(
        task_id="score",
        shards="{{ params.shards }}",
        max_parallel=3,
        spec={
            "env": {"FOLDER": FOLDER, "SHARDS": "{{ params.shards }}"},
            # A real shard would score the prompts i, i + SHARDS, i + 2 × SHARDS, … of its set.
            "body": """
                set -eu
                mkdir -p "$FOLDER"
                seq "$SLURM_ARRAY_TASK_ID" "$SHARDS" 99 > "$FOLDER/part-$SLURM_ARRAY_TASK_ID.tmp"
                mv "$FOLDER/part-$SLURM_ARRAY_TASK_ID.tmp" "$FOLDER/part-$SLURM_ARRAY_TASK_ID.txt"
                echo "shard $SLURM_ARRAY_TASK_ID is done"
            """,
            "output": "{{ params.folder }}/score-%A_%a.log",
            "mem": "50M",
            "time_limit": "00:05:00",
        },
        expected_output=f"{FOLDER}/part-%a.txt",
    )

    @task
    def count(ends: Any) -> int:
        """How many shards there were, and in how many submissions they were done."""
        print(f"{len(ends)} shards, last submission {max(int(str(end['n'])) for end in ends)}")
        return len(ends)

    count(score.output)
