"""One stack for all of these tests, and the chain that most of them start from.

ALIGN_E2E_HOME=<folder> keeps the stack there: runs that have ended are found again, so one test can be worked on at a time.
ALIGN_TEST_PICTURES=<folder> keeps a picture of each page that the browser opens.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.folders import remove
from local.watch import AUTO_APPROVER, AUTO_COMMENT
from tests.e2e.runs import Run, until
from tests.e2e.stack import TestStack
from tests.e2e.world import Chain, World

ORDER = (
    *(
        "test_person",
        "test_slurm_tasks",
        "test_chain",
        "test_phases",
        "test_faults",
        "test_refusals",
        "test_release",
        "test_ppo",
        "test_variants",
    ),
    *("test_reconcile", "test_alignment_runs", "test_backfill"),
)
STARTED_BY_ASSETS = ("train_sft", "collect_preferences", "train_reward_model", "align_policy", "release_policy")
BY_HAND = ("alignment_refresh", "build_dataset", "rollback_release")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The modules in the order of a model's life: the first two have stacks of their own, the last one gives the common one another catalog."""
    here = Path(__file__).parent
    mine = [item for item in items if item.path.parent == here]
    mine.sort(key=lambda item: ORDER.index(item.path.stem))
    places = [index for index, item in enumerate(items) if item.path.parent == here]
    for index, item in zip(places, mine, strict=True):
        items[index] = item


@pytest.fixture(scope="package")
def world() -> Iterator[World]:
    """A real stack: private Slurm, MLflow, annotation service, Airflow. Every DAG that an asset could start is switched on."""
    kept = os.environ.get("ALIGN_E2E_HOME")
    home = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="e2e-"))
    stack = TestStack(home)
    stack.prepare()
    try:
        stack.up()
        made = World(stack)
        until("all DAGs", lambda: {*STARTED_BY_ASSETS, *BY_HAND} <= made.admin.known_dags(), seconds=180)
        for dag_id in (*STARTED_BY_ASSETS, *BY_HAND):
            made.admin.pause(dag_id, False)
        yield made
    finally:
        if not kept:
            stack.down()
            remove(home)


def follow_unattended(world: World, run: Run) -> Run:
    """Follows a run to its end; the demonstration account approves when it is asked."""
    approver = world.stack.api(AUTO_APPROVER)

    def look() -> bool:
        if "awaiting_input" in run.states().values():
            run.answer(approver, "Approve", AUTO_COMMENT)
        return run.state in ("success", "failed")

    until(f"the end of {run.run_id}", look, seconds=800, every=1.0)
    assert run.state == "success", run.explain()
    return run


@pytest.fixture(scope="package")
def chain(world: World) -> Chain:
    """The whole chain by DPO, once: an approved champion."""
    run = world.runs.start("alignment_refresh", "chain", {"recipe": "tiny", "auto": True})
    return Chain.of(follow_unattended(world, run))
