"""Finds jobs that no task owns and tasks whose job is gone, and ends what nobody wants any more; confirmed, with escalation.

Beside it the release ledger is recomputed and held against the heads of it that were kept with each release.
"""

import os
from datetime import timedelta

from airflow.sdk import DAG, task

with DAG(
    "reconcile_slurm",
    schedule=timedelta(minutes=int(os.environ.get("ALIGN_RECONCILE_MINUTES") or 10)),
    catchup=False,
    max_active_runs=1,
    tags=["alignment", "slurm"],
    doc_md=__doc__,
) as dag:

    @task(retries=0)
    def reconcile_jobs() -> list[dict[str, str]]:
        from include.flows.reconciling import reconcile_cluster

        return reconcile_cluster()

    @task(retries=0)
    def check_ledger() -> dict[str, int]:
        from include.flows.ledger_heads import check_whole_ledger

        return check_whole_ledger()

    reconcile_jobs()
    check_ledger()
