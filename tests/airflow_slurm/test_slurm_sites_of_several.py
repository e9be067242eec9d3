"""Sites that are more than one cluster, that keep no accounting, or whose nodes hang below switches, on real Slurms."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import AccountingDisabled, ImpossibleRequest, JobFailed
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import JobEnd
from airflow_slurm.sensors import SlurmJobSensor
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.spec import JobSpec
from airflow_slurm.work.earlier import let_go
from airflow_slurm.work.reconciler import reconcile
from local.slurm_cluster import PrivateSlurm

from .conftest import HASTY, OWNER, connection_uri
from .faults.helpers import appears
from .looking import submit_held
from .tasks import Task

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]
FAR, TREE = "slurm_far", "slurm_tree"
Make = Callable[..., Task]


def running(**settings: Any) -> Iterator[PrivateSlurm]:
    base = Path(tempfile.mkdtemp(prefix="as-", dir="/tmp"))
    slurm = PrivateSlurm(base / "c", gpus=0, accounting=False, **settings)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def second(cluster: PrivateSlurm) -> Iterator[PrivateSlurm]:
    """Another cluster that the first one's slurmdbd keeps too."""
    yield from running(name="c2", nodes=1, beside=cluster)


@pytest.fixture(scope="module")
def tree() -> Iterator[PrivateSlurm]:
    """Four nodes, two below each of two switches."""
    yield from running(name="tree", nodes=4, switches=2)


