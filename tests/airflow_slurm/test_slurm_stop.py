"""Ending real jobs: politely first, surely in the end, and only if nobody else waits for them."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm import triggers
from airflow_slurm.errors import ControllerUnreachable
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.receipts import JobEnd, Owner, Receipt
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.spec import JobSpec
from airflow_slurm.triggers import SlurmJobTrigger, Wait, as_json
from airflow_slurm.work import stop
from airflow_slurm.work.reconciler import reconcile
from airflow_slurm.work.stop import end_job, give_up
from airflow_slurm.work.submit import Submitted, Work, submit
from local.slurm_cluster import PrivateSlurm

from .conftest import HASTY, OTHER, OWNER, QUICK
from .faults.helpers import appears, until
from .looking import submit_held

pytestmark = pytest.mark.slurm
POLITE = "trap 'echo saved > {0}/saved; exit 75' USR1; touch {0}/up; while :; do sleep 0.1; done"
ENDED = ("CANCELLED", "FAILED")  # waiting, or already running: then the signal to save ends a shell that has no trap for it
STUBBORN = "trap '' USR1 TERM; touch {0}/up; while :; do sleep 0.1; done"


async def started(client: SlurmClient, store: FileReceipts, key: str, owner: Owner, body: str = "sleep 600", **spec: object) -> Submitted:
    work = Work(key, lambda n: JobSpec(body=body, output="/dev/null", **spec), lambda n: job_name_for(key, n))  # type: ignore[arg-type]
    return await submit(client, store, work, owner, look_up=QUICK, stop=HASTY)


async def test_a_program_gets_the_time_to_save(client: SlurmClient, store: FileReceipts, key: str, shared: Path) -> None:
    await started(client, store, key, OWNER, POLITE.format(shared))
    await appears(shared / "up")
    view = await give_up(client, store, key, OWNER, "", HASTY, by="test")
    assert view is not None
    assert (view.state, view.exit_code) == ("FAILED", 75)
    assert (shared / "saved").read_text() == "saved\n"
    end = store.end_of(key, 1)
    assert end is not None
    assert (end.outcome, end.closed_by) == ("cancelled", "test")


async def test_a_program_that_resists_is_ended_all_the_same(client: SlurmClient, store: FileReceipts, key: str, shared: Path) -> None:
    await started(client, store, key, OWNER, STUBBORN.format(shared))
    await appears(shared / "up")
    began = time.monotonic()
    view = await give_up(client, store, key, OWNER, "", HASTY, by="test")
    assert view is not None
    assert view.state == "CANCELLED"
    assert time.monotonic() - began >= HASTY.grace_s


async def test_one_that_outlives_its_cancel_is_killed_whole(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``KillWait``, after which Slurm itself kills what resists TERM, is ten times what a cancel is given here."""
    wait_s = int(re.search(r"KillWait\s*= (\d+)", slurm.run("scontrol", "show", "config").stdout)[1])  # type: ignore[index]
    asked: list[list[str]] = []
    run = SlurmClient._run

    async def noted(self: SlurmClient, argv: Sequence[str], **kwargs: Any) -> Any:
        asked.append(list(argv))
        return await run(self, argv, **kwargs)

    wait = stop._wait

    async def patient_after_a_kill(client: SlurmClient, receipt: Receipt, since: float, seconds: float, *args: Any) -> Any:
        killed = any("--signal=KILL" in argv for argv in asked)
        return await wait(client, receipt, since, 60.0 if killed else seconds, *args)

    monkeypatch.setattr(SlurmClient, "_run", noted)
    monkeypatch.setattr(stop, "_wait", patient_after_a_kill)
    done = await started(client, store, key, OWNER, STUBBORN.format(shared))
    await appears(shared / "up")
    policy = replace(HASTY, grace_s=0.5, cancel_wait_s=wait_s * 0.1)
    view = await give_up(client, store, key, OWNER, "", policy, by="test")
    assert view is not None
    assert view.state == "CANCELLED"
    job_id = done.receipt.job_id
    assert [argv[1:] for argv in asked if argv[0] == "scancel"] == [
        ["--batch", "--signal=USR1", job_id],
        [job_id],
        ["--signal=KILL", job_id],
    ]


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_kill_reaches_what_the_jobs_shell_started(client: SlurmClient, store: FileReceipts, key: str, shared: Path) -> None:
    """Sent to the shell alone it would look as if the program had failed."""
    done = await started(client, store, key, OWNER, f"sleep 600 & echo $! > {shared}/child; touch {shared}/up; wait")
    await appears(shared / "up")
    await client.cancel(done.receipt.job_id, signal="KILL")
    view = await end_job(client, done.receipt, done.since, HASTY)
    assert view.state == "CANCELLED"
    child = int((shared / "child").read_text())
    async with asyncio.timeout(20):
        while runs(child):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_a_waiting_job_is_cancelled_at_once(client: SlurmClient, store: FileReceipts, key: str) -> None:
    done = await started(client, store, key, OWNER, dependency="afterany:1", nice=5)
    view = await give_up(client, store, key, OWNER, "", HASTY, by="test")
    assert view is not None
    assert (view.job_id, view.ended) == (done.receipt.job_id, True)


