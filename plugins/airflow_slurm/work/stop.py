"""End a job politely and be sure of it: signal, wait until it has saved and ended, cancel, kill; each step confirmed.

Every function may be called again at any time, by any process: what has been done already is recognised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from airflow_slurm.errors import SlurmError, Unreachable, UnreadableAnswer
from airflow_slurm.receipts import JobEnd, Owner, Receipt, ReceiptStore, Submission, drop_claim
from airflow_slurm.remote.client import NAMES_A_COMMAND, SlurmClient
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.arrays import array_of
from airflow_slurm.truth.view import JobView
from airflow_slurm.work.cancelling import cancel
from airflow_slurm.work.elsewhere import place_of
from airflow_slurm.work.looking import look

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StopPolicy:
    """How a job is ended. Times are seconds.

    :ivar signal: what asks the program to save and end. :ivar grace_s: how long it may take for that.
    :ivar cancel_wait_s: how long Slurm may take to end a cancelled job, before it is killed; and a killed one again.
    :ivar pause_s: between two looks, at first and at least; all that are ended over one connection share them.
    """

    signal: str = "USR1"
    grace_s: float = 60.0
    cancel_wait_s: float = 60.0
    pause_s: float = 2.0


DEFAULT_STOP = StopPolicy()
#: A pause between two looks is this part of the time that was waited already, and at most so many seconds.
LOOKS_LATER, LONGEST_PAUSE_S = 4, 30.0


class NotEnded(SlurmError):
    """A job that was told to end has not; whoever waits for it waits on, and it is tried again."""


async def end_submission(
    client: SlurmClient, store: ReceiptStore, submission: Submission, job_name: str, policy: StopPolicy = DEFAULT_STOP, *, by: str
) -> JobView | None:
    """End the job of a submission, and any other one of its name (a request that was late on its way), see that they ended, and close the submission
    as cancelled.

    :param job_name: by which it is found if there is no receipt.
    :returns: the last view of the job; None if none was ever queued.
    :raises NotEnded: if it resists. :raises Unreachable: if nobody could be asked. Nothing is closed then.
    """
    place = await asyncio.to_thread(place_of, store, submission.key, submission)
    if place not in (None, client.conn_id):
        # Another controller would say that it has no such job.
        raise NotEnded(f"The job of {submission.key!r} lives at connection {place!r} and can't be ended over {client.conn_id!r}.")
    receipt = submission.receipt
    if receipt is None:
        receipt = (await find_receipts(client, {job_name: submission.since})).get(job_name)
    if receipt is None:
        await close_unqueued(store, submission, by=by)
        return None
    beside: set[str] = set()
    view = await end_job(client, receipt, submission.since, policy, beside)
    if beside:
        doubles = {"kept": receipt.job_id, "cancelled": sorted(beside, key=int)}
        log.error("several jobs of one submission that was given up", **doubles)
        await asyncio.to_thread(store.incident, submission.key, submission.n, "several_jobs_of_one_name", doubles)
        for job_id in doubles["cancelled"]:
            await end_job(client, replace(receipt, job_id=job_id), submission.since, policy)
    await asyncio.to_thread(store.observe, submission.key, submission.n, view)
    await asyncio.to_thread(store.close, submission.key, submission.n, JobEnd("cancelled", "given_up", view=view, closed_by=by))
    return view


async def close_unqueued(store: ReceiptStore, submission: Submission, *, by: str) -> None:
    """Close a submission of which it is sure that no job was ever queued."""
    await asyncio.to_thread(store.close, submission.key, submission.n, JobEnd("cancelled", "never_queued", closed_by=by))


async def find_receipts(client: SlurmClient, names: Mapping[str, float]) -> dict[str, Receipt]:
    """What can be told of submissions without a receipt, by the names of their jobs: nothing of those that were never queued.

    :param names: since when a job of each name can be there, in seconds since the epoch.
    :raises Unreachable: if nobody could be asked.
    """
    receipts = {}
    for first in range(0, len(names), NAMES_A_COMMAND):
        some = list(names)[first : first + NAMES_A_COMMAND]
        for name, rows in (await client.find_by_names(some, min(names[name] for name in some))).items():
            if rows:
                receipts[name] = Receipt(rows[0].job_id, name, client.conn_id, client.cluster, array=array_of(rows[0]))
    return receipts


async def end_job(
    client: SlurmClient, receipt: Receipt, since: float, policy: StopPolicy = DEFAULT_STOP, beside: set[str] | None = None
) -> JobView:
    """Signal, cancel, kill; as far down that list as it takes.

    :param beside: takes the ids of other jobs of its name that were seen meanwhile, queued or running.
    :raises NotEnded: if the job is still there after all of it.
    """
    view = await look(client, receipt, since, pause_s=policy.pause_s, beside=beside)
    if view.ended:
        return view
    if receipt.array is not None:
        # Tasks that wait would start as others end.
        await cancel(client, receipt.job_id, waiting_only=True, cluster=receipt.cluster)
    if view.phase is Phase.RUNNING:
        log.info("asking a job to save and end", job_id=receipt.job_id, signal=policy.signal, grace_s=policy.grace_s)
        await cancel(client, receipt.job_id, signal=policy.signal, cluster=receipt.cluster)
        view = await _wait(client, receipt, since, policy.grace_s, policy.pause_s, beside)
    for signal in (None, "KILL"):
        if view.ended:
            return view
        await cancel(client, receipt.job_id, signal=signal, cluster=receipt.cluster)
        view = await _wait(client, receipt, since, policy.cancel_wait_s, policy.pause_s, beside)
    if not view.ended and view.missing_since is not None:
        # The controller answers and no longer has it; accounting may say RUNNING for ever after a lost end record.
        return replace(view, phase=Phase.LOST, cause="left_queue")
    if not view.ended:
        raise NotEnded(f"Job {receipt.job_id} was cancelled and killed and is still {view.state or 'not known to have ended'}.")
    return view


async def give_up(
    client: SlurmClient,
    store: ReceiptStore,
    key: str,
    owner: Owner,
    job_name: str,
    policy: StopPolicy = DEFAULT_STOP,
    *,
    by: str,
    token: str | None = None,
) -> JobView | None:
    """One owner lets go of its work. The job is ended only if nobody else waits for it.

    :param job_name: of the live submission, if its receipt isn't stored.
    :param token: the owner's, from before it was decided that it lets go: one that has claimed anew since then, as a cleared task's next try has,
        stays. Without one, it lets go in any case.
    """
    left = await asyncio.to_thread(drop_claim, store, key, owner, token)
    submission = await asyncio.to_thread(store.get, key)
    if submission is None:
        return None
    if left or submission.owners:
        log.info("the job goes on for its other owners", key=key, owners=left)
        return None
    return await end_submission(client, store, submission, job_name, policy, by=by)


async def _wait(
    client: SlurmClient, receipt: Receipt, since: float, total_s: float, pause_s: float, beside: set[str] | None = None
) -> JobView:
    """Look until it has ended or the time is over, ever less often: a program that saves a large state takes minutes.

    One look that fails ends nothing: it is shared by all that are being ended, which would begin anew with their signal.

    :raises Unreachable: if the last look failed.
    """
    deadline = time.monotonic() + total_s
    view: JobView | None = None
    while True:
        try:
            view, trouble = await look(client, receipt, since, view, pause_s=pause_s, beside=beside), None
        except (Unreachable, UnreadableAnswer) as error:
            trouble = error
        left = deadline - time.monotonic()
        if left <= 0.0 or (trouble is None and view is not None and view.ended):
            break
        pause = min(max(pause_s, (total_s - left) / LOOKS_LATER), LONGEST_PAUSE_S)
        await asyncio.sleep(min(pause, max(0.05, left)))
    if trouble is not None or view is None:
        raise trouble or NotEnded(f"Nobody looked at job {receipt.job_id}.")
    return view
