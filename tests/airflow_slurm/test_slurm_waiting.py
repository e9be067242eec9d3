"""Waiting for real jobs: what ends the wait, what does not, and what reaches the task's log."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import Receipt, history_of
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.parse import AccountingRow
from airflow_slurm.spec import JobSpec
from airflow_slurm.triggers import SlurmJobTrigger, Wait, as_json
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch import poller
from airflow_slurm.watch.poller import Watched, hub_of, take_snapshot
from airflow_slurm.work.submit import Work, submit
from local.process import ProcessStat, descendants, send
from local.slurm_cluster import PrivateSlurm

from .conftest import CONN_ID, OWNER, QUICK, connection_uri
from .faults.helpers import appears, until
from .faults.proxy import Proxy
from .looking import submit_held

pytestmark = pytest.mark.slurm


async def started(client: SlurmClient, store: FileReceipts, key: str, body: str, **spec: Any) -> Wait:
    """A submitted job, and what a trigger has to know of it."""
    spec.setdefault("output", "/dev/null")
    work = Work(key, lambda n: JobSpec(body=body, **spec), lambda n: job_name_for(key, n))
    done = await submit(client, store, work, OWNER, look_up=QUICK)
    return Wait(
        key=key, n=done.n, job_id=done.receipt.job_id, job_name=done.receipt.job_name, since=done.since, owner=OWNER,
        receipts="airflow_slurm.file_receipts.FileReceipts", receipts_config={"root": str(store.root)},
        submitted_at=done.receipt.submitted_at, log_path=done.receipt.log_path,
    )  # fmt: skip


async def event_of(connection: str, wait: Wait, timeout_s: float = 60.0) -> tuple[str, JobView]:
    """The event of the trigger, rebuilt from its serialised form as a triggerer would."""
    path, kwargs = SlurmJobTrigger(connection, as_json(wait)).serialize()
    assert path == "airflow_slurm.triggers.SlurmJobTrigger"
    async with asyncio.timeout(timeout_s), aclosing(SlurmJobTrigger(**kwargs).run()) as events:
        async for event in events:
            return event.payload["status"], JobView.from_json(event.payload["view"])
    raise AssertionError("no event")


async def test_a_job_that_completes(connection: str, client: SlurmClient, store: FileReceipts, key: str) -> None:
    status, view = await event_of(connection, await started(client, store, key, "sleep 1"))
    assert (status, view.state, view.exit_code, view.succeeded) == ("ended", "COMPLETED", 0, True)
    assert view.node_list in ("n1", "n2")
    assert view.elapsed_s is not None
    [record] = history_of(store, key)
    assert record.view is not None
    assert record.view.state == "COMPLETED"


async def test_a_job_that_fails_keeps_its_exit_code(connection: str, client: SlurmClient, store: FileReceipts, key: str) -> None:
    status, view = await event_of(connection, await started(client, store, key, "exit 75"))
    assert (status, view.state, view.exit_code, view.succeeded) == ("ended", "FAILED", 75, False)


async def test_a_job_that_was_killed_names_the_signal(connection: str, client: SlurmClient, store: FileReceipts, key: str) -> None:
    _, view = await event_of(connection, await started(client, store, key, "kill -9 $$"))
    assert (view.state, view.signal) == ("FAILED", 9)


async def test_a_job_that_somebody_cancelled(connection: str, client: SlurmClient, store: FileReceipts, key: str) -> None:
    wait = await started(client, store, key, "sleep 600")
    await client.cancel(wait.job_id)
    status, view = await event_of(connection, wait)
    assert (status, view.state, view.cause, view.retryable) == ("ended", "CANCELLED", "cancelled", False)


async def test_a_job_that_ended_and_left_the_queue_is_found_in_accounting(client: SlurmClient, store: FileReceipts, key: str) -> None:
    wait = await started(client, store, key, "exit 3")
    job = Watched(wait.job_id, wait.job_name, wait.since)
    rows: list[AccountingRow] = []

    async def recorded() -> bool:
        rows[:] = await client.accounting(wait.since - 60, ids=[wait.job_id])
        # On a busy machine the row comes before the job's name: then it is nobody's yet, and the next look finds it.
        return bool(rows) and rows[-1].state.name == "FAILED" and rows[-1].name == wait.job_name

    await until(recorded)
    snapshot = replace(await take_snapshot(client, [job]), queue={}, accounting={wait.job_id: rows})
    seen = snapshot.of(job)
    assert seen is not None
    assert seen.accounting is not None
    assert seen.accounting[-1].exit_code == 3


async def test_a_requeued_job_is_waited_for_and_both_runs_are_told(
    slurm: PrivateSlurm,
    connection: str,
    client: SlurmClient,
    store: FileReceipts,
    key: str,
    shared: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = f"""
        echo "run ${{SLURM_RESTART_COUNT:-0}} speaks"
        touch {shared}/run-${{SLURM_RESTART_COUNT:-0}}
        [ "${{SLURM_RESTART_COUNT:-0}}" -ge 1 ] || sleep 600"""
    wait = await started(client, store, key, body, requeue=True, gres="gpu:1", output=f"{shared}/log-%j.txt")
    waiting = asyncio.create_task(event_of(connection, wait, 100))
    await appears(shared / "run-0")
    slurm.run("scontrol", "requeue", wait.job_id)
    status, view = await waiting
    assert (status, view.state, view.restarts) == ("ended", "COMPLETED", 1)
    assert (shared / "run-1").exists()
    assert [run.restart for run in view.incarnations] == [0, 1]
    assert view.incarnations[0].state == "REQUEUED"
    assert [(run.gpus, run.lost) for run in view.incarnations] == [(1, True), (1, False)]
    assert view.lost_gpu_seconds == view.incarnations[0].elapsed_s
    # Slurm opened the file again for the second run; the log has what either said, once.
    said = capsys.readouterr().out
    spoken = [f"run {run} speaks" for run in (0, 1)]
    assert [said.count(f"[job {wait.job_id}] {line}") for line in spoken] == [1, 1]
    kept = (shared / f"log-{wait.job_id}.txt").read_text()
    assert [kept.count(line) for line in spoken] == [1, 1]


class Looks:
    """What came of the looks of the loop that triggers share."""

    def __init__(self) -> None:
        self._answered: list[bool] = []

    async def take(self, *args: Any, **kwargs: Any) -> Any:
        self._answered.append(False)
        snapshot = await take_snapshot(*args, **kwargs)
        self._answered[-1] = snapshot.queue is not None
        return snapshot

    async def answered(self) -> bool:
        return True in self._answered

    async def unanswered(self) -> bool:
        """Whether there was one in vain: the last one may be on its way."""
        return False in self._answered[:-1]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    made = Looks()
    monkeypatch.setattr(poller, "take_snapshot", made.take)
    return made


async def test_a_controller_that_goes_away_fails_nothing(
    slurm: PrivateSlurm, connection: str, client: SlurmClient, store: FileReceipts, key: str, shared: Path, looks: Looks
) -> None:
    wait = await started(client, store, key, f"touch {shared}/up; while [ ! -e {shared}/go ]; do sleep 0.2; done")
    waiting = asyncio.create_task(event_of(connection, wait, 110))
    await appears(shared / "up", 60)
    await until(looks.answered, 60)
    await asyncio.to_thread(slurm.kill, "slurmctld", signal.SIGTERM)
    (shared / "go").touch()
    await until(looks.unanswered, 60)
    assert not waiting.done()
    await asyncio.to_thread(slurm.spawn, "slurmctld")
    status, view = await waiting
    assert (status, view.state) == ("ended", "COMPLETED")


async def test_an_ssh_server_that_goes_away_fails_nothing(
    slurm: PrivateSlurm, connection: str, client: SlurmClient, store: FileReceipts, key: str, shared: Path, looks: Looks
) -> None:
    wait = await started(client, store, key, f"touch {shared}/up; while [ ! -e {shared}/go ]; do sleep 0.2; done")
    waiting = asyncio.create_task(event_of(connection, wait, 110))
    await appears(shared / "up", 60)
    await until(looks.answered, 60)
    pid = slurm.pid("sshd")
    assert pid is not None
    server = ProcessStat.of(pid)
    assert server is not None
    sessions = await asyncio.to_thread(descendants, [server])
    await asyncio.to_thread(slurm.kill, "sshd")
    for session in sessions:
        send(session, signal.SIGKILL)
    (shared / "go").touch()
    await until(looks.unanswered, 60)
    assert not waiting.done()
    await asyncio.to_thread(slurm.spawn, "sshd")
    status, view = await waiting
    assert (status, view.state) == ("ended", "COMPLETED")


async def test_an_outcome_that_stays_unknown_calls_a_person_at_its_deadline(
    connection: str, store: FileReceipts, key: str, client: SlurmClient
) -> None:
    await client.version()
    wait = Wait(
        key=key, n=1, job_id="99999", job_name="never-there", since=time.time(), owner=OWNER, max_unknown_s=1.0,
        receipts="airflow_slurm.file_receipts.FileReceipts", receipts_config={"root": str(store.root)},
    )  # fmt: skip
    store.claim(key, OWNER)
    job = Watched(wait.job_id, wait.job_name, wait.since)
    first = await take_snapshot(client, [job])

    async def an_hour_later() -> AsyncIterator[Any]:
        for hours in (0, 1, 2):
            yield replace(first, at=first.at + 3600 * hours)

    events = [event async for event in SlurmJobTrigger(connection, as_json(wait)).filter_shared_stream(an_hour_later())]
    assert [event.payload["status"] for event in events] == ["unknown"]
    assert events[0].payload["view"]["cause"] == "neither queue nor accounting knows it"


async def test_a_job_of_another_name_under_the_same_id_is_another_job(client: SlurmClient, store: FileReceipts, key: str) -> None:
    wait = await started(client, store, key, "sleep 600")
    seen = (await take_snapshot(client, [Watched(wait.job_id, "other-name", wait.since)])).of(
        Watched(wait.job_id, "other-name", wait.since)
    )
    assert seen is not None
    assert seen.queue is None
    assert seen.accounting == []


async def test_a_start_that_takes_too_long_is_reported(connection: str, client: SlurmClient, store: FileReceipts, key: str) -> None:
    wait = await started(client, store, key, "sleep 600", nodes=2, exclusive=True)
    behind = await submit_held(client, JobSpec(body="true", output="/dev/null", nodes=2, exclusive=True), job_name_for(key, 7))
    await client.release(behind.job_id)
    view_of = replace(wait, job_id=behind.job_id, job_name=behind.job_name, max_wait_s=2.0)
    status, view = await event_of(connection, view_of)
    assert (status, view.state) == ("waited_too_long", "PENDING")
    assert view.reason in ("Resources", "Priority")


async def test_state_reason_and_output_reach_the_log(
    connection: str, client: SlurmClient, store: FileReceipts, key: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = f"echo 'étape 1'; while [ ! -e {shared}/go ]; do sleep 0.2; done; echo fin"
    wait = await started(client, store, key, body, output=f"{shared}/log-%j.txt")
    waiting = asyncio.create_task(event_of(connection, wait, 100))
    said: list[str] = []

    async def runs_and_speaks() -> bool:
        said.append(capsys.readouterr().out)
        return "RUNNING" in "".join(said) and "étape 1" in "".join(said)

    await until(runs_and_speaks, 60)
    (shared / "go").touch()
    await waiting
    text = "".join(said) + capsys.readouterr().out
    assert f"Slurm: job {wait.job_id} RUNNING" in text
    assert f"Slurm: job {wait.job_id} COMPLETED" in text
    assert f"[job {wait.job_id}] étape 1" in text
    assert f"[job {wait.job_id}] fin" in text


async def test_one_look_serves_all_jobs_and_accounting_is_asked_only_about_what_looks_ended(
    client: SlurmClient, store: FileReceipts, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [await started(client, store, f"{key}/{i}", "sleep 600") for i in range(3)]
    gone = Watched("99998", "never-there", time.time())
    asked: list[str] = []
    original = client._run

    async def counted(argv: list[str], **kwargs: Any) -> Any:
        asked.append(" ".join(argv))
        return await original(argv, **kwargs)

    monkeypatch.setattr(client, "_run", counted)
    jobs = [Watched(w.job_id, w.job_name, w.since) for w in running]
    await take_snapshot(client, jobs)
    assert [line.split()[0] for line in asked] == ["squeue"]
    await take_snapshot(client, [*jobs, gone])
    assert [line.split()[0] for line in asked] == ["squeue", "squeue", "sacct"]
    assert "--jobs=99998" in asked[-1]


async def test_twenty_triggers_of_a_process_ask_over_one_connection(
    slurm: PrivateSlurm, connection: str, client: SlurmClient, store: FileReceipts, key: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"while [ ! -e {shared}/go ]; do sleep 0.2; done"
    waits = [await started(client, store, f"{key}/{number}", body, mem="50M", output=f"{shared}/%j.log") for number in range(20)]
    manager = SharedStreamManager()
    seen: list[tuple[str, str]] = []

    async def wait_for(number: int, wait: Wait) -> None:
        trigger = SlurmJobTrigger(connection, as_json(wait))
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key=trigger.shared_stream_key())
        async with aclosing(trigger.filter_shared_stream(stream)) as events:
            async for event in events:
                seen.append((event.payload["view"]["job_id"], event.payload["view"]["state"]))
                return

    async def look_happened() -> bool:
        return hub_of(SlurmJobTrigger(connection, as_json(waits[0])).shared_stream_key()).last_look is not None

    async with Proxy(slurm.ssh_port) as proxy:
        through = connection_uri(slurm).replace(f'"port": {slurm.ssh_port}', f'"port": {proxy.port}')
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", through)
        try:
            async with asyncio.timeout(100), asyncio.TaskGroup() as group:
                for number, wait in enumerate(waits):
                    group.create_task(wait_for(number, wait))
                await until(look_happened)
                (shared / "go").touch()
        finally:
            await manager.stop_all()
        assert proxy.connections == 1  # looks, and the twenty outputs
    assert sorted(seen) == sorted((wait.job_id, "COMPLETED") for wait in waits)


def test_a_receipt_survives_json() -> None:
    receipt = Receipt("7", "x-1", "c", "borealis", 1.0, 2.0, "/log")
    assert Receipt.from_json(receipt.to_json() | {"newer": 1}) == receipt
