"""A real controller that comes back without a job that it had confirmed: its state is put back to what it was before."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import history_of
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.holds import ROLLED_BACK
from airflow_slurm.truth.reconcile import FORGOTTEN, LAUNCH_FAILED_HELD
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.poller import Hub, take_snapshot
from airflow_slurm.watch.waiting import Wait
from airflow_slurm.work.submit import Work, submit
from local.slurm_cluster import PrivateSlurm

from .conftest import OWNER, QUICK, unreported
from .faults.helpers import appears, until
from .looking import is_started

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("array", [None, "0-2"])
async def test_what_never_ran_is_forgotten_and_nothing_else(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, tmp_path: Path, array: str | None
) -> None:
    kept, state = tmp_path / "state", slurm.base / "state"
    all_nodes = {"output": "/dev/null", "nodes": 2, "exclusive": True}
    blocker = Work(f"{key}/blocker", lambda n: JobSpec(body="sleep 300", **all_nodes), lambda n: job_name_for(f"{key}/blocker", n))
    first = await submit(client, store, blocker, OWNER, look_up=QUICK)
    await asyncio.to_thread(slurm.kill, "slurmctld", signal.SIGTERM)
    shutil.copytree(state, kept)
    await asyncio.to_thread(slurm.spawn, "slurmctld")

    spec = JobSpec(body="true", array=array, **all_nodes)
    done = await submit(client, store, Work(key, lambda n: spec, lambda n: job_name_for(key, n)), OWNER, look_up=QUICK)
    job_id = done.receipt.job_id
    wait = Wait(
        key, done.n, job_id, done.receipt.job_name, done.since, OWNER, "airflow_slurm.file_receipts.FileReceipts", {"root": str(store.root)},
        submitted_at=done.receipt.submitted_at, queued_at=done.receipt.queued_at, array=array, hold_grace_s=0.0,
    )  # fmt: skip
    follower = follower_of(wait, Hub(client=client), structlog.get_logger())
    assert await follower.look(await take_snapshot(client, [follower.watched])) is None
    assert follower.view.state == "PENDING"
    await asyncio.sleep(1.5)  # a controller says in whole seconds when it was started: within one, the job stays unknown
    await asyncio.to_thread(slurm.kill, "slurmctld")
    shutil.rmtree(state)
    shutil.copytree(kept, state)
    await asyncio.to_thread(slurm.spawn, "slurmctld")

    look = await take_snapshot(client, [follower.watched])
    assert look.queue == {}
    assert await follower.look(look) is None
    event = await follower.look(replace(look, at=time.time() + 500))
    assert event is not None
    assert (event["status"], event["view"]["phase"], event["view"]["cause"]) == ("ended", "lost", FORGOTTEN)
    assert [task["cause"] for task in event.get("tasks", {}).values()] == ([FORGOTTEN] * 3 if array else [])
    # The one that the controller still has is none of them.
    other = replace(wait, key=f"{key}/blocker", job_id=first.receipt.job_id, job_name=first.receipt.job_name, array=None)
    running = follower_of(other, Hub(client=client), structlog.get_logger())
    assert await running.look(await take_snapshot(client, [running.watched])) is None
    assert running.view.state in ("RUNNING", "PENDING", "CONFIGURING")


@pytest.mark.parametrize("heard", [True, False])
async def test_what_was_pushed_out_and_put_back_is_lost_with_its_controller(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, tmp_path: Path, shared: Path, heard: bool
) -> None:
    """Seen to run, pushed out, seen waiting again; then the controller comes back without it. Accounting has heard of the second wait, or not."""
    kept, state = tmp_path / "state", slurm.base / "state"
    await asyncio.to_thread(slurm.kill, "slurmctld", signal.SIGTERM)
    shutil.copytree(state, kept)
    await asyncio.to_thread(slurm.spawn, "slurmctld")

    spec = JobSpec(body=f"touch {shared}/ran; sleep 120", output="/dev/null", mem="50M", partition="scavenge", requeue=True)
    done = await submit(client, store, Work(key, lambda n: spec, lambda n: job_name_for(key, n)), OWNER, look_up=QUICK)
    wait = Wait(
        key, done.n, done.receipt.job_id, done.receipt.job_name, done.since, OWNER, "airflow_slurm.file_receipts.FileReceipts",
        {"root": str(store.root)}, submitted_at=done.receipt.submitted_at, queued_at=done.receipt.queued_at, hold_grace_s=0.0,
    )  # fmt: skip
    follower = follower_of(wait, Hub(client=client), structlog.get_logger())
    await appears(shared / "ran")
    assert await follower.look(await take_snapshot(client, [follower.watched])) is None
    assert follower.view.state == "RUNNING"
    all_nodes = ("--partition=urgent", "--nodes=2", "--exclusive", "--mem=50M")
    await asyncio.to_thread(slurm.run, "sbatch", *all_nodes, "--output=/dev/null", "--wrap=sleep 120")
    async with asyncio.timeout(90):
        while (follower.view.state, follower.view.restarts) != ("PENDING", 1):
            await asyncio.sleep(0.3)
            assert await follower.look(await take_snapshot(client, [follower.watched])) is None
    assert follower.view.put_back_at is not None
    assert follower.view.put_back_at > (done.receipt.queued_at or 0.0)
    async with asyncio.timeout(60):
        while heard and len([row for row in await client.accounting(0, ids=[wait.job_id]) if row.name == wait.job_name]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.3)
    await asyncio.sleep(1.5)
    await asyncio.to_thread(slurm.kill, "slurmctld")
    shutil.rmtree(state)
    shutil.copytree(kept, state)
    await asyncio.to_thread(slurm.spawn, "slurmctld")

    look = await take_snapshot(client, [follower.watched])
    assert look.queue == {}
    assert await follower.look(look) is None
    event = await follower.look(replace(look, at=time.time() + 500))
    assert event is not None
    # The number is given away again, to each of these tests.
    mine = [row for row in (look.accounting or {})[wait.job_id] if row.name == wait.job_name]
    cause = FORGOTTEN if len(mine) > 1 else "preempted"
    assert cause == FORGOTTEN or not heard
    assert (event["status"], event["view"]["phase"], event["view"]["cause"], event["view"]["retryable"]) == ("ended", "lost", cause, True)
    assert next(run["state"] for run in event["view"]["incarnations"]) == "PREEMPTED"


async def test_what_slurm_cannot_launch_beside_its_own_run_is_ended_in_its_hold_and_lost(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, tmp_path: Path, shared: Path
) -> None:
    """The controller comes back with a job as released and waiting that runs by now, and starts it beside itself."""
    kept, state = tmp_path / "state", slurm.base / "state"
    held = await asyncio.to_thread(slurm.run, "sbatch", "--parsable", "--hold", "--mem=50M", "--output=/dev/null", "--wrap=true")
    before = held.stdout.strip()
    spec = JobSpec(body=f"touch {shared}/ran; sleep 120", output="/dev/null", mem="50M", requeue=True, dependency=f"afterany:{before}")
    done = await submit(client, store, Work(key, lambda n: spec, lambda n: job_name_for(key, n)), OWNER, look_up=QUICK)
    wait = Wait(
        key, done.n, done.receipt.job_id, done.receipt.job_name, done.since, OWNER, "airflow_slurm.file_receipts.FileReceipts",
        {"root": str(store.root)}, submitted_at=done.receipt.submitted_at, queued_at=done.receipt.queued_at, hold_grace_s=2.0,
    )  # fmt: skip
    await asyncio.sleep(1.5)  # a controller says in whole seconds when it was started
    await asyncio.to_thread(slurm.kill, "slurmctld", signal.SIGTERM)
    shutil.copytree(state, kept)
    await asyncio.to_thread(slurm.spawn, "slurmctld")
    await asyncio.to_thread(slurm.run, "scancel", before)
    await appears(shared / "ran", 60)
    await asyncio.to_thread(slurm.kill, "slurmctld")
    shutil.rmtree(state)
    shutil.copytree(kept, state)
    with unreported(slurm):
        await asyncio.to_thread(slurm.spawn, "slurmctld")
        await asyncio.to_thread(slurm.run, "scancel", before)
        await until(lambda: is_started(client, wait.job_id), 60)

    follower = follower_of(wait, Hub(client=client), structlog.get_logger())
    event, reasons = None, set()
    async with asyncio.timeout(100):
        while event is None:
            event = await follower.look(await take_snapshot(client, [follower.watched]))
            reasons.add(follower.view.reason)
            await asyncio.sleep(0.5)
    if LAUNCH_FAILED_HELD not in reasons:
        assert (event["status"], event["view"]["phase"]) in (("ended", "failed"), ("ended", "lost"))
        pytest.skip(f"the end of its own run was taken for that of the second start: {follower.view.describe()}")
    assert (event["status"], event["view"]["phase"], event["view"]["cause"]) == ("ended", "lost", FORGOTTEN)
    assert [note["what"] for record in history_of(store, key) for note in record.incidents] == [ROLLED_BACK]
