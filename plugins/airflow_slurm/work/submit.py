"""Submit once. Whatever dies at whatever line, calling :func:`submit` again ends with the same single job.

Claim the next number, queue a *held* job and look whether another one has its name, write the receipt, lift the hold: two command
lines on the login node. A job can't start before its receipt is stored, and a held orphan costs nothing. If sbatch's answer got lost, the job is
looked up by its name for a while before anything is sent again. Of several jobs of one name :mod:`.of_one_name` says which one stays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

import structlog

from airflow_slurm.errors import (
    AnswerLost,
    CommandRefused,
    InvalidSpec,
    SubmissionUncertain,
    SubmitRefused,
    Unreachable,
    UnreadableAnswer,
)
from airflow_slurm.receipts import Claim, JobEnd, Owner, Receipt, ReceiptStore, Submission, drop_claim
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.spec import JobSpec, check_sent
from airflow_slurm.truth.arrays import main_id
from airflow_slurm.work.elsewhere import reach, settle_place
from airflow_slurm.work.of_one_name import Kept, Standing, cancel_doubles, kept_of, let_go, never_ran
from airflow_slurm.work.stop import DEFAULT_STOP, StopPolicy, end_submission

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Work:
    """One piece of work, as the protocol needs it.

    :ivar spec_for: the job of submission ``n``. :ivar name_for: its name, unique to key and ``n``.
    :ivar stage_in: puts files beside the job before it is sent; may be called more than once for one ``n``.
    :ivar on_claim: told claim and connection right after the claim, before anything is sent.
    :ivar asked_over: over which connection the caller asked for this work before, if it did.
    """

    key: str
    spec_for: Callable[[int], JobSpec]
    name_for: Callable[[int], str]
    stage_in: Callable[[int], None] = lambda n: None
    on_claim: Callable[[Claim, str], None] = lambda claim, conn_id: None
    asked_over: str | None = None


@dataclass(frozen=True)
class LookUp:
    """How long a job with a lost answer is looked for, in seconds, before it counts as never queued.

    Slurm's clients give up after 10 s while a busy controller still works through what it received.
    """

    total_s: float = 30.0
    pause_s: float = 5.0
    sends: int = 3


DEFAULT_LOOK_UP = LookUp()


@dataclass(frozen=True)
class Submitted:
    """A job that is queued, recorded and released."""

    n: int
    receipt: Receipt
    since: float
    adopted: bool


@dataclass(frozen=True)
class _Job:
    """A job of this submission.

    :ivar may_have_run: somebody may have released it before. Then one that the controller does not know may have run and left the queue before
        accounting heard of it: whoever waits for it finds out, with all the time that takes; nothing is sent again here.
    :ivar seen: all jobs of its name, if they were looked for after it was queued.
    """

    receipt: Receipt
    may_have_run: bool
    seen: Sequence[QueueRow] | None = None


class _Overtaken(Exception):
    """Between claim and release the submission was closed or given up."""


class _Forgotten(Exception):
    """A held job is gone: a controller that dies within seconds of its answer has not saved it. It can't have run."""


async def submit(
    client: SlurmClient,
    store: ReceiptStore,
    work: Work,
    owner: Owner,
    *,
    look_up: LookUp = DEFAULT_LOOK_UP,
    stop: StopPolicy = DEFAULT_STOP,
    nothing_sent: bool = False,
) -> Submitted:
    """Join the live submission of the work, or make the next one. See the module.

    :param nothing_sent: the caller knows that the last try of this very submission ended before anything was queued
        (as after :class:`SubmitBusy`), so that one look by name is enough.
    :raises SubmitRefused: for good; the submission is closed. :raises InvalidSpec: as well. :raises SubmitBusy: for now; call again later.
    :raises SubmissionUncertain: neither sent nor found, since nobody could be asked; call again later.
    :raises Unreachable: nothing was sent; call again later.
    :raises ConnectionGone: the live submission was made over a connection that is no more; nothing was sent.
    """
    while True:
        claim = await asyncio.to_thread(store.claim, work.key, owner)
        place = await asyncio.to_thread(settle_place, store, work.key, claim, client.conn_id, work.asked_over)
        if claim.ending:
            given_up = Submission(work.key, claim.n, claim.receipt, (), claim.since, True)
            log.info("the earlier job was given up; seeing that it ends first", key=work.key, n=claim.n, conn_id=place)
            async with _at(place, client, store, work, claim) as there:
                await end_submission(there, store, given_up, work.name_for(claim.n), stop, by="next submission")
            continue
        await asyncio.to_thread(work.on_claim, claim, place)
        try:
            if place == client.conn_id:
                return await _one(client, store, work, claim, look_up, nothing_sent)
            async with _at(place, client, store, work, claim) as there:
                if (found := await _elsewhere(there, store, work, claim, look_up)) is not None:
                    return found
                await _unsent(there, store, work, claim, owner, stop)
        except _Overtaken:
            log.warning("submission was closed meanwhile; claiming again", key=work.key, n=claim.n)


