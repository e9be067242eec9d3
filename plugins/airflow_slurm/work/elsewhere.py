"""A job lives at the connection it was submitted over, whatever connection a task names by now: it is asked about, adopted and ended there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from airflow_slurm.errors import ConnectionGone, NoConnection, SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.receipts import Claim, KeepsConnections, ReceiptStore, Submission
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.work.left import leave_to_a_person, note_left


def place_of(store: ReceiptStore, key: str, one: Claim | Submission) -> str | None:
    """Over which connection a submission was made: the receipt's, else what the store keeps; None if neither says."""
    if one.receipt is not None:
        return one.receipt.conn_id
    return store.sent_over(key, one.n) if isinstance(store, KeepsConnections) else None


def settle_place(store: ReceiptStore, key: str, claim: Claim, conn_id: str, asked_over: str | None) -> str:
    """The same of one that is about to be made over ``conn_id``: kept before anything is sent, and the first that was kept stays.

    :param asked_over: over which connection this very task asked for it before; it counts for what was claimed before stores kept that.
    """
    if (known := place_of(store, key, claim)) is not None:
        return known
    place = asked_over if claim.adopted and asked_over else conn_id
    return store.sent_over(key, claim.n, place) or place if isinstance(store, KeepsConnections) else place


@asynccontextmanager
async def reach(store: ReceiptStore, key: str, one: Claim | Submission, conn_id: str) -> AsyncIterator[SlurmClient]:
    """A client where a submission lives.

    :raises ConnectionGone: if Airflow no longer has that connection; the submission is left to a person.
    """
    try:
        async with SlurmHook(conn_id).get_client() as client:
            yield client
    except NoConnection as error:
        gone = ConnectionGone(one.receipt.job_id if one.receipt else None, key, one.n, conn_id)
        await asyncio.to_thread(note_left, store, key, one.n, gone)
        raise gone from error


def left_open(state: Mapping[str, Any], why: SlurmError) -> SlurmError:
    """Leave a submission to a person, and the error that says so.

    :param state: as :meth:`airflow_slurm.requests.JobRequest.state`.
    """
    if isinstance(why, NoConnection):
        why = ConnectionGone(state["job_id"], state["key"], int(state["n"]), state["conn_id"])
    leave_to_a_person(state, why)
    return why
