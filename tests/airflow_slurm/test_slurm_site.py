"""What a real site offers, what it refuses, and why a job there waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_slurm.errors import ImpossibleRequest, JobFailedForGood
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.site.probe import probe
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.states import Phase
from airflow_slurm.spec import JobSpec
from airflow_slurm.triggers import SubmitLaterTrigger
from airflow_slurm.truth.arrays import whole_jobs
from airflow_slurm.truth.view import JobView
from airflow_slurm.work.stop import look
from airflow_slurm.work.submit import Work, submit
from local.slurm_cluster import PrivateSlurm

from .conftest import OWNER, QUICK
from .faults.helpers import until
from .tasks import Task

pytestmark = pytest.mark.slurm
JobsNamed = Callable[[str], list[tuple[str, str]]]


async def test_a_live_site_is_read_without_a_gap(client: SlurmClient) -> None:
    started = time.monotonic()
    site = await probe(client)
    assert time.monotonic() - started < 10
    assert site.not_checked == {}
    assert (site.accounting, site.max_array_size, site.licenses) == (True, 1001, {"heavy": 1})
    assert {p.name for p in site.partitions or ()} == {"batch", "other", "scavenge", "spot", "urgent"}
    assert "ml" in {a.account for a in site.associations or ()}


async def unchecked(self: SlurmClient, *_: Any) -> None:
    """Lets every request through, so that the queue has to say no."""


def test_an_impossible_request_fails_at_once_and_nothing_is_sent(
    operator: Any,
    store: FileReceipts,
    key: str,
    jobs_named: JobsNamed,
) -> None:
    task = Task(operator({"command": ["true"], "gpus_per_node": 16}))
    with pytest.raises(
        AirflowFailException, match=r"gpus_per_node: partition batch has no gpu:16 a node \(nearest: gpu:2 a node\)"
    ) as caught:
        task.make().execute(task.context)
    assert isinstance(caught.value, ImpossibleRequest)
    assert jobs_named(job_name_for(key, 1)) == []
    end = store.end_of(key, 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("failed", "impossible")


async def test_gpus_of_a_node_and_a_component_are_one_job(
    client: SlurmClient, store: FileReceipts, key: str, shared: Path, jobs_named: JobsNamed
) -> None:
    body = 'echo "$CUDA_VISIBLE_DEVICES $SLURM_HET_SIZE" > $OUT/first; exec srun --het-group=1 sh -c "hostname > $OUT/second; sleep 1"'
    spec = JobSpec(
        body=body, env={"OUT": str(shared)}, gpus_per_node=2, nodes=1, mem="100M", output="/dev/null",
        components=[{"nodes": 1, "mem": "100M", "ntasks": 1}],
    )  # type: ignore[arg-type]  # fmt: skip
    done = await submit(client, store, Work(key, lambda n: spec, lambda n: job_name_for(key, n)), OWNER, look_up=QUICK)
    assert [row.job_id for row in whole_jobs(await client.queue(done.receipt.job_name))] == [done.receipt.job_id]
    views: list[JobView] = []

    async def ended() -> bool:
        views.append(await look(client, done.receipt, done.since))
        return views[-1].ended

    await until(ended)
    assert (views[-1].phase, views[-1].state) == (Phase.SUCCEEDED, "COMPLETED")
    assert (shared / "first").read_text().split() == ["0,1", "2"]
    assert (shared / "second").exists()
    assert {state for _, state in jobs_named(done.receipt.job_name)} == {"COMPLETED"}


def test_a_reason_that_never_clears_ends_job_and_task_at_once(
    operator: Any,
    store: FileReceipts,
    key: str,
    jobs_named: JobsNamed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SlurmClient, "check_possible", unchecked)
    task = Task(operator({"command": ["true"], "time_limit": "9-00:00:00"}))
    deferred = task.execute()
    event = task.wait(deferred)
    assert (event["status"], event["view"]["reason"]) == ("never_starts", "PartitionTimeLimit")
    assert event["view"]["reason_looks"] == 3
    with pytest.raises(JobFailedForGood, match="PartitionTimeLimit.*asks for more time than the partition allows") as caught:
        task.resume(deferred, event)
    assert caught.value.cause == "never_starts"
    assert {state for _, state in jobs_named(job_name_for(key, 1))} == {"CANCELLED"}
    end = store.end_of(key, 1)
    assert end is not None
    assert end.outcome == "cancelled"


def test_a_shared_job_that_never_starts_is_ended_by_the_last_that_waits(
    operator: Any, store: FileReceipts, key: str, jobs_named: JobsNamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmClient, "check_possible", unchecked)
    make = operator({"command": ["true"], "time_limit": "9-00:00:00"})
    tasks = [Task(make), Task(make, "r2")]
    deferred = [task.execute() for task in tasks]
    view = JobView(deferred[0].kwargs["request_state"]["job_id"], state="PENDING", reason="PartitionTimeLimit", reason_looks=3)
    states = []
    for task, waiting in zip(tasks, deferred, strict=True):
        with pytest.raises(JobFailedForGood):
            task.resume(waiting, {"status": "never_starts", "view": view.to_json()})
        states.append(jobs_named(job_name_for(key, 1))[0][1])
    assert states == ["PENDING", "CANCELLED"]
    assert store.get(key) is None


def test_the_policy_of_the_connection_reaches_the_job(operator: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from .conftest import CONN_ID, connection_uri

    extra = {"preemptible_partition": "other", "preemptible_requeue": True}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection_uri(slurm, **extra))
    deferred = Task(operator({"command": ["sleep", "60"], "preemptible": True})).execute()
    shown = slurm.run("scontrol", "--oneliner", "show", "job", deferred.kwargs["request_state"]["job_id"]).stdout
    assert " Partition=other " in shown
    assert " Requeue=1 " in shown


@pytest.fixture
def reserved(slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A reservation of the second node for the calling user."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))  # a record that was made before it may still be fresh
    within = ("Nodes=n2", "StartTime=now", "Duration=10", "Flags=IGNORE_JOBS", f"Users={slurm.user}")
    made = slurm.run("scontrol", "create", "reservation", "ReservationName=ours", *within, check=False)
    assert made.returncode == 0, made.stderr
    yield "ours"
    slurm.run("scancel", "--user", slurm.user, check=False)
    for _ in range(100):
        # One that a job still uses is not deleted.
        if slurm.run("scontrol", "delete", "ReservationName=ours", check=False).returncode == 0:
            return
        time.sleep(0.2)
    raise AssertionError("the reservation could not be deleted")


def test_a_job_runs_within_its_reservation(operator: Any, slurm: PrivateSlurm, reserved: str) -> None:
    done = Task(operator({"command": ["true"], "reservation": reserved, "mem": "50M"})).run()
    shown = slurm.run("scontrol", "--oneliner", "show", "job", done["job_id"]).stdout
    assert f" Reservation={reserved} " in shown
    assert " NodeList=n2 " in shown
    assert done["state"] == "COMPLETED"


def test_a_reservation_that_is_not_there_is_refused_and_the_nearest_named(
    operator: Any, key: str, reserved: str, jobs_named: JobsNamed
) -> None:
    with pytest.raises(ImpossibleRequest, match="reservation.*our.*nearest: ours"):
        Task(operator({"command": ["true"], "reservation": "our"})).execute()
    assert jobs_named(job_name_for(key, 1)) == []


@pytest.fixture
def one_at_a_time(slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A QOS in which one job a user may be queued."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    slurm.run("sacctmgr", "-i", "add", "qos", "single", "set", "MaxSubmitJobsPerUser=1")
    slurm.run("sacctmgr", "-i", "modify", "account", "ml", "set", "qos+=single")
    for _ in range(100):
        # slurmdbd tells the controller a little later.
        if slurm.run("sbatch", "--test-only", "--qos=single", "--wrap=true", check=False).returncode == 0:
            break
        time.sleep(0.2)
    yield "single"
    slurm.run("scancel", "--user", slurm.user, check=False)
    slurm.run("sacctmgr", "-i", "modify", "account", "ml", "set", "qos-=single")
    slurm.run("sacctmgr", "-i", "delete", "qos", "single", check=False)


def test_a_queue_limit_is_waited_for_without_a_retry(
    operator: Any, key: str, connection: str, one_at_a_time: str, jobs_named: JobsNamed
) -> None:
    first = Task(operator({"command": ["sleep", "60"], "qos": one_at_a_time})).execute()
    task = Task(operator({"command": ["true"], "qos": one_at_a_time}, key=f"{key}/second"))
    later = task.execute()
    assert isinstance(later.trigger, SubmitLaterTrigger)
    assert later.kwargs["progress"]["nothing_sent"] is True
    assert jobs_named(job_name_for(f"{key}/second", 1)) == []
    SlurmHook(connection).run(lambda client: client.cancel(first.kwargs["request_state"]["job_id"]))
    for _ in range(30):
        with pytest.raises(TaskDeferred) as caught:
            task.resume(later, {"status": "now"})
        later = caught.value
        if not isinstance(later.trigger, SubmitLaterTrigger):
            break
        time.sleep(0.5)
    state = later.kwargs["request_state"]
    assert state["n"] == 1
    assert [job for job, _ in jobs_named(state["job_name"])] == [state["job_id"]]
    assert task.resume(later, task.wait(later))["state"] == "COMPLETED"


def test_views_of_older_versions_are_read() -> None:
    old = JobView("1", state="PENDING").to_json()
    del old["reason_looks"], old["reason_since"]
    assert JobView.from_json(old) == JobView("1", state="PENDING")