def _at(place: str, client: SlurmClient, store: ReceiptStore, work: Work, claim: Claim) -> AbstractAsyncContextManager[SlurmClient]:
    return nullcontext(client) if place == client.conn_id else reach(store, work.key, claim, place)


async def _elsewhere(there: SlurmClient, store: ReceiptStore, work: Work, claim: Claim, look_up: LookUp) -> Submitted | None:
    """The job of a submission that was made over another connection than the caller's, adopted there; None if there is none. Sends nothing."""
    found = None if claim.receipt is not None else await _search(there, work, claim, look_up)
    receipt = claim.receipt or (found.receipt if found is not None else None)
    if receipt is None:
        return None
    log.warning(
        "this work's job lives at another connection; adopting it there", key=work.key, job_id=receipt.job_id, conn_id=there.conn_id
    )
    # With a receipt it counts as one that may have run, so that it is never sent again.
    return await _one(there, store, work, replace(claim, receipt=receipt, adopted=True), look_up, nothing_sent=False)


async def _unsent(there: SlurmClient, store: ReceiptStore, work: Work, claim: Claim, owner: Owner, stop: StopPolicy) -> None:
    """End a submission of which no job is there, so that the next can be made over the caller's connection.

    It is given up before the last look: whoever is submitting it at this moment, over the other connection, sees that before it lifts the hold.

    :raises SubmissionUncertain: if another task waits for it: that one may be sending it.
    """
    if await asyncio.to_thread(drop_claim, store, work.key, owner, claim.token):
        raise SubmissionUncertain(
            f"Another task is submitting {work.name_for(claim.n)!r} over connection {there.conn_id!r}: nothing is sent over a second one until it has."
        )
    given_up = Submission(work.key, claim.n, None, (), claim.since, True)
    await end_submission(there, store, given_up, work.name_for(claim.n), stop, by="next submission")


async def _one(client: SlurmClient, store: ReceiptStore, work: Work, claim: Claim, look_up: LookUp, nothing_sent: bool) -> Submitted:
    n, forgotten = claim.n, set[str]()
    job: _Job | None = None
    if claim.receipt is not None:
        if claim.receipt.released_at is not None:
            return Submitted(n, claim.receipt, claim.since, claim.adopted)
        # Whoever wrote a receipt may have lifted the hold and died before that was written too.
        job = _Job(claim.receipt, may_have_run=True)
    elif claim.adopted:
        job = await _search(client, work, claim, replace(look_up, total_s=0.0) if nothing_sent else look_up)
    for _ in range(look_up.sends):
        if job is None:
            job = await _send(client, store, work, claim, look_up)
        job = await _written_down(store, work.key, n, job, forgotten)
        try:
            receipt = await _settle(client, store, work, claim, job)
        except _Forgotten:
            lost = job.receipt
            log.error("the controller has forgotten the held job; sending it again", job_name=lost.job_name, job_id=lost.job_id)
            await asyncio.to_thread(store.incident, work.key, n, "forgotten_by_the_controller", {"job_id": lost.job_id})
            forgotten.add(lost.job_id)
            job = None
            continue
        return Submitted(n, receipt, claim.since, claim.adopted)
    raise SubmissionUncertain(f"The controller forgot {look_up.sends} jobs of {work.name_for(n)!r} before they could be released.")


async def _written_down(store: ReceiptStore, key: str, n: int, job: _Job, forgotten: Collection[str]) -> _Job:
    """The job, with its receipt in the store; or the one whose receipt another worker has put there: that one may have been released.

    :param forgotten: jobs of which it is known that they never ran.
    """
    live = await asyncio.to_thread(store.get, key)
    other = live.receipt if live is not None and live.n == n else None
    if other is not None and other.job_id not in forgotten and (other.job_id != job.receipt.job_id or other.released_at is not None):
        return _Job(other, may_have_run=True, seen=job.seen)
    receipt = replace(job.receipt, submitted_at=job.receipt.submitted_at or time.time())
    await asyncio.to_thread(store.record, key, n, receipt)
    return replace(job, receipt=receipt)


