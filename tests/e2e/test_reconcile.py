"""`reconcile_slurm`: jobs that nobody knows are named, jobs that nobody wants any more are ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from airflow_slurm.receipts import JobEnd
from include.stores.catalog.receipts import CatalogReceipts
from tests.e2e.runs import PATIENCE, Run, until
from tests.e2e.test_faults import trial
from tests.e2e.world import Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600 * PATIENCE)]

CLOSED = f"sha256:{'0' * 8}deadbeef{'0' * 48}"
ORPHAN, STRANGER = "align-00000000deadbeef-1", "align-00000000cafebabe-1"


@pytest.fixture(scope="module", autouse=True)
def switched_on(world: World) -> Iterator[None]:
    """The DAG, after the run that its schedule starts at once; the next comes ten minutes later."""
    world.admin.pause("reconcile_slurm", False)
    for run in until("its first run", lambda: world.runs.of("reconcile_slurm"), seconds=60):
        run.wait()
    yield
    world.admin.pause("reconcile_slurm")


def reconcile(world: World, name: str) -> list[dict[str, str]]:
    """One run of the DAG, and what it found."""
    run: Run = world.runs.start("reconcile_slurm", name)
    run.wait()
    found: list[dict[str, str]] = run.xcom("reconcile_jobs")
    return found


def test_a_held_job_of_ours_that_no_open_record_knows_is_named_and_cancelled_and_a_strangers_is_named(world: World, chain: Chain) -> None:
    receipts = CatalogReceipts(world.stack.environment()["ALIGN_CATALOG_URL"])
    receipts.claim(CLOSED, {"dag_id": "none", "run_id": "none", "task_id": "none", "map_index": -1})
    receipts.close(CLOSED, 1, JobEnd("cancelled", "never_queued"))
    for name in (ORPHAN, STRANGER, "not-ours"):
        world.stack.slurm.run("sbatch", "--hold", "-J", name, "-n1", "--wrap", "true")
    time.sleep(6)
    found = reconcile(world, f"orphan-{time.time():.0f}")
    orphans = [finding for finding in found if finding["kind"] == "orphan"]
    assert [ORPHAN in finding["detail"] for finding in orphans] == [True]
    assert "belongs to no open submission; cancelled, as it was still held" in orphans[0]["detail"]
    until("the orphan's end", lambda: ORPHAN not in world.queued(), seconds=30)
    assert [STRANGER in finding["detail"] for finding in found if finding["kind"] == "stranger"] == [True]
    assert {STRANGER, "not-ours"} <= set(world.queued())
    for name in (STRANGER, "not-ours"):
        world.stack.slurm.run("scancel", "--name", name)


def test_a_job_whose_owner_is_gone_is_ended_and_said_to_be(world: World, chain: Chain) -> None:
    """With the triggerer dead, nothing but the reconciler can know that the run was given up."""
    world.admin.pause("collect_preferences")
    try:
        with world.busy_cluster():
            found = trial(world, chain, "abandoned")
            found.run.wait_until_watched("sft.train")
            (job,) = until("the job in the books", lambda: world.jobs(found.key), seconds=30)
            pid = world.stack.daemons.pid("airflow-triggerer")
            assert pid
            world.kill(pid)
            found.run.set_state("failed")
            findings = reconcile(world, f"abandoned-{time.time():.0f}")
            assert [(f["kind"], f["key"], f["job_id"]) for f in findings if f["key"] == found.key] == [("ended", found.key, job.id)]
            assert job.name not in world.queued()
        assert [j.state.split(" ")[0] for j in world.jobs(found.key)] == ["CANCELLED"]
        assert CatalogReceipts(world.stack.environment()["ALIGN_CATALOG_URL"]).get(found.key) is None
        assert world.catalog.runs.committed(found.key) is None
    finally:
        world.stack.up()
        world.admin.pause("collect_preferences", False)


def test_where_all_is_well_nothing_is_found(world: World, chain: Chain) -> None:
    assert reconcile(world, f"well-{time.time():.0f}") == []
