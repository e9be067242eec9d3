"""Finds what no longer fits: jobs nobody waits for, and tasks whose job is gone; ends the former, reports the latter.

``on_kill`` of a trigger has about a second and may never come. This is what guarantees that a job ends when its last
owner is gone. It may run at any time, anywhere, twice at once. However many submissions there are, a pass asks the queue once and
accounting once, and once more each about what seems to be gone; what it ends is looked at together.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from airflow_slurm.errors import SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.owners import has_decided as decided_in_airflow
from airflow_slurm.owners import is_owner_alive as told_by_airflow
from airflow_slurm.receipts import KeepsKeys, Owner, ReceiptStore, Submission, drop_claim, token_of
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.parse import QueueRow
from airflow_slurm.truth.arrays import main_id
from airflow_slurm.truth.reconcile import Observation
from airflow_slurm.work.elsewhere import place_of
from airflow_slurm.work.left import left_why
from airflow_slurm.work.looking import Wanted, observe_all, view_of
from airflow_slurm.work.stop import NotEnded, StopPolicy, close_unqueued, end_submission, find_receipts

#: How long ago a job has to have ended, in seconds, before it is said that no task has taken its result.
NOT_TAKEN_S = 1800.0
_NOT_TAKEN = (
    "no task has taken its result for half an hour. If the task is deferred, no triggerer runs; if it is scheduled, its Airflow pool is "
    "full or does not exist (airflow pools list; airflow pools set NAME 8 'Submissions to Slurm at once')"
)
#: Accounting may be some seconds late with a job that left the queue: after so many it is asked again, before anything is said.
LOOK_AGAIN_S = 30.0
#: So long the reconcilers of a store's other connections have for a submission of which nobody can say over which one it was made.
FOR_OTHERS_S = 3600.0
#: A submission that was claimed so short a while ago is being written down right now.
CLAIMED_JUST_NOW_S = 60.0


@dataclass(frozen=True)
class Finding:
    """Something that did not fit.

    :ivar kind: ``ended`` (a job whose last owner is gone was ended, and is confirmed), ``unowned`` (it would be, with
        ``act``), ``still_ending`` (it resists; the next run goes on), ``orphan`` (a job of the store's that no open submission knows),
        ``stranger`` (it is called as ours are, and the store has never heard of it), ``task_without_job`` (owners wait for a submission
        whose job is gone), ``left_to_a_person`` (its task failed since nobody can say how the job ended, or read its output: it stays open
        until a person decides), ``not_taken`` (its job ended a while ago, and no task has taken the result), ``owner_unknown`` (nobody could
        say whether its tasks still wait; nothing is ended on a guess) or ``unreachable``.
    """

    kind: str
    key: str = ""
    n: int = 0
    job_id: str = ""
    detail: str = ""


def reconcile(
    hook: SlurmHook,
    receipts: ReceiptStore,
    is_owner_alive: Callable[[Owner], bool] = told_by_airflow,
    *,
    name_prefix: str = "job-",
    name_of: Callable[[str, int], str] = job_name_for,
    policy: StopPolicy | None = None,
    act: bool = True,
    orphan_age_s: float = 600.0,
    has_decided: Callable[[Owner], bool] = decided_in_airflow,
) -> list[Finding]:
    """Compare records, tasks and queue of one cluster.

    :param is_owner_alive: whether a task still waits: False only if it is sure to be over. By default Airflow is asked, which works in a task.
    :param name_prefix: which jobs in the queue are ours: it is followed by 16 hex digits, ``-`` and a number.
    :param name_of: the names the submitting operators give.
    :param act: end what nobody owns; else only report it. Orphans are cancelled only while they are held: one that runs
        was released, so somebody had its receipt; and only if the store says that it is its own (:class:`KeepsKeys`).
    :param orphan_age_s: younger ones may be a submission that is being written down right now.
    :param has_decided: whether a person has marked a task since that left its submission to a person. By default Airflow is asked.
    """

    async def once() -> list[Finding]:
        async with hook.get_client() as client:
            run = _Run(client, receipts, is_owner_alive, has_decided, name_of, policy or StopPolicy(), act)
            return await run.all(hook.slurm_conn_id, name_prefix, orphan_age_s)

    return asyncio.run(once())


@dataclass(frozen=True)
class _Run:
    client: SlurmClient
    receipts: ReceiptStore
    is_owner_alive: Callable[[Owner], bool]
    has_decided: Callable[[Owner], bool]
    name_of: Callable[[str, int], str]
    policy: StopPolicy
    act: bool

    async def all(self, conn_id: str, name_prefix: str, orphan_age_s: float) -> list[Finding]:
        try:
            queue = await self.client.queue()
        except SlurmError as error:
            return [Finding("unreachable", detail=str(error))]
        live = await asyncio.to_thread(self.receipts.live)
        findings: list[Finding] = []
        over: list[Submission] = []
        waited_for: list[Submission] = []
        for submission in await asyncio.to_thread(self._here, live, conn_id, queue):
            try:
                # Before Airflow is asked: a task may be cleared right after that, and its next try claim the job.
                tokens = [await asyncio.to_thread(token_of, self.receipts, submission.key, o) for o in submission.owners]
                alive = [o for o in submission.owners if await asyncio.to_thread(self.is_owner_alive, o)]
                if not alive and (why := await self._left(submission)):
                    findings.append(_found("left_to_a_person", submission, why))
                    continue
                nobody = await self._drop_the_dead(submission, alive, tokens)
            except Exception as error:  # noqa: BLE001
                # Airflow's answer, or the application's store: whatever is wrong with one submission must not keep the others' jobs running.
                findings.append(_found("owner_unknown", submission, f"{type(error).__name__}: {error}"))
                nobody = False
            (over if nobody else waited_for).append(submission)
        findings += await self._end(over)
        findings += await self._check_jobs(waited_for, queue)
        return findings + await self._orphans(queue, live, name_prefix, orphan_age_s)

    def _here(self, live: Sequence[Submission], conn_id: str, queue: Sequence[QueueRow]) -> list[Submission]:
        """The submissions over this connection. One of which nobody says may be another's, if the store has any: its job is held, if there is one."""
        shared = any(s.receipt is not None and s.receipt.conn_id != conn_id for s in live)
        names, now = {row.name for row in queue}, time.time()

        def is_here(s: Submission) -> bool:
            if (place := place_of(self.receipts, s.key, s)) is not None:
                return place == conn_id
            return not shared or self.name_of(s.key, s.n) in names or now - s.since > FOR_OTHERS_S

        return [s for s in live if is_here(s)]

    async def _left(self, submission: Submission) -> str:
        """Why one for which no task waits stays open until a person decides; empty if it need not: somebody gave it up, say."""
        why = "" if submission.ending else await asyncio.to_thread(left_why, self.receipts, submission.key, submission.n)
        undecided = [o for o in submission.owners if why and not await asyncio.to_thread(self.has_decided, o)]
        return why if undecided or not submission.owners else ""

    async def _drop_the_dead(self, submission: Submission, alive: Sequence[Owner], tokens: Sequence[str | None]) -> bool:
        """Whether nobody is left. ``tokens``: of the owners, one by one."""
        dead = [(owner, token) for owner, token in zip(submission.owners, tokens, strict=True) if owner not in alive]
        if alive:
            if self.act:
                for owner, token in dead:
                    await asyncio.to_thread(drop_claim, self.receipts, submission.key, owner, token)
            return False
        if not submission.owners and not submission.ending and time.time() - submission.since < CLAIMED_JUST_NOW_S:
            return False
        if self.act:
            left = [await asyncio.to_thread(drop_claim, self.receipts, submission.key, owner, token) for owner, token in dead]
            return not any(left[-1:])
        return True

    async def _end(self, over: Sequence[Submission]) -> list[Finding]:
        """All at once, with one look for all of them."""
        if not self.act:
            return [_found("unowned", submission, "its last owner is gone") for submission in over]
        nameless = {self.name_of(s.key, s.n): s.since for s in over if s.receipt is None}
        findings: list[Finding] = []
        try:
            known = await find_receipts(self.client, nameless)
        except SlurmError as error:
            # Those whose job is known need no accounting to be found.
            findings = [_found("unreachable", s, str(error)) for s in over if s.receipt is None]
            known, over = {}, [s for s in over if s.receipt is not None]
        found = [s if s.receipt is not None else replace(s, receipt=known.get(self.name_of(s.key, s.n))) for s in over]
        return findings + list(await asyncio.gather(*map(self._end_one, found)))

    async def _end_one(self, submission: Submission) -> Finding:
        try:
            if submission.receipt is None:
                await close_unqueued(self.receipts, submission, by="reconciler")
                return _found("ended", submission, "it had never been queued")
            name = self.name_of(submission.key, submission.n)
            view = await end_submission(self.client, self.receipts, submission, name, self.policy, by="reconciler")
        except NotEnded as error:
            return _found("still_ending", submission, str(error))
        except Exception as error:  # noqa: BLE001
            # As above: the others' jobs are ended at the same time.
            return _found("unreachable", submission, f"{type(error).__name__}: {error}")
        return _found("ended", submission, view.describe() if view else "")

    async def _check_jobs(self, waited_for: Sequence[Submission], queue: Sequence[QueueRow]) -> list[Finding]:
        wanted = {Wanted(s.receipt, s.since): s for s in waited_for if s.receipt is not None}
        try:
            seen = await observe_all(self.client, list(wanted), queue)
            if gone := [each for each, observation in seen.items() if _is_gone(each, observation)]:
                await asyncio.sleep(LOOK_AGAIN_S)
                seen |= await observe_all(self.client, gone)
        except SlurmError as error:
            return [Finding("unreachable", detail=str(error))]
        told = [_of_job(submission, each, seen[each]) for each, submission in wanted.items()]
        if any(observation.trouble for observation in seen.values()):
            told.append(Finding("unreachable", detail=next(o.trouble for o in seen.values() if o.trouble)))
        return [finding for finding in told if finding is not None]

    async def _orphans(self, queue: Sequence[QueueRow], live: Sequence[Submission], prefix: str, age_s: float) -> list[Finding]:
        known = {s.receipt.job_id for s in live if s.receipt} | {self.name_of(s.key, s.n) for s in live}
        ours = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{16}}-([0-9]+)")
        nobodys = [row for row in queue if not row.state.info.phase.ended and not known & {row.job_id, main_id(row), row.name}]
        old = [
            row for row in nobodys if row.submit_time is not None and time.time() - row.submit_time >= age_s and ours.fullmatch(row.name)
        ]
        claimed = await asyncio.to_thread(self._claimed, {row.name: int(row.name.rpartition("-")[2]) for row in old})
        return [await self._orphan(row, claimed) for row in old]

    async def _orphan(self, row: QueueRow, claimed: set[str] | None) -> Finding:
        detail = f"{row.name} is {row.state.name} ({row.reason}) and belongs to no open submission"
        if claimed is None or row.name not in claimed:
            return Finding("stranger", job_id=row.job_id, detail=f"{detail}, and {_NOT_OURS if claimed is not None else _WHOSE}")
        if self.act and row.held_by_us:
            try:
                await self.client.cancel(main_id(row), waiting_only=True)
                detail += "; cancelled, as it was still held"
            except SlurmError as error:
                detail += f"; it could not be cancelled now: {error}"
        return Finding("orphan", job_id=row.job_id, detail=detail)

    def _claimed(self, names: dict[str, int]) -> set[str] | None:
        """Which of these names the store has given away; None if it can't say."""
        if not names:
            return set()
        if not isinstance(self.receipts, KeepsKeys):
            return None
        numbers = set(names.values())
        return {name for key in self.receipts.claimed_keys() for n in numbers if (name := self.name_of(key, n)) in names}


_NOT_OURS = "this store has never heard of it: another Airflow's, or from before the store; it is left alone"
_WHOSE = "this store can't tell whether it was ever its own; it is left alone"


def _is_gone(wanted: Wanted, seen: Observation) -> bool:
    """Whether neither queue nor accounting, which both answered, tells of the job or of its end."""
    view = view_of(wanted.receipt, seen)
    return view.missing_since is not None and not view.ended and not seen.trouble


def _of_job(submission: Submission, wanted: Wanted, seen: Observation) -> Finding | None:
    view = view_of(wanted.receipt, seen)
    if view.ended and view.end_time is not None and time.time() - view.end_time > NOT_TAKEN_S:
        return _found("not_taken", submission, f"{view.describe()}; {_NOT_TAKEN}")
    if not _is_gone(wanted, seen):
        return None
    return _found(
        "task_without_job", submission, f"neither queue nor accounting shows that it ended, asked twice within {LOOK_AGAIN_S:.0f} s"
    )


def _found(kind: str, submission: Submission, detail: str) -> Finding:
    job_id = submission.receipt.job_id if submission.receipt else ""
    return Finding(kind, submission.key, submission.n, job_id, detail)
