"""Each phase as a DAG of its own: one starts the next by its asset, with the same stages and so the same keys."""

from __future__ import annotations

import pytest

from tests.e2e.runs import PATIENCE, Run
from tests.e2e.world import Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600 * PATIENCE)]


@pytest.fixture(scope="module")
def first_half(world: World, chain: Chain) -> dict[str, Run]:
    """`build_dataset` by hand, and what its asset started."""
    runs = {"build_dataset": world.runs.start("build_dataset", "phase-data", {"recipe": "tiny", "auto": True})}
    runs["build_dataset"].wait()
    for dag in ("train_sft", "collect_preferences"):
        runs[dag] = world.runs.only_of(dag)
        runs[dag].wait()
    return runs


def test_the_asset_of_each_phase_starts_the_next_without_a_logical_date(first_half: dict[str, Run]) -> None:
    about = {dag: run.api.get(run.path) for dag, run in first_half.items()}
    assert {dag: run["logical_date"] for dag, run in about.items()} == dict.fromkeys(first_half)
    assert {dag: run["run_type"] for dag, run in about.items()} == {
        "build_dataset": "manual",
        "train_sft": "asset_triggered",
        "collect_preferences": "asset_triggered",
    }


def test_phases_reach_the_same_keys_as_the_whole_chain(chain: Chain, first_half: dict[str, Run]) -> None:
    sft = first_half["train_sft"].xcom("sft.train")
    generated = first_half["collect_preferences"].xcom("candidates.generate")
    assert (sft["key"], sft["reused"]) == (chain.state["sft"]["key"], True)
    assert (generated["key"], generated["reused"]) == (chain.run.xcom("candidates.generate")["key"], True)


def test_labels_that_an_earlier_run_has_seen_start_nothing(world: World, first_half: dict[str, Run]) -> None:
    run = first_half["collect_preferences"]
    assert run.xcom("preferences.wait_for_labels", "status") == "no new input"
    assert run.states()["preferences.build_pairs"] == "skipped"
    assert world.runs.of("train_reward_model") == []


def test_asked_to_go_on_the_later_phases_follow_to_the_end(world: World, chain: Chain, first_half: dict[str, Run]) -> None:
    jobs = world.jobs()
    run = world.runs.start("collect_preferences", "phase-on", {"recipe": "tiny", "ask_again": True})
    run.wait()
    assert run.xcom("preferences.build_pairs") == chain.state["pairs"]
    last = None
    for dag in ("train_reward_model", "align_policy", "release_policy"):
        last = world.runs.only_of(dag)
        last.wait()
    assert last is not None
    assert last.xcom("outcome") == "already released"
    assert world.jobs() == jobs
