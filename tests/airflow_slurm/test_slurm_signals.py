"""Whom a warning reaches, before the time limit and when a job is pushed out, for each way to give a program; and what becomes of the job."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_slurm.errors import InvalidSpec, JobFailed
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.parse import QueueRow
from airflow_slurm.spec import JobSpec, check_sent
from local.slurm_cluster import PrivateSlurm

from .faults.helpers import appears, until
from .looking import submit_held
from .tasks import Task

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]
#: Says that it is up and what it is told, and ends. Its second run is short.
PROGRAM = """
trap 'echo USR1 >> "$1"; exit 75' USR1
trap 'echo TERM >> "$1"; exit 76' TERM
echo up >> "$1"
[ "$(grep -c up "$1")" = 1 ] || exit 0
echo $$ > "$1.pid"
end=$(($(date +%s) + 100))
while [ "$(date +%s)" -lt $end ]; do sleep 0.2; done
"""
#: Each reaches the program in another way; all ask for one core.
WAYS = ("command", "srun", "exec", "trap")
LIMITED = {"time_limit": 2, "signal_lead_s": 70}


@pytest.fixture
def program(shared: Path) -> Path:
    path = shared / "program.sh"
    path.write_text(PROGRAM)
    return path


def spec(way: str, program: Path) -> dict[str, Any]:
    """A job that runs the program, which writes into a file with the name of the way."""
    file = program.with_name(way)
    return {
        "command": {"command": ["sh", str(program), str(file)]},
        "srun": {"command": ["srun", "--verbose", "sh", str(program), str(file)], "ntasks": 1},
        "exec": {"body": f"exec sh {program} {file}"},
        "trap": {"body": f"sh {program} {file} & program=$!; trap 'kill -USR1 $program; wait $program; exit $?' USR1; wait"},
    }[way] | {"mem": "20M", "output": f"{file}.log"}


async def knows_its_step(log: Path) -> bool:
    """Whether srun has heard that its step runs: before that it passes no signal on."""
    return "tasks started" in await asyncio.to_thread(log.read_text)


def told(program: Path, way: str) -> list[str]:
    return program.with_name(way).read_text().split()


class Jobs:
    """Jobs by what they are for, submitted and looked at one by one."""

    def __init__(self, client: SlurmClient, key: str) -> None:
        self._client, self._key = client, key

    def name(self, way: str) -> str:
        return job_name_for(f"{self._key}/{way}", 1)

    async def start(self, way: str, asked: dict[str, Any]) -> None:
        receipt = await submit_held(self._client, JobSpec.from_mapping(asked), self.name(way))
        await self._client.release(receipt.job_id)

    async def end(self, way: str) -> QueueRow:
        async def ended() -> bool:
            (row,) = await self._client.queue(self.name(way))
            return row.state.info.phase.ended

        await until(ended, 90)
        (row,) = await self._client.queue(self.name(way))
        return row


@pytest.fixture
def jobs(client: SlurmClient, key: str) -> Jobs:
    return Jobs(client, key)


async def test_before_the_time_limit_every_program_is_told(jobs: Jobs, program: Path) -> None:
    """Slurm looks every half minute whether the warning's time, and half a minute, is all that is left: twenty seconds after the start or later."""
    for way in WAYS:
        await jobs.start(way, spec(way, program) | LIMITED)
    for way in WAYS:
        row = await jobs.end(way)
        assert (row.state.name, row.exit_code, told(program, way)) == ("FAILED", 75, ["up", "USR1"]), way


@pytest.mark.slow
async def test_a_body_that_lets_its_program_wait_in_the_foreground_is_ended_by_the_warning(jobs: Jobs, program: Path) -> None:
    """It is the batch shell that gets it, and no trap is there: hence such a body is refused, unless it says ``trap``."""
    file = program.with_name("foreground")
    asked = {"body": f"sh {program} {file}", "mem": "20M", "output": "/dev/null", **LIMITED}
    with pytest.raises(InvalidSpec, match="trap"):
        check_sent(JobSpec.from_mapping(asked))
    await jobs.start("foreground", asked | {"body": f"trap - USR1\nsh {program} {file}"})
    row = await jobs.end("foreground")
    os.kill(int(file.with_suffix(".pid").read_text()), signal.SIGKILL)  # without cgroups Slurm does not find what the shell left behind
    assert (row.state.name, row.signal, told(program, "foreground")) == ("FAILED", 10, ["up"])


@pytest.fixture
def grace(slurm: PrivateSlurm) -> Iterator[PrivateSlurm]:
    """Jobs that Slurm puts back get some seconds to save before that."""
    if not slurm.settings.preemption:
        pytest.skip("this cluster was started without preemption")
    slurm.run("scontrol", "update", "PartitionName=scavenge", "GraceTime=3")
    yield slurm
    slurm.run("scontrol", "update", "PartitionName=scavenge", "GraceTime=0")


async def test_a_job_that_is_pushed_out_is_told_and_what_ends_by_itself_is_not_put_back(
    grace: PrivateSlurm, jobs: Jobs, program: Path
) -> None:
    """One that asked for no warning gets TERM at the end of the grace, and is put back."""
    await jobs.start("unwarned", spec("command", program) | {"command": ["sh", str(program), str(program.with_name("unwarned"))],
                                                              "partition": "scavenge", "requeue": True})  # fmt: skip
    for way in WAYS[:3]:
        await jobs.start(way, spec(way, program) | {"partition": "scavenge", "requeue": True, "time_limit": 10, "signal_lead_s": 60})
    for way in ("unwarned", *WAYS[:3]):
        await appears(program.with_name(way), 60)
    await until(lambda: knows_its_step(program.with_name("srun.log")), 60)
    grace.run("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--mem=20M", "--output=/dev/null", "--wrap=sleep 1")
    for way in WAYS[:3]:
        row = await jobs.end(way)
        assert (row.state.name, row.exit_code, row.restarts, told(program, way)) == ("FAILED", 75, 0, ["up", "USR1"]), way
    row = await jobs.end("unwarned")
    assert (row.state.name, row.restarts, told(program, "unwarned")) == ("COMPLETED", 1, ["up", "TERM", "up"])


def test_a_job_that_reaches_its_limit_is_a_failure_that_another_try_may_mend(
    connection: str, slurm: PrivateSlurm, store: FileReceipts, key: str, shared: Path
) -> None:
    asked = {"command": ["sh", "-c", "touch $0; sleep 120", f"{shared}/up"], "output": "/dev/null", "mem": "20M", "time_limit": 2}
    values = {"task_id": "t", "slurm_conn_id": connection, "key": key, "receipts_config": {"root": str(store.root)}}
    task = Task(lambda: SlurmJobOperator(spec=asked, **values))
    deferred = task.execute()
    job_id = deferred.kwargs["request_state"]["job_id"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(task.wait, deferred, 100)
        asyncio.run(appears(shared / "up"))
        slurm.run("scontrol", "update", f"JobId={job_id}", "EndTime=now+2")
        event = waiting.result()
    assert (event["view"]["state"], event["view"]["phase"], event["view"]["cause"]) == ("TIMEOUT", "failed", "time_limit")
    with pytest.raises(JobFailed, match="TIMEOUT.*time_limit") as caught:
        task.resume(deferred, event)
    assert (caught.value.cause, caught.value.retryable) == ("time_limit", True)
    assert not isinstance(caught.value, AirflowFailException)
    end = store.end_of(key, 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("failed", "time_limit")
    assert task.execute().kwargs["request_state"]["n"] == 2