async def _send(client: SlurmClient, store: ReceiptStore, work: Work, claim: Claim, look_up: LookUp) -> _Job:
    name, spec = work.name_for(claim.n), work.spec_for(claim.n)
    try:
        check_sent(spec)
        await client.check_possible(spec)
    except (InvalidSpec, SubmitRefused) as error:
        cause = "impossible" if isinstance(error, SubmitRefused) else "invalid"
        await asyncio.to_thread(store.close, work.key, claim.n, JobEnd("failed", cause, str(error), closed_by="submission"))
        raise
    await asyncio.to_thread(work.stage_in, claim.n)
    for _ in range(look_up.sends):
        try:
            queued = await client.submit_and_look(spec, name)
            return _Job(queued.receipt, may_have_run=False, seen=queued.of_its_name)
        except SubmitRefused as error:
            end = JobEnd("failed", "refused", str(error), closed_by="submission")
            await asyncio.to_thread(store.close, work.key, claim.n, end)
            raise
        except AnswerLost as error:
            log.warning("the answer to a submission got lost; looking the job up by its name", job_name=name, error=str(error))
            if (found := await _search(client, work, claim, look_up)) is not None:
                return found
    raise SubmissionUncertain(f"{look_up.sends} answers to the submission of {name!r} got lost, and no job of that name is there.")


async def _search(client: SlurmClient, work: Work, claim: Claim, look_up: LookUp) -> _Job | None:
    """A job that was queued although its answer was lost, or that nobody wrote down; None if it is sure that there is none.

    :raises SubmissionUncertain: if the last looks could not be made.
    """
    name = work.name_for(claim.n)
    deadline = time.monotonic() + look_up.total_s
    trouble: Exception | None = None
    while True:
        try:
            kept, trouble = kept_of(await client.rows_by_name(name, claim.since)), None
            if kept is not None:
                log.info("found the job of an earlier submission", job_name=name, job_id=kept.job_id, standing=kept.standing.name)
                spec, at = work.spec_for(claim.n), kept.row.submit_time if kept.row is not None else None
                path = spec.log_path(kept.job_id)
                receipt = Receipt(kept.job_id, name, client.conn_id, client.cluster, at, None, path, spec.array, queued_at=at)
                return _Job(receipt, kept.may_have_run)
        except (Unreachable, UnreadableAnswer, CommandRefused) as error:
            trouble = error
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(look_up.pause_s)
    if trouble is not None:
        raise SubmissionUncertain(f"Whether job {name!r} was queued can't be looked up, so nothing is sent: {trouble}") from trouble
    return None


async def _settle(client: SlurmClient, store: ReceiptStore, work: Work, claim: Claim, job: _Job) -> Receipt:
    """One job of this name, recorded and released. Every step may be done again."""
    receipt, key, n = job.receipt, work.key, claim.n
    rows, kept = await _choice(client, claim, job)
    row = kept.row if kept is not None else None
    if row is not None and row.submit_time is not None and not job.may_have_run:
        receipt = replace(receipt, queued_at=row.submit_time)
    if kept is not None and kept.job_id != receipt.job_id:
        queued_at = row.submit_time if row is not None else None
        receipt = replace(receipt, job_id=kept.job_id, log_path=work.spec_for(n).log_path(kept.job_id), queued_at=queued_at)
        await asyncio.to_thread(store.record, key, n, receipt)
    await cancel_doubles(client, store, key, n, rows, receipt.job_id)
    live = await asyncio.to_thread(store.get, key)
    if live is None or live.n != n or live.ending:
        await client.cancel(receipt.job_id, cluster=receipt.cluster)
        raise _Overtaken
    if receipt.released_at is not None:
        return receipt
    if (kept is None or row is None or kept.held_by_us) and not await let_go(client, receipt):
        released = live.receipt is not None and live.receipt.released_at is not None
        if not job.may_have_run and not released and await never_ran(client, receipt, claim):
            raise _Forgotten
    receipt = replace(receipt, released_at=time.time())
    await asyncio.to_thread(store.record, key, n, receipt)
    return receipt


async def _choice(client: SlurmClient, claim: Claim, job: _Job) -> tuple[Sequence[QueueRow | AccountingRow], Kept | None]:
    """All jobs of the name, as the queue has them, and the one that stays; None if it is the known one, which somebody has released.

    While others are there, accounting is asked too about one that may have run and has left the queue, or of which it shows no run: an array's tasks
    that ran leave it before those that were cancelled.
    """
    name, own = job.receipt.job_name, job.receipt.job_id
    rows = job.seen if job.seen is not None else [row for row in await client.queue(name) if row.name == name]
    if job.receipt.released_at is not None:
        return rows, None
    kept = kept_of(rows, own if job.may_have_run else None)
    alone = all(main_id(row) == own for row in rows)
    if kept is None or alone or not job.may_have_run or kept.standing is Standing.RUNS or (kept.job_id == own and kept.row is not None):
        return rows, kept
    known = await client.rows_by_name(name, claim.since)
    return known, kept_of(known, own)
