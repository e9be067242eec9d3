"""One scancel for all jobs that are to be ended, or told to save, over the same client at about the same time; each is confirmed by itself afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from airflow_slurm.errors import CommandRefused
from airflow_slurm.remote.client import IDS_A_SCANCEL, SlurmClient
from airflow_slurm.slurm.commands import check_job_id
from airflow_slurm.slurm.failures import refused_ids

#: For so long, in seconds, a command waits for others that want the same done to theirs.
GATHER_S = 0.1


@dataclass(frozen=True)
class _What:
    """What is done to the jobs of one command."""

    signal: str | None
    cluster: str | None
    waiting_only: bool

    async def to(self, client: SlurmClient, ids: Sequence[str]) -> None:
        await client.cancel(ids, signal=self.signal, cluster=self.cluster, waiting_only=self.waiting_only)


@dataclass
class _Batch:
    ids: list[str] = field(default_factory=list)
    answer: asyncio.Future[dict[str, CommandRefused]] | None = None


_BATCHES: WeakKeyDictionary[SlurmClient, dict[_What, _Batch]] = WeakKeyDictionary()


async def cancel(
    client: SlurmClient, job_id: str, *, signal: str | None = None, cluster: str | None = None, waiting_only: bool = False
) -> None:
    """As the client's, together with others.

    :raises CommandRefused: and InvalidSpec, for this very job. :raises Unreachable: if nobody could be asked.
    """
    check_job_id(job_id)  # not with the others: it would be said of all of them
    what = _What(signal, cluster, waiting_only)
    batches = _BATCHES.setdefault(client, {})
    batch = batches.get(what)
    if batch is None or batch.answer is None:
        batch = batches[what] = _Batch()
        batch.answer = asyncio.ensure_future(_send(client, batches, what, batch))
    batch.ids.append(job_id)
    # One who waits may be cancelled while others wait for the same command.
    refused = await asyncio.shield(batch.answer)
    if job_id in refused:
        raise refused[job_id]


async def _send(client: SlurmClient, batches: dict[_What, _Batch], what: _What, batch: _Batch) -> dict[str, CommandRefused]:
    await asyncio.sleep(GATHER_S)
    batches.pop(what, None)
    ids = list(dict.fromkeys(batch.ids))
    try:
        await what.to(client, ids)
    except CommandRefused as error:
        named = refused_ids(error.words)
        if len(ids) <= IDS_A_SCANCEL and named and named.issubset(ids):
            return dict.fromkeys(named, error)
        return {ids[0]: error} if len(ids) == 1 else await _one_by_one(client, what, ids)
    return {}


async def _one_by_one(client: SlurmClient, what: _What, ids: Sequence[str]) -> dict[str, CommandRefused]:
    """What is refused of one must not be said of the others. A program may be told to save twice then."""
    refused: dict[str, CommandRefused] = {}
    for job_id in ids:
        try:
            await what.to(client, [job_id])
        except CommandRefused as error:
            refused[job_id] = error
    return refused
