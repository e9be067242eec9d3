"""Finds what no longer fits: jobs nobody waits for, and tasks whose job is gone; ends the former, reports the latter.

``on_kill`` of a trigger has about a second and may never come. This is what guarantees that a job ends when its last
owner is gone. It may run at any time, anywhere, twice at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from airflow_slurm.errors import SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.receipts import Owner, ReceiptStore, Submission
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.parse import QueueRow
from airflow_slurm.truth.view import JobView
from airflow_slurm.work.stop import NotEnded, StopPolicy, end_submission, look

log = structlog.get_logger(__name__)

#: How long ago a job has to have ended, in seconds, before it is said that no task has taken its result.
NOT_TAKEN_S = 1800.0
_NOT_TAKEN = (
    "no task has taken its result for half an hour. If the task is deferred, no triggerer runs; if it is scheduled, its Airflow pool is "
    "full or does not exist (airflow pools list; airflow pools set NAME 8 'Submissions to Slurm at once')"
)


@dataclass(frozen=True)
class Finding:
    """Something that did not fit.

    :ivar kind: ``ended`` (a job whose last owner is gone was ended, and is confirmed), ``unowned`` (it would be, with
        ``act``), ``still_ending`` (it resists; the next run goes on), ``orphan`` (a job with our prefix that no open
        submission knows), ``task_without_job`` (owners wait for a submission whose job is gone),
        ``not_taken`` (its job ended a while ago, and no task has taken the result) or ``unreachable``.
    """

    kind: str
    key: str = ""
    n: int = 0
    job_id: str = ""
    detail: str = ""


def reconcile(
    hook: SlurmHook,
    receipts: ReceiptStore,
    is_owner_alive: Callable[[Owner], bool],
    *,
    name_prefix: str = "job-",
    name_of: Callable[[str, int], str] = job_name_for,
    policy: StopPolicy | None = None,
    act: bool = True,
    orphan_age_s: float = 600.0,
) -> list[Finding]:
    """Compare records, tasks and queue of one cluster.

    :param is_owner_alive: whether a task still waits: False only if it is sure to be over.
    :param name_prefix: which jobs in the queue are ours. :param name_of: the names the submitting operators give.
    :param act: end what nobody owns; else only report it. Orphans are cancelled only while they are held: one that runs
        was released, so somebody had its receipt.
    :param orphan_age_s: younger ones may be a submission that is being written down right now.
    """

    async def once() -> list[Finding]:
        async with hook.get_client() as client:
            run = _Run(client, receipts, is_owner_alive, name_of, policy or StopPolicy(), act)
            return await run.all(hook.slurm_conn_id, name_prefix, orphan_age_s)

    return asyncio.run(once())


@dataclass(frozen=True)
class _Run:
    client: SlurmClient
    receipts: ReceiptStore
    is_owner_alive: Callable[[Owner], bool]
    name_of: Callable[[str, int], str]
    policy: StopPolicy
    act: bool

    async def all(self, conn_id: str, name_prefix: str, orphan_age_s: float) -> list[Finding]:
        try:
            queue = await self.client.queue()
        except SlurmError as error:
            return [Finding("unreachable", detail=str(error))]
        live = await asyncio.to_thread(self.receipts.live)
        here = [s for s in live if s.receipt is None or s.receipt.conn_id == conn_id]
        findings = [finding for submission in here if (finding := await self._submission(submission)) is not None]
        return findings + await self._orphans(queue, live, name_prefix, orphan_age_s)

    async def _submission(self, submission: Submission) -> Finding | None:
        try:
            if await self._drop_the_dead(submission):
                return await self._end(submission)
            return await self._check_job(submission)
        except SlurmError as error:
            return Finding("unreachable", submission.key, submission.n, _id(submission), str(error))

    async def _drop_the_dead(self, submission: Submission) -> bool:
        """Whether nobody is left."""
        alive = [o for o in submission.owners if await asyncio.to_thread(self.is_owner_alive, o)]
        if alive:
            if self.act:
                for owner in submission.owners:
                    if owner not in alive:
                        await asyncio.to_thread(self.receipts.drop_owner, submission.key, owner)
            return False
        if not submission.owners and not submission.ending and time.time() - submission.since < 60.0:
            return False  # being claimed right now
        if self.act:
            left = [await asyncio.to_thread(self.receipts.drop_owner, submission.key, owner) for owner in submission.owners]
            return not any(left[-1:])
        return True

    async def _end(self, submission: Submission) -> Finding:
        where = (submission.key, submission.n, _id(submission))
        if not self.act:
            return Finding("unowned", *where, "its last owner is gone")
        try:
            view = await end_submission(
                self.client, self.receipts, submission, self.name_of(submission.key, submission.n), self.policy, by="reconciler"
            )
        except NotEnded as error:
            return Finding("still_ending", *where, str(error))
        return Finding("ended", *where, view.describe() if view else "it had never been queued")

    async def _check_job(self, submission: Submission) -> Finding | None:
        if submission.receipt is None:
            return None
        view: JobView = await look(self.client, submission.receipt, submission.since)
        if view.ended and view.end_time is not None and time.time() - view.end_time > NOT_TAKEN_S:
            return Finding("not_taken", submission.key, submission.n, _id(submission), f"{view.describe()}; {_NOT_TAKEN}")
        if view.missing_since is None or view.ended:
            return None
        return Finding(
            "task_without_job", submission.key, submission.n, _id(submission), "neither queue nor accounting shows that it ended"
        )

    async def _orphans(self, queue: list[QueueRow], live: list[Submission], prefix: str, age_s: float) -> list[Finding]:
        known = {s.receipt.job_id for s in live if s.receipt} | {self.name_of(s.key, s.n) for s in live}
        findings = []
        for row in queue:
            if not row.name.startswith(prefix) or row.state.info.phase.ended or row.job_id in known or row.name in known:
                continue
            if row.submit_time is None or time.time() - row.submit_time < age_s:
                continue
            detail = f"{row.name} is {row.state.name} ({row.reason}) and belongs to no open submission"
            if self.act and row.held_by_us:
                await self.client.cancel(row.job_id)
                detail += "; cancelled, as it was still held"
            findings.append(Finding("orphan", job_id=row.job_id, detail=detail))
        return findings


def _id(submission: Submission) -> str:
    return submission.receipt.job_id if submission.receipt else ""
