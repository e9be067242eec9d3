"""Accidents during SFT: whatever dies at whatever line, the run goes on with one Slurm job a stage attempt, none lost and none doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from include.flows.planners import PLANNERS
from include.settings.catalogue import cluster
from include.stages.plan import Bench
from include.stores.catalog.receipts import CatalogReceipts
from tests.e2e.runs import PATIENCE, Run, until
from tests.e2e.world import Chain, Job, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900 * PATIENCE)]

LINES = ("before-the-receipt", "before-the-release", "before-it-defers", "when-it-resumes", "before-the-close")


@dataclass(frozen=True)
class Trial:
    """An SFT run of its own key."""

    run: Run
    key: str
    state: Mapping[str, Any]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run.xcom("sft.train")
        return found


def trial(world: World, chain: Chain, name: str, *, recipe: str = "tiny", salt: str | None = None, begin: bool = True) -> Trial:
    """Starts SFT anew, under the salt `name` unless another is given."""
    found = world.stack.recipe(recipe)
    state = chain.salted(salt or name, recipe=recipe, digest=found.digest)
    bench = Bench(found, cluster("local"), rerun_salt=salt or name)
    key = PLANNERS["sft"](bench, state["run"], state).key
    run = world.runs.start("train_sft", name, {"state": state}) if begin else Run(world.runs.api, "train_sft", name)
    return Trial(run, key, state)


@pytest.fixture(scope="module", autouse=True)
def alone(world: World) -> Iterator[None]:
    """What follows SFT stays off, so that these runs start nothing."""
    world.admin.pause("collect_preferences")
    yield
    world.admin.pause("collect_preferences", False)


@pytest.fixture(scope="module")
def trials(world: World, chain: Chain) -> dict[str, Trial]:
    """All the runs at once: a killed worker is noticed only after half a minute."""
    for line in LINES:
        world.kill_at(line, line)
    return {line: trial(world, chain, line) for line in LINES}


def whole(jobs: list[Job]) -> list[tuple[str, str]]:
    """(submission, state) of each job."""
    return [(job.name.rpartition("-")[2], job.state.split(" ")[0]) for job in jobs]


@pytest.mark.parametrize("line", LINES)
def test_a_worker_that_dies_leaves_one_job_that_the_next_try_takes(world: World, trials: dict[str, Trial], line: str) -> None:
    found = trials[line]
    found.run.wait(seconds=400)
    worker, task = map(int, (world.stack.kills / f"{line}@{line}.done").read_text().split())
    assert not Path(f"/proc/{task}").exists()
    assert not Path(f"/proc/{worker}").exists()
    # Airflow on SQLite may lose a try of its own beside ours ("Failed to report terminal task state"): that one runs nothing either.
    assert found.run.tries("sft.train") >= 2
    assert whole(world.jobs(found.key)) == [("1", "COMPLETED")]
    assert [row.name for row in world.catalog.runs.attempts(found.key)] == [found.result()["attempt"]]
    assert world.report(found.result())["first_step"] == 0
    receipts = CatalogReceipts(world.stack.environment()["ALIGN_CATALOG_URL"])
    assert receipts.get(found.key) is None, "the submission is closed"
    assert receipts.incidents(found.key) == []


def test_training_that_is_killed_resumes_from_its_checkpoint(world: World, chain: Chain, trials: dict[str, Trial]) -> None:
    assert trials, "after the others have their place in the queue"
    killed = trial(world, chain, "training-killed", recipe="tiny-long")
    run_folder = world.stack.layout.store / "runs" / killed.key.removeprefix("sha256:")
    done = world.stack.kills / "training-killed"
    if not done.exists():
        until("a checkpoint", lambda: list(run_folder.glob("attempts/1-*/checkpoints/step-*/manifest.json")), seconds=400, every=0.05)
        (attempt,) = run_folder.glob("attempts/1-*")
        pids = world.processes_of(attempt.name.partition("-")[2].partition(".")[0], "include.training.sft")
        assert pids
        for pid in pids:
            world.kill(pid)
        done.touch()
    killed.run.wait(seconds=400)
    assert whole(world.jobs(killed.key)) == [("1", "FAILED"), ("2", "COMPLETED")]
    report = world.report(killed.result())
    assert report["attempt"].startswith("2-")
    assert report["resumed_from"]["attempt"].startswith("1-")
    assert report["first_step"] == report["resumed_from"]["step"] >= 20
    assert report["last_step"] == world.stack.recipe("tiny-long").sft.steps
    steps = [json.loads(line)["step"] for line in (world.attempt_folder(killed.result()) / "metrics.jsonl").read_text().splitlines()]
    assert min(steps) > 20


def test_two_runs_of_one_key_share_a_job_and_one_that_fails_leaves_it_to_the_other(world: World, chain: Chain) -> None:
    with world.busy_cluster():
        first = trial(world, chain, "shared-first", salt="shared")
        second = trial(world, chain, "shared-second", salt="shared")
        assert first.key == second.key
        for run in (first.run, second.run):
            run.wait_until_watched("sft.train")
        receipts = CatalogReceipts(world.stack.environment()["ALIGN_CATALOG_URL"])
        assert sorted(owner["run_id"] for owner in _owners(receipts, first.key)) == ["shared-first", "shared-second"]
        first.run.set_state("failed")
        until("the end of its share", lambda: [o["run_id"] for o in _owners(receipts, first.key)] == ["shared-second"], seconds=60)
        (job,) = world.jobs(first.key)
        assert world.queued()[job.name] == "PENDING"
    second.run.wait()
    assert first.run.state == "failed"
    assert whole(world.jobs(first.key)) == [("1", "COMPLETED")]
    assert second.result()["attempt"] == f"1-{job.id}.0"


def test_without_a_triggerer_the_job_goes_on_and_a_new_one_takes_its_end(world: World, chain: Chain) -> None:
    with world.busy_cluster():
        found = trial(world, chain, "triggerer-killed")
        found.run.wait_until_watched("sft.train")
        pid = world.stack.daemons.pid("airflow-triggerer")
        assert pid
        world.kill(pid)
        until("the end of the triggerer", lambda: world.stack.daemons.pid("airflow-triggerer") is None)
    until("the job's end", lambda: whole(world.jobs(found.key)) == [("1", "COMPLETED")], seconds=240)
    assert found.run.states()["sft.train"] == "deferred"
    world.stack.up()
    found.run.wait()
    assert found.run.tries("sft.train") == 1
    assert whole(world.jobs(found.key)) == [("1", "COMPLETED")]


def _owners(receipts: CatalogReceipts, key: str) -> list[dict[str, Any]]:
    live = receipts.get(key)
    return [] if live is None else list(live.owners)
