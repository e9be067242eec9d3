"""A real controller that comes back with an older state: it starts a job beside its own run, and gives a number away twice."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import structlog

from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.poller import Hub, take_snapshot
from airflow_slurm.watch.waiting import Wait
from airflow_slurm.work.submit import Submitted, Work, submit
from local.process import send
from local.slurm_cluster import PrivateSlurm

from .conftest import OWNER, QUICK, take_back_nodes
from .faults.helpers import appears, until

pytestmark = pytest.mark.slurm


@pytest.fixture
async def state(slurm: PrivateSlurm, tmp_path: Path) -> Any:
    """Keeps the controller's state, and later puts it back, as a controller does that is killed before it has saved."""

    class State:
        async def keep(self) -> None:
            await asyncio.to_thread(slurm.kill, "slurmctld", signal.SIGTERM)
            await asyncio.to_thread(shutil.copytree, slurm.base / "state", tmp_path / "state")
            await asyncio.to_thread(slurm.spawn, "slurmctld")

        async def put_back(self, over: Path) -> None:
            """``over``: what the job makes last, while nobody listens: its node tells nobody then that it has ended, and goes on believing in it."""
            await asyncio.to_thread(slurm.kill, "slurmctld")
            await appears(over, 60)
            for step in await asyncio.to_thread(slurm.steps):
                send(step, signal.SIGKILL)  # else it tells the controller that comes back, sooner or later
            await asyncio.to_thread(shutil.rmtree, slurm.base / "state")
            await asyncio.to_thread(shutil.copytree, tmp_path / "state", slurm.base / "state")
            await asyncio.to_thread(slurm.spawn, "slurmctld")

    return State()


def work(folder: Path) -> str:
    return f"touch {folder}/ran; sleep 3; touch {folder}/done"


async def sent(client: SlurmClient, store: FileReceipts, key: str, body: str) -> Submitted:
    # On all nodes, so that a second start meets the first.
    spec = JobSpec(body=body, output="/dev/null", nodes=2, exclusive=True)
    return await submit(client, store, Work(key, lambda n: spec, lambda n: job_name_for(key, n)), OWNER, look_up=QUICK)


async def end_of(client: SlurmClient, store: FileReceipts, key: str, done: Submitted) -> dict[str, Any]:
    """What the follower says of the job's end."""
    wait = Wait(
        key, done.n, done.receipt.job_id, done.receipt.job_name, done.since, OWNER, "airflow_slurm.file_receipts.FileReceipts",
        {"root": str(store.root)}, submitted_at=done.receipt.submitted_at, queued_at=done.receipt.queued_at,
    )  # fmt: skip
    follower = follower_of(wait, Hub(client=client), structlog.get_logger())
    events: list[dict[str, Any]] = []

    async def ended() -> bool:
        if (event := await follower.look(await take_snapshot(client, [follower.watched]))) is not None:
            events.append(event)
        return bool(events)

    await until(ended, timeout_s=120)
    return events[0]


async def test_a_job_that_is_started_beside_its_own_run_is_lost_and_its_output_decides(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, state: Any, tmp_path: Path
) -> None:
    await asyncio.to_thread(slurm.run, "scontrol", "update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test")
    done = await sent(client, store, key, work(tmp_path))
    await asyncio.sleep(1.5)  # a controller says in whole seconds when it was started
    await state.keep()
    await asyncio.to_thread(take_back_nodes, slurm)
    await appears(tmp_path / "ran", 60)
    await state.put_back(tmp_path / "done")
    await asyncio.to_thread(take_back_nodes, slurm)
    event = await end_of(client, store, key, done)
    view = event["view"]
    assert (view["state"], view["phase"], view["cause"], view["doubtful"]) == ("CANCELLED", "lost", "launch_failed", True)


async def test_a_number_that_is_given_away_again_costs_its_second_job_nothing_but_time(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, state: Any, tmp_path: Path
) -> None:
    await state.keep()
    first = await sent(client, store, key, work(tmp_path))
    await appears(tmp_path / "ran", 60)
    await state.put_back(tmp_path / "done")
    second = await sent(client, store, f"{key}/second", f"touch {tmp_path}/ran-too")
    assert second.receipt.job_id == first.receipt.job_id
    event = await end_of(client, store, f"{key}/second", second)
    view = event["view"]
    assert (view["state"], view["cause"], view["doubtful"]) == ("CANCELLED", FORGOTTEN, False)
    assert not (tmp_path / "ran-too").exists()
