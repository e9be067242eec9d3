"""The process that watches: one of three ways to wait for many jobs, measured from outside by :mod:`.watching`.

It reads a JSON file, writes ``{"ready": true}``, then ``{"job": …, "at": …}`` for each job whose waiting task would be
resumed, and on the end of its standard input what it used.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TextIO

from benchmarks.slurm.site import CONN_ID, Usage

#: More than five channels at once fail on an sshd as it comes (ten sessions a connection, freed late).
CHANNELS = 5

Job = dict[str, Any]
Tell = Callable[[str], None]


async def ours(jobs: list[Job], spec: dict[str, Any], tell: Tell) -> list[Coroutine[Any, Any, None]]:
    """The provider's trigger, each fed by the one loop that Airflow's own manager of shared streams runs."""
    from airflow.triggers.shared_stream import SharedStreamManager

    from airflow_slurm.triggers import SlurmJobTrigger, Wait, as_json

    manager = SharedStreamManager()

    async def wait(number: int, job: Job) -> None:
        owner = {"dag_id": "bench", "run_id": "r", "task_id": "t", "map_index": number}
        value = Wait(
            key=job["name"], n=1, job_id=job["id"], job_name=job["name"], since=spec["since"], owner=owner,
            receipts="airflow_slurm.file_receipts.FileReceipts", receipts_config={"root": spec["receipts"]}, log_path=job.get("log"),
        )  # fmt: skip
        # What a claim leaves in the store; ten thousand of them, each safely on the disk, are no part of waiting.
        (Path(spec["receipts"]) / hashlib.sha256(job["name"].encode()).hexdigest() / "1").mkdir(parents=True)
        trigger = SlurmJobTrigger(CONN_ID, as_json(value))
        key = trigger.shared_stream_key()
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            async with aclosing(trigger.filter_shared_stream(stream)) as events:
                async for _ in events:
                    tell(job["id"])
                    return
        finally:
            await manager.unsubscribe(number, key)

    return [wait(number, job) for number, job in enumerate(jobs)]


async def peers(jobs: list[Job], spec: dict[str, Any], tell: Tell) -> list[Coroutine[Any, Any, None]]:
    """A trigger a job that asks for its own job alone; to be kind, all share one connection, and ask without a log."""
    from airflow_slurm.remote.ssh import StrictSSH

    connection = await StrictSSH(ssh_conn_id=CONN_ID).get_conn()
    channels = asyncio.Semaphore(CHANNELS)
    prefix = f"PATH={spec['bin']}:$PATH SLURM_CONF={spec['slurm_conf']} "

    async def ask(command: str) -> str:
        async with channels:
            with suppress(OSError):
                return str((await connection.run(prefix + command, check=False)).stdout)
            return ""

    async def wait(job: Job) -> None:
        await asyncio.sleep(random.uniform(0, spec["peer_interval_s"]))  # noqa: S311
        while True:
            state = (await ask(f"squeue -h -t all -j {job['id']} -o %T")).strip()
            if not state:
                state = (await ask(f"sacct -X -n -P -j {job['id']} -o State")).strip()
            if state.startswith(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")):
                tell(job["id"])
                return
            await asyncio.sleep(spec["peer_interval_s"])

    return [wait(job) for job in jobs]


async def ssh(jobs: list[Job], spec: dict[str, Any], tell: Tell) -> list[Coroutine[Any, Any, None]]:
    """The trigger of Airflow's own SSHRemoteJobOperator, which waits for a file with the job's exit code."""
    from airflow.providers.ssh.triggers.ssh_remote_job import SSHRemoteJobTrigger

    counter = os.open(spec["counter"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    class Counted(SSHRemoteJobTrigger):
        async def _run_command(self, conn: Any, command: str) -> Any:
            os.write(counter, b"ssh\n")
            return await super()._run_command(conn, command)

    async def wait(number: int, job: Job) -> None:
        await asyncio.sleep(number * 0.1)  # sshd refuses many who knock at once
        folder = f"{spec['files']}/{job['id']}"
        trigger = Counted(
            "bench_ssh", None, job["id"], folder, f"{folder}/log", f"{folder}/exit_code", "posix", int(spec["peer_interval_s"])
        )
        async with aclosing(events(trigger)) as stream:
            async for event in stream:
                if event.payload["done"]:
                    tell(job["id"])
                    return

    def events(trigger: SSHRemoteJobTrigger) -> Any:
        return trigger.run()

    return [wait(number, job) for number, job in enumerate(jobs)]


async def watch(kind: str, spec: dict[str, Any], answers: TextIO) -> None:
    """Wait until standard input ends."""

    def tell(job_id: str) -> None:
        print(json.dumps({"job": job_id, "at": time.time()}), file=answers, flush=True)

    waiting = await {"ours": ours, "peers": peers, "ssh": ssh}[kind](spec["jobs"], spec, tell)
    bare = Usage.of_this_process()  # with everything imported, before anything waits
    tasks = [asyncio.create_task(one) for one in waiting]
    await asyncio.sleep(spec["warm_up_s"])
    before = Usage.of_this_process()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    after = Usage.of_this_process()
    failed = [repr(task.exception()) for task in tasks if task.done() and not task.cancelled() and task.exception()]
    used = {"cpu_s": after.cpu_s - before.cpu_s, "wall_s": after.at - before.at, "peak_mib": after.peak_mib, "bare_mib": bare.peak_mib}
    print(json.dumps(used | {"failed": len(failed), "first_failure": failed[:1]}), file=answers, flush=True)
    os._exit(0)  # thousands of tasks need not be wound up


def _answers() -> TextIO:
    """Standard output, for answers alone: what else is printed there, as the triggers' log, goes where errors go.

    A log line between them is no answer, and a pipe full of them would stop the loop that is measured.
    """
    kept = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return kept


if __name__ == "__main__":
    logging.disable(logging.INFO)
    asyncio.run(watch(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), _answers()))
