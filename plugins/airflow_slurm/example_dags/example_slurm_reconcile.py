"""Ends jobs that no task waits for any more, and says what else does not fit. One such DAG for each connection; unpause it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

with DAG(
    "example_slurm_reconcile",
    schedule=timedelta(minutes=10),
    catchup=False,
    max_active_runs=1,
    tags=["slurm", "example"],
    doc_md=__doc__,
) as dag:

    @task(retries=0)
    def reconcile_jobs() -> list[dict[str, Any]]:
        """One pass; the store is the one that Airflow's configuration names. Give the operators' ``stop_grace_s`` in ``policy`` if it is not 60."""
        from airflow_slurm.hook import SlurmHook
        from airflow_slurm.receipts import load_store
        from airflow_slurm.settings import configured_receipts
        from airflow_slurm.work.reconciler import reconcile

        findings = reconcile(SlurmHook("slurm_default"), load_store(*configured_receipts()))
        for finding in findings:
            print(f"{finding.kind}: {finding.key} job {finding.job_id}: {finding.detail}")
        return [asdict(finding) for finding in findings]

    reconcile_jobs()
