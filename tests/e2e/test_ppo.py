"""The whole chain by PPO: the same up to the policy, then a champion of its own."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import follow_unattended
from tests.e2e.runs import PATIENCE, Run
from tests.e2e.world import NAME, Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900 * PATIENCE)]


@pytest.fixture(scope="module")
def ppo(world: World, chain: Chain) -> Run:
    run = world.runs.start("alignment_refresh", "chain-ppo", {"recipe": "tiny", "method": "ppo", "auto": True})
    return follow_unattended(world, run)


def test_ppo_reuses_all_that_came_before_and_is_released(world: World, chain: Chain, ppo: Run) -> None:
    before = ("base.import_base", "sft.train", "candidates.generate", "reward_model.train")
    assert [ppo.xcom(task)["reused"] for task in before] == [True] * 4
    assert str(ppo.xcom("outcome")).startswith(f"released: {NAME} version ")
    deployment = ppo.xcom("evaluation.compare_with")["deployment"]
    assert deployment != chain.deployment
    assert world.aliases()["champion"] == world.catalog.ledger.champion(NAME) == deployment


def test_ppo_trained_for_all_its_iterations_on_rewards_that_were_there(world: World, ppo: Run) -> None:
    result = ppo.xcom("policy.optimise")
    assert (result["stage"], result["reused"]) == ("ppo", False)
    report = world.report(result)
    assert (report["stop_reason"], report["last_step"]) == ("last_step", report["asked_steps"])
    assert set(report["outputs"]) >= {"policy", "rollouts"}


def test_its_lineage_leads_to_the_reward_model(world: World, ppo: Run) -> None:
    shown = world.align("lineage", f"champion:{NAME}")
    assert shown.returncode == 0, shown.stderr
    reward = ppo.xcom("reward_model.gate")
    assert reward["outputs"]["reward_model"]["digest"][:19] in shown.stdout
    assert f"attempts/{reward['attempt']}" in shown.stdout
