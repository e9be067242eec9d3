"""The sensor on a real Slurm, and which of several jobs it takes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from airflow_slurm.errors import InvalidSpec, JobFailedForGood, UnknownOutcome
from airflow_slurm.sensing import Found, SlurmSensorTrigger, choose
from airflow_slurm.sensors import SlurmJobSensor
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase
from airflow_slurm.triggers import SlurmJobTrigger, first_event
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.poller import Hub, Snapshot
from local.slurm_cluster import PrivateSlurm

from .test_arrays import queued, recorded


def test_of_several_jobs_of_a_name_the_newest_that_has_not_ended_is_waited_for() -> None:
    rows: list[QueueRow | AccountingRow] = [
        queued(JobID="7", JobArrayID="7", State="COMPLETED", SubmitTime="70"),
        queued(JobID="8", JobArrayID="8", State="RUNNING", SubmitTime="80"),
        queued(JobID="9", JobArrayID="9", State="FAILED", SubmitTime="90"),
        queued(JobID="10", JobArrayID="10", State="RUNNING", Name="another"),
    ]
    assert choose(rows, None, "a") == Found("8", "a", None, 80.0)
    assert choose([rows[0], rows[2]], None, "a") == Found("9", "a", None, 90.0)
    assert choose(rows, "7", None) == Found("7", "a", None, 70.0)
    assert choose(rows, "11", None) is None


def test_an_array_is_waited_for_whole_and_its_tasks_one_by_one_under_both_ids() -> None:
    rows: list[QueueRow | AccountingRow] = [
        recorded("5508", "5501_3", "COMPLETED"),
        recorded("5509", "5501_4", "RUNNING"),
        recorded("5501", "5501_[7-9,12%2]", "PENDING"),
    ]
    assert choose(rows, "5501", None) == Found("5501", "a", "3-4,7-9,12", None)
    for job_id in ("5501_4", "5509", "5501_12"):
        assert choose(rows, job_id, None) == Found(job_id, "a", None, None)
    assert choose(rows, "5501_5", None) is None


def test_a_trigger_is_rebuilt_from_what_it_serialises_and_shares_the_operators_loop() -> None:
    trigger = SlurmSensorTrigger("c1", "7", None, since=1.0, deadline=2.0)
    path, kwargs = trigger.serialize()
    assert path == "airflow_slurm.sensing.SlurmSensorTrigger"
    assert SlurmSensorTrigger(**kwargs).serialize() == (path, kwargs)
    assert trigger.shared_stream_key() == SlurmJobTrigger("c1", {}).shared_stream_key()


@pytest.mark.parametrize("asked", [{}, {"job_id": "7", "job_name": "a"}, {"job_id": "7; rm -rf /"}, {"job_name": "$(touch pwned)"}])
def test_what_cannot_be_looked_for_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec):
        SlurmJobSensor(task_id="s", **asked).execute({})


def resumed(event: dict[str, Any], **values: Any) -> Any:
    return SlurmJobSensor(task_id="s", job_id="7", timeout=60, **values).execute_complete({}, event)


def test_how_the_wait_ends() -> None:
    failed = {"status": "ended", "view": JobView("7", phase=Phase.FAILED, state="FAILED", cause="failed", exit_code=3).to_json()}
    with pytest.raises(JobFailedForGood, match="exit 3"):
        resumed(failed)
    with pytest.raises(AirflowSkipException):
        resumed(failed, soft_fail=True)
    assert resumed(failed, must_succeed=False)["state"] == "FAILED"
    with pytest.raises(AirflowSensorTimeout, match="within 60 s; last seen: never"):
        resumed({"status": "timeout", "seen": ""})
    with pytest.raises(UnknownOutcome):
        resumed({"status": "unknown", "view": JobView("7").to_json()})


class Watching:
    """At the process edge: a cluster that may be looked at and nothing else."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a sensor asked the cluster to {name}")


@pytest.mark.parametrize("array", [None, "0-1"])
async def test_a_job_that_somebody_else_holds_stays_held_and_its_namesakes_stay(array: str | None) -> None:
    wait = SlurmSensorTrigger("c1", "7", None, since=1.0, deadline=2.0)._wait_for(Found("7", "a", array))
    hub = Hub(client=Watching())  # type: ignore[arg-type]
    follower = follower_of(wait, hub, structlog.get_logger())
    held = queued(JobID="7", JobArrayID="7_[0-1]" if array else "7", Reason="JobHeldUser", RestartCnt="0")
    assert held.held_by_us
    rows = {"7": held, "7_0": held, "7_1": held}
    assert await follower.look(Snapshot(2.0, frozenset({"7"}), rows, doubles={"a": ["8"]})) is None


def submitted(slurm: PrivateSlurm, *arguments: str, script: str = "sleep 2") -> str:
    """A job that somebody submits by hand."""
    return slurm.run("sbatch", "--parsable", "--mem=50M", "--output=/dev/null", *arguments, f"--wrap={script}").stdout.strip()


@pytest.mark.slurm
def test_a_job_that_was_submitted_by_hand_is_waited_for_by_its_id(slurm: PrivateSlurm, connection: str) -> None:
    job_id = submitted(slurm, "--job-name=by hand | of somebody")
    sensor = SlurmJobSensor(task_id="s", slurm_conn_id=connection, job_id=job_id, timeout=60)
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute({})
    assert isinstance(caught.value.trigger, SlurmSensorTrigger)
    event = asyncio.run(first_event(caught.value.trigger))
    assert sensor.execute_complete({}, event)["state"] == "COMPLETED"
    # And one that has ended already; here in the worker, without deferring.
    again = SlurmJobSensor(task_id="s", slurm_conn_id=connection, job_id=job_id, timeout=60, deferrable=False)
    assert again.execute({})["job_id"] == job_id


@pytest.mark.slurm
def test_an_array_that_was_submitted_by_hand_is_waited_for_by_its_name(slurm: PrivateSlurm, connection: str) -> None:
    name = f"by-hand-{time.time_ns()}"
    job_id = submitted(slurm, f"--job-name={name}", "--array=0-3%2", script='[ "$SLURM_ARRAY_TASK_ID" != 2 ] || exit 5')
    sensor = SlurmJobSensor(task_id="s", slurm_conn_id=connection, job_name=name, timeout=90, deferrable=False, must_succeed=False)
    found = sensor.execute({})
    assert (found["job_id"], found["tasks"], found["exit_code"]) == (job_id, {"COMPLETED": "0-1,3", "FAILED": "2"}, 5)


@pytest.mark.slurm
def test_a_job_that_never_comes_is_waited_for_until_the_timeout(slurm: PrivateSlurm, connection: str) -> None:
    sensor = SlurmJobSensor(task_id="s", slurm_conn_id=connection, job_name="never-there", timeout=3, deferrable=False)
    with pytest.raises(AirflowSensorTimeout, match="never-there"):
        sensor.execute({})
