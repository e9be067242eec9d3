"""What tests ask past the code under test, or do in the place of another process."""

from __future__ import annotations

from typing import Any

from airflow_slurm.receipts import Owner, Receipt, ReceiptStore
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.spec import JobSpec


async def submit_held(client: SlurmClient, spec: JobSpec, job_name: str) -> Receipt:
    """A job that was queued, and whose submitter died before it wrote anything."""
    return (await client.submit_and_look(spec, job_name)).receipt


async def is_started(client: SlurmClient, job_id: str) -> bool:
    """Whether the controller has given a waiting job its nodes, whatever became of it there."""
    return [row.state.name for row in await client.queue_of_all(ids=[job_id])] not in ([], ["PENDING"])


def owners_of(store: ReceiptStore | Any, key: str) -> list[Owner]:
    """Who waits for the live submission of a key."""
    live = store.get(key)
    return [] if live is None else list(live.owners)
