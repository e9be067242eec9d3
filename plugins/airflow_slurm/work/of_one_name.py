"""Of several jobs of one submission one stays, and its hold is lifted.

A request that was late on its way queues a job when another one of its name may have run already: what still waits in a hold never takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import structlog

from airflow_slurm.errors import AccountingDisabled, CommandRefused
from airflow_slurm.receipts import Claim, Receipt, ReceiptStore
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.arrays import main_id, whole_jobs

log = structlog.get_logger(__name__)

#: Ends that a job without a node has come to in its hold.
_IN_ITS_HOLD = frozenset({"CANCELLED", "DEADLINE"})


class Standing(IntEnum):
    """What is known of a job's run. Of several the highest stays.

    What was cancelled in its hold has not run, nor has what waits in one. One that was recorded, and of which neither queue nor accounting tells, may
    have been released, and have run. One that waits without a hold was released by whoever had chosen it.
    """

    NEVER_RAN = 0
    HELD = 1
    MAY_HAVE_RUN = 2
    RELEASED = 3
    RAN = 4
    RUNS = 5


@dataclass(frozen=True)
class Kept:
    """The job that stays. ``row``: what is known of the whole of it; None if nobody knows it."""

    job_id: str
    standing: Standing
    row: QueueRow | AccountingRow | None

    @property
    def held_by_us(self) -> bool:
        """Whether it waits in the hold it was submitted with."""
        return isinstance(self.row, QueueRow) and self.row.held_by_us

    @property
    def may_have_run(self) -> bool:
        """Whether somebody may have released it."""
        return self.standing > Standing.HELD


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


async def cancel_doubles(
    client: SlurmClient, store: ReceiptStore, key: str, n: int, rows: Sequence[QueueRow | AccountingRow], kept_id: str
) -> None:
    """End all jobs of a submission's name but one that the queue shows as living, and note it."""
    others = {main_id(row): row for row in rows if isinstance(row, QueueRow) and not row.state.info.phase.ended}
    doubles = sorted(others.keys() - {kept_id}, key=int)
    if not doubles:
        return
    log.error("several jobs of one submission", kept=kept_id, cancelled=doubles)
    for job_id in doubles:
        await client.cancel(job_id)
    await asyncio.to_thread(store.incident, key, n, "several_jobs_of_one_name", {"kept": kept_id, "cancelled": doubles})


def kept_of(rows: Sequence[QueueRow | AccountingRow], recorded: str | None = None) -> Kept | None:
    """Of several the one that runs, ran, or may have; of those of which the same is known the lowest id. None of none at all.

    :param rows: all that are known of the jobs of one submission, of arrays the single tasks'.
    :param recorded: the job of the submission's receipt, if somebody may have released it since.
    """
    known: dict[str, Standing] = {}
    for row in rows:
        known[main_id(row)] = max(known.get(main_id(row), Standing.NEVER_RAN), _standing(row))
    if recorded is not None:
        known.setdefault(recorded, Standing.MAY_HAVE_RUN)
    if not known:
        return None
    best = min(known, key=lambda job_id: (-known[job_id], int(job_id)))
    return Kept(best, known[best], next((row for row in whole_jobs(rows) if row.job_id == best), None))


def _standing(row: QueueRow | AccountingRow) -> Standing:
    phase = row.state.info.phase
    if phase.ended:
        return Standing.NEVER_RAN if row.state.name in _IN_ITS_HOLD and not row.node_list else Standing.RAN
    if not isinstance(row, QueueRow):
        return Standing.RAN  # that accounting has it running is no proof that the controller has it
    if phase is not Phase.WAITING or row.restarts:
        return Standing.RUNS
    # In somebody else's hold as well: an administrator's, say, which replaces ours.
    return Standing.HELD if row.reason.startswith("JobHeld") else Standing.RELEASED
