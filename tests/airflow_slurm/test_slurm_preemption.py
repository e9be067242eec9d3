"""Jobs that a real Slurm pushes out: put back by Slurm itself, or ended there and submitted again, and asked to save before that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import JobFailed
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.truth.view import JobView
from local.slurm_cluster import PrivateSlurm

from .conftest import CONN_ID, connection_uri
from .faults.helpers import appears
from .tasks import Task

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]
MakeTask = Callable[..., Task]
#: What a run of the job leaves behind: its id and how often Slurm had put it back. The second run is short.
LINE = "echo $SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}} >> {0}/runs; "
VICTIM = LINE + "[ $(wc -l < {0}/runs) -gt 1 ] || sleep 120"


@pytest.fixture
def preempting(slurm: PrivateSlurm) -> PrivateSlurm:
    if not slurm.settings.preemption:
        pytest.skip("this cluster was started without preemption")
    return slurm


@pytest.fixture
def task(preempting: PrivateSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str) -> MakeTask:
    """A task whose job says that it may be pushed out, at a site with this policy for such jobs."""

    def make(body: str, partition: str, requeue: bool, cls: type[SlurmJobOperator] = SlurmJobOperator, **kwargs: Any) -> Task:
        uri = connection_uri(preempting, preemptible_partition=partition, preemptible_requeue=requeue)
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", uri)
        spec = {"body": body, "output": "/dev/null", "mem": "50M", "preemptible": True} | kwargs.pop("spec", {})
        values = {"task_id": "t", "slurm_conn_id": CONN_ID, "key": key, "receipts_config": {"root": str(tmp_path / "receipts")}}
        return Task(lambda: cls(spec=spec, stop_grace_s=3.0, **(values | kwargs)))

    return make


def pushed_out(slurm: PrivateSlurm, task: Task, deferred: TaskDeferred, runs: Path) -> dict[str, Any]:
    """What the task's trigger says, while somebody's urgent job takes all nodes for a moment. The five minutes that a job is given to come back
    pass for none of them: Slurm puts it back at once, or says that it does not."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(task.wait, deferred, 100)
        asyncio.run(appears(runs))
        time.sleep(1.1)  # Slurm counts whole seconds: so long at the least it has run
        all_nodes = ("--partition=urgent", f"--nodes={len(slurm.settings.node_names)}", "--exclusive", "--mem=50M")
        slurm.run("sbatch", *all_nodes, "--job-name=urgent", "--output=/dev/null", "--wrap=sleep 2")
        return waiting.result()


def test_a_job_that_slurm_puts_back_is_waited_for_under_its_id(
    preempting: PrivateSlurm, task: MakeTask, store: FileReceipts, key: str, shared: Path
) -> None:
    made = task(VICTIM.format(shared), "scavenge", requeue=True)
    deferred = made.execute()
    job_id = deferred.kwargs["request_state"]["job_id"]
    event = pushed_out(preempting, made, deferred, shared / "runs")
    view = JobView.from_json(event["view"])
    assert (event["status"], view.job_id, view.state, view.restarts) == ("ended", job_id, "COMPLETED", 1)
    assert [(run.restart, run.state) for run in view.incarnations] == [(0, "PREEMPTED"), (1, "COMPLETED")]
    assert (view.incarnations[0].elapsed_s or 0) > 0
    assert "PENDING" in [change.state for change in view.history if change.restarts == 1]
    assert made.resume(deferred, event)["n"] == 1
    assert (shared / "runs").read_text().split() == [f"{job_id}.0", f"{job_id}.1"]
    end = store.end_of(key, 1)
    assert end is not None
    assert end.outcome == "succeeded"


@pytest.mark.parametrize("partition", [pytest.param("spot", marks=pytest.mark.slow), "scavenge"])
def test_a_job_that_slurm_ends_is_submitted_again_in_the_same_try(
    preempting: PrivateSlurm, task: MakeTask, store: FileReceipts, key: str, shared: Path, partition: str
) -> None:
    """Also where Slurm would put it back: a job that was submitted without ``requeue`` is ended there, too."""
    made = task(VICTIM.format(shared), partition, requeue=False)
    deferred = made.execute()
    first = deferred.kwargs["request_state"]["job_id"]
    event = pushed_out(preempting, made, deferred, shared / "runs")
    view = JobView.from_json(event["view"])
    assert (event["status"], view.state, view.phase, view.cause, view.restarts) == ("ended", "PREEMPTED", "lost", "preempted", 0)
    with pytest.raises(TaskDeferred) as caught:
        made.resume(deferred, event)
    second = caught.value.kwargs["request_state"]
    assert (second["n"], second["resubmits"]) == (2, 1)
    result = made.resume(caught.value, made.wait(caught.value))
    assert (result["n"], result["state"]) == (2, "COMPLETED")
    assert (shared / "runs").read_text().split() == [f"{first}.0", f"{second['job_id']}.0"]
    ends = [store.end_of(key, n) for n in (1, 2)]
    assert [(end.outcome, end.cause) for end in ends if end] == [("interrupted", "preempted"), ("succeeded", "")]


@pytest.mark.slow
def test_after_its_loss_retries_it_is_the_next_try_of_the_task_that_submits(preempting: PrivateSlurm, task: MakeTask, shared: Path) -> None:
    made = task(VICTIM.format(shared), "scavenge", requeue=False, loss_retries=0)
    deferred = made.execute()
    with pytest.raises(JobFailed, match="PREEMPTED") as caught:
        made.resume(deferred, pushed_out(preempting, made, deferred, shared / "runs"))
    assert not isinstance(caught.value, AirflowFailException)
    assert made.run()["n"] == 2


#: The first shard is done at once; the first run of the others lasts until it is pushed out.
SHARD = "echo $SLURM_ARRAY_TASK_ID >> {0}/runs; [ $SLURM_ARRAY_TASK_ID = 0 ] || [ $(grep -c $SLURM_ARRAY_TASK_ID {0}/runs) -gt 1 ] || {{ touch {0}/up-$SLURM_ARRAY_TASK_ID; sleep 120; }}"


@pytest.mark.parametrize("requeue", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_of_an_array_only_the_shards_that_were_pushed_out_run_again(
    preempting: PrivateSlurm, task: MakeTask, store: FileReceipts, key: str, shared: Path, requeue: bool
) -> None:
    """Put back by Slurm within the submission; or ended, and submitted again as an array of their own."""
    spec = {"output": f"{shared}/%A_%a.log"}
    made = task(SHARD.format(shared), "scavenge", requeue, SlurmArrayOperator, shards=3, spec=spec)
    deferred = made.execute()
    asyncio.run(appears(shared / "up-1"))
    event = pushed_out(preempting, made, deferred, shared / "up-2")
    if not requeue:
        with pytest.raises(TaskDeferred) as caught:
            made.resume(deferred, event)
        deferred = caught.value
        assert deferred.kwargs["request_state"]["array"] == "1-2"
        event = made.wait(deferred)
    result = made.resume(deferred, event)
    again = 1 if requeue else 2
    assert [(end["index"], end["outcome"], end["n"]) for end in result] == [
        (0, "succeeded", 1),
        (1, "succeeded", again),
        (2, "succeeded", again),
    ]
    assert sorted((shared / "runs").read_text().split()) == ["0", "1", "1", "2", "2"]
