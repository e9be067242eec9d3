"""One look for all jobs that are being ended or accounted for: whoever wants one over the same client at about the same time shares it.

For the controller one name costs as much as all of a user's jobs: squeue picks names out on its own side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from airflow_slurm.errors import AccountingDisabled, AccountingUnreachable
from airflow_slurm.receipts import Receipt
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.arrays import main_id, whole_jobs
from airflow_slurm.truth.reconcile import NO_ACCOUNTING, Graces, Observation, judge, wants_accounting
from airflow_slurm.truth.view import JobView

#: For so long, in seconds, a look waits for others that want one too.
GATHER_S = 0.1
#: Clocks differ: accounting is asked from so many seconds before the oldest submission on.
CLOCK_MARGIN_S = 86400.0


@dataclass(frozen=True)
class Wanted:
    """A job that somebody wants to know about. ``since``: no job of its submission can be older; seconds since the epoch."""

    receipt: Receipt
    since: float


async def look(
    client: SlurmClient,
    receipt: Receipt,
    since: float,
    before: JobView | None = None,
    *,
    pause_s: float = 0.0,
    beside: set[str] | None = None,
) -> JobView:
    """One look at one job, queue and accounting together. Without accounting, a job that left the queue has ended.

    :param pause_s: at least so long after the last look over this client, in seconds.
    :param beside: takes the ids of other jobs of its name that are queued or run.
    """
    looks = _LOOKS.setdefault(client, _Looks())
    seen = await looks.next(client, Wanted(receipt, since), pause_s)
    if beside is not None:
        beside.update(seen.beside)
    return view_of(receipt, seen, before)


def view_of(receipt: Receipt, seen: Observation, before: JobView | None = None) -> JobView:
    """What one look says of a job."""
    known = before or JobView(receipt.job_id, receipt.cluster)
    if seen.queue is None and not seen.accounting_kept:
        return replace(known, phase=Phase.LOST, cause=NO_ACCOUNTING, observed_at=seen.at)
    # No grace for a job to come back: whoever ends a job asks again anyway.
    return judge(known, seen, replace(Graces(), return_grace_s=0.0))


async def observe_all(
    client: SlurmClient, wanted: Collection[Wanted], queue: Sequence[QueueRow] | None = None
) -> dict[Wanted, Observation]:
    """Queue and accounting rows of jobs, by id and name (ids are used again after some years): one squeue, and one sacct for those that left.

    :param queue: all of this user's jobs, if they are known already.
    """
    names = {each.receipt.job_name for each in wanted}
    rows = queue if queue is not None else await client.queue(next(iter(names)) if len(names) == 1 else None)
    at = time.time()
    named: dict[str, list[QueueRow]] = {}
    for row in rows:
        named.setdefault(row.name, []).append(row)
    present = {each: _whole(named.get(each.receipt.job_name, ()), each.receipt.job_id) for each in wanted}
    left = [each for each, row in present.items() if wants_accounting(row)]
    recorded = await _recorded(client, left)
    seen = {each: Observation(at, queue=row) for each, row in present.items()}
    seen |= {each: recorded.about(each, present[each], at) for each in left}
    return {each: replace(one, beside=_others(named.get(each.receipt.job_name, ()), each.receipt.job_id)) for each, one in seen.items()}


@dataclass(frozen=True)
class _Recorded:
    """What accounting said: rows by the id of the whole job; None if it was not to be had."""

    rows: Mapping[str, Sequence[AccountingRow]] | None = None
    kept: bool = True
    trouble: str = ""

    def about(self, wanted: Wanted, row: QueueRow | None, at: float) -> Observation:
        """Of one job."""
        if self.rows is None:
            return Observation(at, row, True, None, self.kept, self.trouble)
        mine = [r for r in self.rows.get(wanted.receipt.job_id, ()) if r.name == wanted.receipt.job_name]
        return Observation(at, row, True, whole_jobs(mine) if any("_" in r.array_id for r in mine) else mine)


async def _recorded(client: SlurmClient, left: Sequence[Wanted]) -> _Recorded:
    if not left:
        return _Recorded({})
    oldest = min(each.since for each in left) - CLOCK_MARGIN_S
    try:
        rows = await client.accounting(oldest, ids=sorted({each.receipt.job_id for each in left}))
    except AccountingDisabled:
        return _Recorded(kept=False)
    except AccountingUnreachable as error:
        return _Recorded(trouble=str(error))
    by_whole: dict[str, list[AccountingRow]] = {}
    for row in rows:
        by_whole.setdefault(main_id(row), []).append(row)
    return _Recorded(by_whole)


def _whole(named: Sequence[QueueRow], job_id: str) -> QueueRow | None:
    return next((row for row in whole_jobs(named) if row.job_id == job_id), None)


def _others(named: Sequence[QueueRow], job_id: str) -> tuple[str, ...]:
    return tuple(row.job_id for row in whole_jobs(named) if row.job_id != job_id and not row.state.info.phase.ended)


@dataclass
class _Looks:
    """The looks over one client, one after the other. Times are those of the monotonic clock."""

    wanted: list[Wanted] | None = None
    answer: asyncio.Future[dict[Wanted, Observation]] | None = None
    last: float = float("-inf")
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def next(self, client: SlurmClient, wanted: Wanted, pause_s: float) -> Observation:
        """What the next look says of a job; others may join it until it begins."""
        if self.wanted is None or self.answer is None:
            self.wanted = []
            self.answer = asyncio.ensure_future(self._take(client, self.wanted, pause_s))
        self.wanted.append(wanted)
        # One who waits may be cancelled while others wait for the same look.
        return (await asyncio.shield(self.answer))[wanted]

    async def _take(self, client: SlurmClient, wanted: list[Wanted], pause_s: float) -> dict[Wanted, Observation]:
        async with self.turn:
            await asyncio.sleep(max(GATHER_S, self.last + pause_s - time.monotonic()))
            self.wanted = self.answer = None
            self.last = time.monotonic()
            return await observe_all(client, wanted)


_LOOKS: WeakKeyDictionary[SlurmClient, _Looks] = WeakKeyDictionary()
