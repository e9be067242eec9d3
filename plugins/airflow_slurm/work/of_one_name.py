"""Of several jobs of one submission one stays, and its hold is lifted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import structlog

from airflow_slurm.errors import AccountingDisabled, CommandRefused
from airflow_slurm.receipts import Claim, Receipt, ReceiptStore
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase

log = structlog.get_logger(__name__)

Row = TypeVar("Row", QueueRow, AccountingRow, QueueRow | AccountingRow)


async def let_go(client: SlurmClient, receipt: Receipt) -> bool:
    """Lift the hold; False if the controller knows no such job."""
    try:
        await client.release(receipt.job_id, receipt.cluster)
    except CommandRefused as error:
        # Somebody cancelled it in its hold, say: the poll will tell how it ended.
        log.warning("the job's hold could not be lifted", job_id=receipt.job_id, slurm=error.words)
        return "Invalid job id" not in error.words
    return True


async def never_ran(client: SlurmClient, receipt: Receipt, claim: Claim) -> bool:
    """Whether accounting too knows of no run and no end of a job that the controller doesn't know."""
    if receipt.cluster not in (None, client.cluster):
        return False  # a federation: another controller has it
    try:
        rows = await client.accounting(claim.since - 86400, ids=[receipt.job_id])
    except AccountingDisabled:
        return False
    return all(row.state.info.phase is Phase.WAITING for row in rows if row.name == receipt.job_name)


async def cancel_doubles(client: SlurmClient, store: ReceiptStore, key: str, n: int, rows: Sequence[QueueRow], kept_id: str) -> None:
    """End all living jobs of a submission's name but one, and note it."""
    doubles = [row.job_id for row in rows if row.job_id != kept_id and not row.state.info.phase.ended]
    if not doubles:
        return
    log.error("several jobs of one submission; keeping the oldest", kept=kept_id, cancelled=doubles)
    for job_id in doubles:
        await client.cancel(job_id)
    await asyncio.to_thread(store.incident, key, n, "several_jobs_of_one_name", {"kept": kept_id, "cancelled": doubles})


def kept_of(rows: Sequence[Row]) -> Row:
    """Of several the lowest id that has not ended; of ended ones the lowest."""
    living = [row for row in rows if not row.state.info.phase.ended]
    return (living or list(rows))[0]
