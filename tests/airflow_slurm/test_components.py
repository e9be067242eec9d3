"""Heterogeneous jobs: a success of all components is one, anything less is not; judged row by row, and on a real Slurm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_slurm.errors import JobFailed
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.sensors import SlurmJobSensor
from airflow_slurm.slurm.parse import QueueRow, accounting_rows, queue_rows
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.components import as_wholes
from airflow_slurm.work.stop import end_job
from local.slurm_cluster import PrivateSlurm

from .conftest import HASTY
from .faults.helpers import appears
from .tasks import Task


def queued(*states: str, end: int = 50) -> list[QueueRow]:
    """Components of one job, by their states; they ran from the 20th second on."""
    text = "".join(f"{36 + i}|36+{i}|{state}|0|0|10|20|{end}|1|n{i + 1}|None|a\n" for i, state in enumerate(states))
    return queue_rows(text)


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (("COMPLETED", "COMPLETED"), "COMPLETED"),
        (("COMPLETED", "CANCELLED"), "CANCELLED"),
        (("COMPLETED", "COMPLETED", "NODE_FAIL"), "NODE_FAIL"),
        (("COMPLETED", "TIMEOUT", "COMPLETED"), "TIMEOUT"),
        (("COMPLETED", "RUNNING"), "COMPLETING"),
        (("COMPLETED", "WHATEVER"), "COMPLETING"),
        (("RUNNING", "CANCELLED"), "RUNNING"),
        (("FAILED", "COMPLETED"), "FAILED"),
        (("PENDING", "PENDING"), "PENDING"),
    ],
)
def test_the_first_speaks_for_all(states: tuple[str, ...], whole: str) -> None:
    (row,) = as_wholes(queued(*states))
    assert (row.job_id, row.state.name) == ("36", whole)
    assert [row.job_id for row in as_wholes(queued(*states), keep=True)] == [str(36 + i) for i in range(len(states))]


def test_another_jobs_component_and_an_earlier_run_of_ones_own_say_nothing() -> None:
    other = queue_rows("99|99+1|CANCELLED|0|0|10|20|50|1|n1|None|a\n")
    assert [row.state.name for row in as_wholes([*queued("COMPLETED", "COMPLETED"), *other])] == ["COMPLETED"]
    twice = "36|36+0|PREEMPTED|0:0|10|20|30|10|1|n1|a\n37|37|COMPLETED|0:0|10|20|30|10|1|n2|b\n37|36+1|PREEMPTED|0:0|10|20|30|10|1|n2|a\n"
    again = "36|36+0|COMPLETED|0:0|31|40|50|10|1|n1|a\n"
    rows = as_wholes(accounting_rows(twice + again))
    assert [(row.array_id, row.state.name) for row in rows] == [("36+0", "PREEMPTED"), ("37", "COMPLETED"), ("36+0", "COMPLETED")]
    late = "37|36+1|CANCELLED by 0|0:0|31|40|45|5|1|n2|a\n"
    rows = as_wholes(accounting_rows(twice + again + late))
    assert (rows[-1].state.name, rows[-1].state.cancelled_by_uid, rows[-1].state.info.phase) == ("CANCELLED", 0, Phase.FAILED)


@pytest.mark.parametrize("keep", [True, False])
def test_a_first_component_that_completed_alone_is_no_success_of_all(keep: bool) -> None:
    alone = queued("COMPLETED")
    assert as_wholes(alone, keep=keep) == []
    other = queue_rows(
        "40|40+0|RUNNING|0|0|10|20|50|1|n1|None|a\n41|40+1|RUNNING|0|0|10|20|50|1|n1|None|a\n42|42|COMPLETED|0|0|1|2|5|1|n1|None|a\n"
    )
    assert [row.array_id for row in as_wholes([*alone, *other])] == ["40+0", "42"]
    assert [row.state.name for row in as_wholes(queued("FAILED"), keep=keep)] == ["FAILED"]
    recorded = accounting_rows("36|36+0|COMPLETED|0:0|31|40|50|10|1|n1|a\n")
    assert as_wholes(recorded) == recorded


# -- on a real Slurm

PARTS = {"nodes": 1, "ntasks": 1, "mem": "50M", "components": [{"nodes": 1, "ntasks": 1, "mem": "50M", "time_limit": 5}]}
#: The program minds nothing that happens to the second component.
BODY = "touch {0}/up; srun --het-group=1 sh -c 'touch {0}/second; sleep {1}' || true; exit 0"


@pytest.fixture
def make(connection: str, store: FileReceipts, key: str, shared: Path) -> Callable[..., Task]:
    def task(body: str, **kwargs: Any) -> Task:
        spec = {"body": body.format(shared, 30), "output": f"{shared}/%j.log", **PARTS}
        values = {"task_id": "t", "slurm_conn_id": connection, "key": key, "receipts_config": {"root": str(store.root)}}
        return Task(lambda: SlurmJobOperator(spec=spec, stop_grace_s=3.0, **values, **kwargs))

    return task


def lost(task: Task, shared: Path, act: Callable[[str], Any]) -> dict[str, Any]:
    """The event of a job whose second component something happens to while it runs."""
    deferred = task.execute()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(task.wait, deferred, 100)
        asyncio.run(appears(shared / "second"))
        act(deferred.kwargs["request_state"]["job_id"])
        event = waiting.result()
    return event | {"deferred": deferred}


@pytest.mark.slurm
def test_a_second_component_that_is_cancelled_is_no_success(
    slurm: PrivateSlurm, make: Callable[..., Task], store: FileReceipts, key: str, shared: Path
) -> None:
    task = make(BODY)
    event = lost(task, shared, lambda job_id: slurm.run("scancel", f"{job_id}+1"))
    job_id = event["view"]["job_id"]
    truth = slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%i %T").stdout.split()
    assert dict(zip(truth[::2], truth[1::2], strict=True)) == {f"{job_id}+0": "COMPLETED", f"{job_id}+1": "CANCELLED"}
    assert (event["status"], event["view"]["state"], event["view"]["reason"]) == ("ended", "CANCELLED", f"component {job_id}+1")
    with pytest.raises(JobFailed, match=f"CANCELLED .component {job_id}.1") as caught:
        task.resume(event["deferred"], event)
    assert isinstance(caught.value, AirflowFailException)
    end = store.end_of(key, 1)
    assert end is not None
    assert end.outcome == "failed"


@pytest.mark.slurm
@pytest.mark.slow
def test_a_second_component_that_ran_out_of_its_time_is_no_success_and_accounting_says_so_too(
    slurm: PrivateSlurm, make: Callable[..., Task], shared: Path, connection: str
) -> None:
    task = make(BODY)
    event = lost(task, shared, lambda job_id: slurm.run("scontrol", "update", f"JobId={int(job_id) + 1}", "EndTime=now+1"))
    assert (event["status"], event["view"]["state"], event["view"]["cause"]) == ("ended", "TIMEOUT", "time_limit")
    with pytest.raises(JobFailed, match="TIMEOUT"):
        task.resume(event["deferred"], event)
    state = event["deferred"].kwargs["request_state"]

    async def recorded(client: Any) -> Any:
        for _ in range(100):
            rows = await client.accounting(state["since"] - 60, ids=[state["job_id"]])
            if rows and rows[-1].state.info.phase.ended:
                return rows
            await asyncio.sleep(0.2)
        raise AssertionError("accounting has no end of it")

    rows = SlurmHook(connection).run(recorded)
    assert [(row.job_id, row.state.name) for row in rows] == [(state["job_id"], "TIMEOUT")]
    sensor = SlurmJobSensor(task_id="s", slurm_conn_id=connection, job_id=state["job_id"], deferrable=False, timeout=60)
    with pytest.raises(JobFailed, match="TIMEOUT"):
        sensor.execute({"ti": None})  # type: ignore[arg-type]


@pytest.mark.slurm
def test_ending_the_job_ends_all_components(
    slurm: PrivateSlurm, make: Callable[..., Task], store: FileReceipts, key: str, shared: Path
) -> None:
    deferred = make(BODY).execute()
    asyncio.run(appears(shared / "second"))
    live = store.get(key)
    assert live is not None
    receipt = live.receipt
    assert receipt is not None
    view = SlurmHook("slurm_test").run(lambda client: end_job(client, receipt, live.since, HASTY))
    assert view.ended
    assert not view.succeeded
    out = slurm.run(
        "squeue", "--noheader", f"--jobs={deferred.kwargs['request_state']['job_id']}", "--states=running,pending", "--format=%i"
    )
    assert out.stdout == ""
