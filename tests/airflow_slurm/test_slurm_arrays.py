"""Arrays on a real Slurm, from submission to the end of every shard."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import InvalidSpec, JobFailed, JobFailedForGood
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.arrays import by_id
from airflow_slurm.work.stop import end_job, give_up, look
from airflow_slurm.work.submit import Work, submit
from local.slurm_cluster import PrivateSlurm

from .conftest import HASTY, OWNER, QUICK
from .faults.helpers import DiesAt, Killed, appears, until
from .tasks import Task

pytestmark = pytest.mark.slurm
JobsNamed = Callable[[str], list[tuple[str, str]]]
Make = Callable[..., Callable[[], SlurmArrayOperator]]


@pytest.fixture
def array(connection: str, tmp_path: Path, key: str, shared: Path) -> Make:
    """Makes makers of array operators."""

    def maker(body: str, **kwargs: Any) -> Callable[[], SlurmArrayOperator]:
        spec = {"body": body, "output": f"{shared}/%A_%a.log", "mem": "50M"}
        values = {"task_id": "t", "slurm_conn_id": connection, "key": key, "receipts_config": {"root": str(tmp_path / "receipts")}}
        return lambda: SlurmArrayOperator(**({"spec": spec, "stop_grace_s": 3.0, "visibility_deadline_s": 0.0} | values | kwargs))

    return maker


def test_of_six_shards_the_one_that_failed_runs_again_alone(
    array: Make, store: FileReceipts, key: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = f"""
        echo "$(date +%s%N) 1" >> {shared}/times; trap 'echo "$(date +%s%N) -1" >> {shared}/times' EXIT
        sleep 1
        echo run >> {shared}/runs-$SLURM_ARRAY_TASK_ID
        echo "shard $SLURM_ARRAY_TASK_ID speaks"
        if [ "$SLURM_ARRAY_TASK_ID" = 3 ] && [ ! -e {shared}/second ]; then touch {shared}/second; exit 4; fi
        touch {shared}/part-$SLURM_ARRAY_TASK_ID"""
    task = Task(array(body, shards=6, max_parallel=3, expected_output=f"{shared}/part-%a"))
    first = task.execute()
    assert first.kwargs["request_state"]["array"] == "0-5%3"
    with pytest.raises(TaskDeferred) as caught:
        task.resume(first, task.wait(first))
    second = caught.value.kwargs["request_state"]
    assert (second["array"], second["n"], second["resubmits"]) == ("3%3", 2, 1)
    result = task.resume(caught.value, task.wait(caught.value))
    assert [(end["index"], end["n"], end["outcome"], end["state"]) for end in result] == [
        (index, 2 if index == 3 else 1, "succeeded", "COMPLETED") for index in range(6)
    ]
    assert [len((shared / f"runs-{index}").read_text().split()) for index in range(6)] == [1, 1, 1, 2, 1, 1]
    ends = [store.end_of(key, n) for n in (1, 2)]
    assert [(end.outcome, sorted(end.shards)) for end in ends if end] == [("interrupted", list("012345")), ("succeeded", ["3"])]
    said = capsys.readouterr().out
    assert f"[task {first.kwargs['request_state']['job_id']}_3] shard 3 speaks" in said
    assert "3 FAILED" not in result
    # Two nodes of two cores: without the throttle a fourth would start.
    steps = sorted((int(at), int(step)) for at, step in (line.split() for line in (shared / "times").read_text().splitlines()))
    assert [step for _, step in steps].count(1) == [step for _, step in steps].count(-1) == 7
    assert max(itertools.accumulate(step for _, step in steps)) <= 3


def test_after_its_retries_the_task_fails_and_the_next_try_runs_only_what_failed(array: Make, store: FileReceipts, shared: Path) -> None:
    body = f"echo run >> {shared}/runs-$SLURM_ARRAY_TASK_ID; [ $SLURM_ARRAY_TASK_ID = 0 ] || [ -e {shared}/mended ]"
    task = Task(array(body, shards=2, shard_retries=0))
    with pytest.raises(JobFailed, match=r"1 of 2 shards failed \(1\)"):
        task.run()
    (shared / "mended").touch()
    assert [(end["index"], end["n"]) for end in task.run()] == [(0, 1), (1, 2)]
    assert (shared / "runs-0").read_text() == "run\n"
    # Done, and asked for again: a new round, and everything runs.
    task.clear()
    assert [(end["index"], end["n"]) for end in task.run()] == [(0, 3), (1, 3)]


def test_a_shard_without_its_output_is_no_success(array: Make, shared: Path) -> None:
    body = f"[ $SLURM_ARRAY_TASK_ID = 0 ] || touch {shared}/part-$SLURM_ARRAY_TASK_ID"
    task = Task(array(body, shards=2, shard_retries=0, expected_output=f"{shared}/part-%a"))
    with pytest.raises(JobFailed, match=r"\(0\).*part-0 is not there") as caught:
        task.run()
    assert caught.value.cause == "output_missing"


def test_a_shard_that_was_cancelled_fails_the_task_for_good(
    array: Make, connection: str, store: FileReceipts, key: str, shared: Path
) -> None:
    task = Task(array(f"[ $SLURM_ARRAY_TASK_ID = 0 ] || {{ touch {shared}/runs; sleep 600; }}", shards=2))
    deferred = task.execute()
    job_id = deferred.kwargs["request_state"]["job_id"]
    asyncio.run(appears(shared / "runs"))
    SlurmHook(connection).run(lambda client: client.cancel(f"{job_id}_1"))
    with pytest.raises(JobFailedForGood, match=r"\(1\).*CANCELLED"):
        task.resume(deferred, task.wait(deferred))
    end = store.end_of(key, 1)
    assert end is not None
    assert [end.shards[index]["outcome"] for index in ("0", "1")] == ["succeeded", "failed"]


def test_a_second_run_that_comes_late_takes_the_results_of_the_first(array: Make, shared: Path) -> None:
    body = f"echo run >> {shared}/runs-$SLURM_ARRAY_TASK_ID; [ $SLURM_ARRAY_TASK_ID = 0 ] || [ -e {shared}/second ] || {{ touch {shared}/second; exit 4; }}"
    make = array(body, shards=2)
    one, two = Task(make, "r1"), Task(make, "r2")
    first, late = one.execute(), two.execute()
    assert first.kwargs["request_state"]["job_id"] == late.kwargs["request_state"]["job_id"]
    event = one.wait(first)
    with pytest.raises(TaskDeferred) as caught:
        one.resume(first, event)
    result = one.resume(caught.value, one.wait(caught.value))
    assert two.resume(late, event) == result
    assert (shared / "runs-1").read_text() == "run\n" * 2


def test_an_array_without_a_file_for_each_task_is_refused_before_anything_is_claimed(array: Make, store: FileReceipts) -> None:
    task = Task(array("true", shards=2, spec={"body": "true", "output": "/tmp/one.log"}))
    with pytest.raises(InvalidSpec, match="into one file"):
        task.make().execute(task.context)
    assert store.live() == []


def work(key: str, body: str, array: str) -> Work:
    spec = JobSpec(body=body, array=array, output="/dev/null", mem="50M")
    return Work(key, lambda n: spec, lambda n: job_name_for(key, n))


@pytest.mark.parametrize(("method", "before"), [("submit_and_look", False), ("release", False)])
async def test_an_array_whose_answer_got_lost_is_adopted_whole(
    client: SlurmClient, store: FileReceipts, key: str, jobs_named: JobsNamed, shared: Path, method: str, before: bool
) -> None:
    body = f"touch {shared}/$SLURM_ARRAY_TASK_ID; sleep 600"
    with pytest.raises(Killed):
        await submit(DiesAt(client, method, before=before), store, work(key, body, "0-2"), OWNER, look_up=QUICK)  # type: ignore[arg-type]
    if method == "release":
        await appears(shared / "0")  # its tasks have ids of their own by now, and are no doubles of each other
    done = await submit(client, store, work(key, body, "0-2"), OWNER, look_up=QUICK)
    assert done.receipt.array == "0-2"
    found = jobs_named(done.receipt.job_name)
    assert {job_id.partition("_")[0] for job_id, _ in found} == {done.receipt.job_id}
    assert all(state in ("RUNNING", "PENDING") for _, state in found)
    assert store.incidents(key, 1) == []


async def test_an_array_is_ended_in_order_and_all_of_it(client: SlurmClient, store: FileReceipts, key: str, shared: Path) -> None:
    body = f"trap 'touch {shared}/saved-$SLURM_ARRAY_TASK_ID; exit 75' USR1; touch {shared}/runs-$SLURM_ARRAY_TASK_ID; while :; do sleep 0.2; done"
    done = await submit(client, store, work(key, body, "0-3%2"), OWNER, look_up=QUICK)
    await asyncio.gather(appears(shared / "runs-0"), appears(shared / "runs-1"))
    view = await give_up(client, store, key, OWNER, done.receipt.job_name, HASTY, by="test")
    assert view is not None
    assert view.ended
    assert (shared / "saved-0").exists()
    assert (shared / "saved-1").exists()
    rows = [row for row in await client.queue(done.receipt.job_name) if not row.state.info.phase.ended]
    assert rows == []


async def test_an_array_runs_while_one_of_its_tasks_does(client: SlurmClient, store: FileReceipts, key: str, shared: Path) -> None:
    body = f"[ $SLURM_ARRAY_TASK_ID = 1 ] || {{ touch {shared}/runs; sleep 600; }}"
    done = await submit(client, store, work(key, body, "0-1"), OWNER, look_up=QUICK)
    await appears(shared / "runs")

    async def the_other_ended() -> bool:
        rows = [row for row in await client.queue(done.receipt.job_name) if row.array_id == f"{done.receipt.job_id}_1"]
        return [row.state.info.phase.ended for row in rows] == [True]

    await until(the_other_ended)
    assert (await look(client, done.receipt, done.since)).state in ("RUNNING", "CONFIGURING")
    view = await end_job(client, done.receipt, done.since, HASTY)
    assert view.ended


async def test_a_waiting_list_longer_than_slurm_prints_by_default_is_whole(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str
) -> None:
    scattered = ",".join(str(index) for index in range(0, 200, 2))
    done = await submit(client, store, work(key, "sleep 600", f"{scattered}%1"), OWNER, look_up=QUICK)
    found = by_id(await client.queue(done.receipt.job_name))
    assert {f"{done.receipt.job_id}_{index}" for index in range(0, 200, 2)} <= set(found)
    await client.cancel(done.receipt.job_id)