@pytest.fixture
def far(slurm: PrivateSlurm, second: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A connection to the first cluster's login node that names the second one."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{FAR.upper()}", connection_uri(slurm, cluster="c2"))
    yield FAR
    second.run("scancel", "--user", second.user, check=False)


@pytest.fixture
def make(tmp_path: Path, key: str, shared: Path) -> Make:
    def task(conn_id: str, spec: dict[str, Any], cls: type[SlurmJobOperator] = SlurmJobOperator, **kwargs: Any) -> Task:
        values = {"task_id": "t", "slurm_conn_id": conn_id, "key": key, "receipts_config": {"root": str(tmp_path / "receipts")}}
        whole = {"output": f"{shared}/%j.log", "mem": "50M"} | spec
        return Task(lambda: cls(spec=whole, stop_grace_s=3.0, **values, **kwargs))

    return task


def only_in(second: PrivateSlurm, first: PrivateSlurm, name: str) -> list[str]:
    """States of the jobs of a name in the second cluster; the first one must have none of that name."""
    asked = ("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%T")
    assert first.run(*asked).stdout == ""
    return second.run(*asked).stdout.split()


def test_a_job_of_another_cluster_from_submission_to_its_end(
    far: str, make: Make, slurm: PrivateSlurm, second: PrivateSlurm, shared: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make(far, {"body": f"echo here $SLURM_CLUSTER_NAME; touch {shared}/done"}, expected_output=f"{shared}/done")
    deferred = task.execute()
    state = deferred.kwargs["request_state"]
    assert state["cluster"] == "c2"
    result = task.resume(deferred, task.wait(deferred))
    assert (result["job_id"], result["state"]) == (state["job_id"], "COMPLETED")
    assert only_in(second, slurm, state["job_name"]) == ["COMPLETED"]
    assert "here c2" in capsys.readouterr().out


def test_a_job_of_another_cluster_that_fails_and_has_left_the_queue_is_read_from_accounting(
    far: str, make: Make, second: PrivateSlurm, key: str
) -> None:
    task = make(far, {"body": "exit 9"})
    deferred = task.execute()
    state = deferred.kwargs["request_state"]

    async def recorded(client: Any) -> list[Any]:
        for _ in range(60):
            rows = await client.accounting(state["since"] - 60, ids=[state["job_id"]])
            if rows and rows[-1].state.info.phase.ended and rows[-1].name == state["job_name"]:
                return list(rows)
            await asyncio.sleep(0.5)
        raise AssertionError("accounting has no end of it")

    rows = SlurmHook(far).run(recorded)
    assert (rows[-1].exit_code, rows[-1].state.name) == (9, "FAILED")


def test_a_job_of_another_cluster_is_given_up_there_and_the_retry_before_that_adopts_it(
    far: str, make: Make, slurm: PrivateSlurm, second: PrivateSlurm, shared: Path
) -> None:
    task = make(far, {"body": f"trap 'touch {shared}/saved; exit 0' USR1; touch {shared}/runs; while :; do sleep 0.2; done"})
    first = task.execute().kwargs["request_state"]
    asyncio.run(appears(shared / "runs"))
    again = task.execute().kwargs["request_state"]
    assert (again["job_id"], again["n"]) == (first["job_id"], 1)
    view = let_go(again)
    assert view is not None
    assert view.ended
    assert (shared / "saved").exists()
    assert all(state in ("COMPLETED", "FAILED", "CANCELLED") for state in only_in(second, slurm, first["job_name"]))


def test_an_array_of_another_cluster(far: str, make: Make, slurm: PrivateSlurm, second: PrivateSlurm, shared: Path) -> None:
    body = f"touch {shared}/part-$SLURM_ARRAY_TASK_ID"
    spec = {"body": body, "output": f"{shared}/%A_%a.log"}
    task = make(far, spec, SlurmArrayOperator, shards=3, expected_output=f"{shared}/part-%a")
    assert [(end["index"], end["state"]) for end in task.run()] == [(0, "COMPLETED"), (1, "COMPLETED"), (2, "COMPLETED")]


def test_the_site_of_another_cluster_is_the_one_that_is_asked(far: str, make: Make, second: PrivateSlurm) -> None:
    fine, words = SlurmHook(far).test_connection()
    assert fine, words
    assert "cluster c2" in words
    assert "partition batch: up, 1 nodes" in words
    with pytest.raises(ImpossibleRequest, match="c2"):
        make(far, {"body": "true", "nodes": 2}).execute()


def test_the_reconciler_and_the_sensor_of_another_cluster(far: str, store: FileReceipts, second: PrivateSlurm, key: str) -> None:
    hook = SlurmHook(far)
    store.claim(key, OWNER)
    store.close(key, 1, JobEnd("cancelled", "never_queued"))
    orphan = hook.run(lambda client: submit_held(client, JobSpec(body="true", output="/dev/null", mem="50M"), job_name_for(key, 1)))
    assert orphan.cluster == "c2"
    found = reconcile(hook, store, lambda owner: False, policy=HASTY, orphan_age_s=0.0)
    assert [(f.kind, f.job_id) for f in found] == [("orphan", orphan.job_id)]
    sensor = SlurmJobSensor(task_id="s", slurm_conn_id=far, job_id=orphan.job_id, must_succeed=False, deferrable=False, timeout=60)
    seen = sensor.execute({"ti": None})  # type: ignore[arg-type]
    assert "CANCELLED" in str(seen)


def leaf(node_list: str) -> set[str]:
    """Leaf switches of nodes such as ``n[1-2]`` or ``n1,n3``."""
    numbers = [int(c) for c in node_list if c.isdigit()]
    return {"s1" if number <= 2 else "s2" for number in numbers}


def test_switches_keep_a_job_below_one_and_are_waited_for_at_most_so_long(
    tree: PrivateSlurm, make: Make, monkeypatch: pytest.MonkeyPatch, shared: Path, key: str, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{TREE.upper()}", connection_uri(tree))
    two = {"nodes": 2, "ntasks_per_node": 1, "exclusive": True, "switches": 1, "switches_wait_s": 8, "time_limit": 5}
    # One node below each switch is out: two are left, and no switch has both.
    for node in ("n2", "n3"):
        tree.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    task = make(TREE, {"body": f"touch {shared}/ran; sleep 1", **two})
    deferred = task.execute()
    event = task.wait(deferred, 120)
    view = event["view"]
    assert (view["state"], leaf(view["node_list"])) == ("COMPLETED", {"s1", "s2"}), view
    waited = view["start_time"] - view["submit_time"]
    assert waited >= 7, view
    for node in ("n2", "n3"):
        tree.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    name = job_name_for(key, 1)
    shown = tree.run("squeue", "--noheader", "--states=all", f"--name={name}", "--Format=JobID").stdout.strip()
    told = tree.run("scontrol", "show", "job", shown).stdout
    assert "ReqSwitch=1@00:00:08" in told or "Switches=1@00:00:08" in told, told
    # With all four free it starts at once, and below one switch.
    values = {"receipts_config": {"root": str(tmp_path / "other")}}
    other = Task(lambda: SlurmJobOperator(
        task_id="t", slurm_conn_id=TREE, key=f"{key}/free", spec={"body": "sleep 1", "output": "/dev/null", "mem": "50M", **two}, **values
    ))  # fmt: skip
    view = other.wait(other.execute(), 120)["view"]
    assert (view["state"], len(leaf(view["node_list"]))) == ("COMPLETED", 1), view


def test_where_no_accounting_is_kept_the_queue_alone_tells_how_jobs_ended(
    tree: PrivateSlurm, make: Make, monkeypatch: pytest.MonkeyPatch, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{TREE.upper()}", connection_uri(tree))
    with pytest.raises(AccountingDisabled, match="switched off at this site"):
        SlurmHook(TREE).run(lambda client: client.accounting(0.0, ids=["1"]))
    good, words = SlurmHook(TREE).test_connection()
    assert good, words
    assert "accounting: not kept" in words
    task = make(TREE, {"body": f"echo here; [ -e {shared}/second ] || {{ touch {shared}/second; exit 9; }}; touch {shared}/done"},
                expected_output=f"{shared}/done")  # fmt: skip
    with pytest.raises(JobFailed, match="exit 9"):
        task.run()
    assert task.run()["state"] == "COMPLETED"
    said = capsys.readouterr().out
    assert said.count("] here") == 2
    assert "accounting database" not in said