async def test_a_job_that_another_run_waits_for_goes_on(
    client: SlurmClient, store: FileReceipts, key: str, jobs_named: Callable[[str], list[tuple[str, str]]]
) -> None:
    done = await started(client, store, key, OWNER)
    await started(client, store, key, OTHER)
    assert await give_up(client, store, key, OWNER, "", HASTY, by="test") is None
    assert jobs_named(done.receipt.job_name)[0][1] in ("PENDING", "RUNNING")
    assert (await give_up(client, store, key, OTHER, "", HASTY, by="test")) is not None
    assert jobs_named(done.receipt.job_name)[0][1] in ENDED


async def test_whoever_comes_while_a_job_is_being_ended_waits_for_that_and_gets_a_new_one(
    client: SlurmClient, store: FileReceipts, key: str
) -> None:
    first = await started(client, store, key, OWNER)
    store.drop_owner(key, OWNER)  # and then the process that wanted to end it died
    second = await started(client, store, key, OTHER)
    assert (first.n, second.n) == (1, 2)
    old = (await client.queue(first.receipt.job_name))[0]
    assert old.state.name in ENDED
    end = store.end_of(key, 1)
    assert end is not None
    assert end.outcome == "cancelled"


async def test_what_was_never_queued_is_closed_as_such(client: SlurmClient, store: FileReceipts, key: str) -> None:
    store.claim(key, OWNER)
    assert await give_up(client, store, key, OWNER, job_name_for(key, 1), HASTY, by="test") is None
    end = store.end_of(key, 1)
    assert end is not None
    assert end.cause == "never_queued"


async def test_without_a_controller_nothing_counts_as_ended(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str
) -> None:
    await started(client, store, key, OWNER)
    slurm.kill("slurmctld", signal.SIGTERM)  # with KILL it forgets jobs of the last seconds
    with pytest.raises(ControllerUnreachable):
        await give_up(client, store, key, OWNER, "", HASTY, by="test")
    assert store.get(key) is not None
    slurm.spawn("slurmctld")
    await asyncio.sleep(1)
    assert await give_up(client, store, key, OWNER, "", HASTY, by="again") is not None
    assert store.get(key) is None


