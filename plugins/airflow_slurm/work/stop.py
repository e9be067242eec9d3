"""End a job politely and be sure of it: signal, wait until it has saved and ended, cancel, kill; each step confirmed.

Every function may be called again at any time, by any process: what has been done already is recognised.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

import structlog

from airflow_slurm.errors import AccountingDisabled, AccountingUnreachable, SlurmError
from airflow_slurm.receipts import JobEnd, Owner, Receipt, ReceiptStore, Submission
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.arrays import array_of, whole_jobs
from airflow_slurm.truth.reconcile import NO_ACCOUNTING, Graces, Observation, judge
from airflow_slurm.truth.view import JobView

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StopPolicy:
    """How a job is ended. Times are seconds.

    :ivar signal: what asks the program to save and end. :ivar grace_s: how long it may take for that.
    :ivar cancel_wait_s: how long Slurm may take to end a cancelled job, before it is killed; and a killed one again.
    :ivar pause_s: between two looks.
    """

    signal: str = "USR1"
    grace_s: float = 60.0
    cancel_wait_s: float = 60.0
    pause_s: float = 2.0


DEFAULT_STOP = StopPolicy()


class NotEnded(SlurmError):
    """A job that was told to end has not; whoever waits for it waits on, and it is tried again."""


async def end_submission(
    client: SlurmClient, store: ReceiptStore, submission: Submission, job_name: str, policy: StopPolicy = DEFAULT_STOP, *, by: str
) -> JobView | None:
    """End the job of a submission, see that it ended, and close the submission as cancelled.

    :param job_name: by which it is found if there is no receipt.
    :returns: the last view of the job; None if none was ever queued.
    :raises NotEnded: if it resists. :raises Unreachable: if nobody could be asked. Nothing is closed then.
    """
    receipt = submission.receipt
    if receipt is None:
        rows = await client.find_by_name(job_name, submission.since)
        if not rows:
            await asyncio.to_thread(store.close, submission.key, submission.n, JobEnd("cancelled", "never_queued", closed_by=by))
            return None
        receipt = Receipt(rows[0].job_id, job_name, client.conn_id, client.cluster, array=array_of(rows[0]))
    view = await end_job(client, receipt, submission.since, policy)
    await asyncio.to_thread(store.observe, submission.key, submission.n, view)
    await asyncio.to_thread(store.close, submission.key, submission.n, JobEnd("cancelled", "given_up", view=view, closed_by=by))
    return view


async def end_job(client: SlurmClient, receipt: Receipt, since: float, policy: StopPolicy = DEFAULT_STOP) -> JobView:
    """Signal, cancel, kill; as far down that list as it takes.

    :raises NotEnded: if the job is still there after all of it.
    """
    view = await look(client, receipt, since)
    if view.ended:
        return view
    if receipt.array is not None:
        # Tasks that wait would start as others end.
        await client.cancel(receipt.job_id, waiting_only=True, cluster=receipt.cluster)
    if view.phase is Phase.RUNNING:
        log.info("asking a job to save and end", job_id=receipt.job_id, signal=policy.signal, grace_s=policy.grace_s)
        await client.cancel(receipt.job_id, signal=policy.signal, cluster=receipt.cluster)
        view = await _wait(client, receipt, since, policy.grace_s, policy.pause_s)
    for signal in (None, "KILL"):
        if view.ended:
            return view
        await client.cancel(receipt.job_id, signal=signal, cluster=receipt.cluster)
        view = await _wait(client, receipt, since, policy.cancel_wait_s, policy.pause_s)
    if not view.ended and view.missing_since is not None:
        # The controller answers and no longer has it; accounting may say RUNNING for ever after a lost end record.
        return replace(view, phase=Phase.LOST, cause="left_queue")
    if not view.ended:
        raise NotEnded(f"Job {receipt.job_id} was cancelled and killed and is still {view.state or 'not known to have ended'}.")
    return view


async def give_up(
    client: SlurmClient, store: ReceiptStore, key: str, owner: Owner, job_name: str, policy: StopPolicy = DEFAULT_STOP, *, by: str
) -> JobView | None:
    """One owner lets go of its work. The job is ended only if nobody else waits for it.

    :param job_name: of the live submission, if its receipt isn't stored.
    """
    left = await asyncio.to_thread(store.drop_owner, key, owner)
    submission = await asyncio.to_thread(store.get, key)
    if submission is None:
        return None
    if left or submission.owners:
        log.info("the job goes on for its other owners", key=key, owners=left)
        return None
    return await end_submission(client, store, submission, job_name, policy, by=by)


async def look(client: SlurmClient, receipt: Receipt, since: float, before: JobView | None = None) -> JobView:
    """One look at one job, queue and accounting together. Without accounting, a job that left the queue has ended."""
    seen = await observe(client, receipt, since)
    if seen.queue is None and not seen.accounting_kept:
        return replace(before or JobView(receipt.job_id, receipt.cluster), phase=Phase.LOST, cause=NO_ACCOUNTING, observed_at=seen.at)
    # No grace for a job to come back: whoever ends a job asks again anyway.
    return judge(before or JobView(receipt.job_id, receipt.cluster), seen, replace(Graces(), return_grace_s=0.0))


async def observe(client: SlurmClient, receipt: Receipt, since: float) -> Observation:
    """Queue and accounting rows of one job, by its id and its name (ids are used again after some years)."""
    named = (row for row in await client.queue(receipt.job_name) if row.name == receipt.job_name)
    rows: list[QueueRow] = [row for row in whole_jobs(named) if row.job_id == receipt.job_id]
    if rows and not rows[0].state.info.phase.ended:
        return Observation(time.time(), queue=rows[0])
    recorded: list[AccountingRow] | None = None
    kept = True
    trouble = ""
    try:
        recorded = [r for r in await client.accounting(since - 86400, ids=[receipt.job_id]) if r.name == receipt.job_name]
        if any("_" in row.array_id for row in recorded):
            recorded = whole_jobs(recorded)
    except AccountingDisabled:
        kept = False
    except AccountingUnreachable as error:
        trouble = str(error)
    return Observation(time.time(), rows[0] if rows else None, True, recorded, kept, trouble)


async def _wait(client: SlurmClient, receipt: Receipt, since: float, total_s: float, pause_s: float) -> JobView:
    deadline = time.monotonic() + total_s
    view = await look(client, receipt, since)
    while not view.ended and time.monotonic() < deadline:
        await asyncio.sleep(min(pause_s, max(0.05, deadline - time.monotonic())))
        view = await look(client, receipt, since, view)
    return view