async def test_many_that_are_failed_at_once_end_over_one_connection(
    connection: str, client: SlurmClient, store: FileReceipts, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some run, some still wait for a place."""
    made: list[SlurmClient] = []
    opened = SlurmHook.get_client

    @asynccontextmanager
    async def counted(self: SlurmHook) -> AsyncIterator[SlurmClient]:
        async with opened(self) as one:
            made.append(one)
            yield one

    keys = [f"{key}/{i}" for i in range(12)]
    done = [
        await started(client, store, each, OWNER | {"task_id": each}, "trap 'exit 75' USR1; while :; do sleep 0.1; done") for each in keys
    ]

    async def some_run() -> bool:
        return any(row.state.name == "RUNNING" for row in await client.queue())

    await until(some_run)
    monkeypatch.setattr(triggers, "task_state", lambda owner: "failed")
    monkeypatch.setattr(SlurmHook, "get_client", counted)
    path, config = "airflow_slurm.file_receipts.FileReceipts", {"root": str(store.root)}
    for each, job in zip(keys, done, strict=True):
        wait = Wait(each, 1, job.receipt.job_id, job.receipt.job_name, job.since, OWNER | {"task_id": each}, path, config, stop=vars(HASTY))
        await SlurmJobTrigger(connection, as_json(wait)).on_kill()
    while triggers._DETACHED:
        await asyncio.gather(*triggers._DETACHED)
    assert len(made) == 1
    ends = [store.end_of(each, 1) for each in keys]
    assert [end.outcome for end in ends if end is not None] == ["cancelled"] * 12
    assert {end.view.state for end in ends if end is not None and end.view is not None} <= set(ENDED)
    mine = {job.receipt.job_id for job in done}
    assert all(row.state.info.phase.ended for row in await client.queue() if row.job_id in mine)


def test_the_reconciler_ends_what_nobody_owns_and_leaves_the_rest(
    connection: str, slurm: PrivateSlurm, store: FileReceipts, key: str, jobs_named: Callable[[str], list[tuple[str, str]]]
) -> None:
    hook = SlurmHook(connection)
    owned = hook.run(lambda client: started(client, store, f"{key}/owned", OWNER))
    forgotten = hook.run(lambda client: started(client, store, f"{key}/forgotten", OTHER))
    late, theirs = job_name_for(f"{key}/late", 1), job_name_for(f"{key}/of another Airflow", 1)
    store.claim(f"{key}/late", OTHER)
    store.close(f"{key}/late", 1, JobEnd("cancelled", "never_queued"))
    held = JobSpec(body="true", output="/dev/null")
    orphan = hook.run(lambda client: submit_held(client, held, late))
    others = [hook.run(lambda client, name=name: submit_held(client, held, name)) for name in (theirs, "job-by-hand")]  # type: ignore[misc]

    def is_alive(owner: Owner) -> bool:
        return owner["run_id"] == "r1"

    time.sleep(1.5)
    told = reconcile(hook, store, is_alive, policy=HASTY, act=False, orphan_age_s=0.0)
    assert {(f.kind, f.key) for f in told} == {("unowned", f"{key}/forgotten"), ("orphan", ""), ("stranger", "")}
    assert jobs_named(orphan.job_name)[0][1] == "PENDING"
    done = reconcile(hook, store, is_alive, policy=HASTY, orphan_age_s=0.0)
    assert {(f.kind, f.key) for f in done} == {("ended", f"{key}/forgotten"), ("orphan", ""), ("stranger", "")}
    assert jobs_named(forgotten.receipt.job_name)[0][1] in ENDED
    assert jobs_named(orphan.job_name)[0][1] == "CANCELLED"
    assert [jobs_named(other.job_name)[0][1] for other in others] == ["PENDING", "PENDING"]
    assert jobs_named(owned.receipt.job_name)[0][1] in ("PENDING", "RUNNING")
    assert [f.kind for f in reconcile(hook, store, is_alive, policy=HASTY, orphan_age_s=0.0)] == ["stranger"]


def test_the_reconciler_says_when_it_could_ask_nobody(connection: str, slurm: PrivateSlurm, store: FileReceipts, key: str) -> None:
    hook = SlurmHook(connection)
    hook.run(lambda client: started(client, store, key, OTHER))
    slurm.kill("slurmctld")
    findings = reconcile(hook, store, lambda owner: False, policy=replace(HASTY, grace_s=1))
    assert [finding.kind for finding in findings] == ["unreachable"]
    assert store.get(key) is not None
