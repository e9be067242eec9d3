"""From what travels between tasks to the plan of a stage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from include.flows.benches import bench_of
from include.flows.errors import FlowError
from include.flows.planners import PLANNERS, plan
from include.stages.refs import StageResult
from tests.flows.conftest import Plane
from tests.flows.things import POLICY, REWARD, SFT_GIVEN, D, dataset, result

POLICY_GIVEN: dict[str, Any] = {
    "sft": result("sft", "policy", POLICY),
    "reward": result("reward_model", "reward_model", REWARD, "reward_model"),
    "pairs": {"preferences": dataset("preferences", 14), "reward_pairs": dataset("reward_pairs", 16)},
    "datasets": {"rl_prompts": dataset("rl_prompts", 18)},
}


def test_a_recipe_that_changed_since_the_run_began_is_refused(plane: Plane) -> None:
    run = plane.run()
    assert bench_of(run).recipe.name == "tiny"
    plane.change_recipe("tiny", seed=43)
    with pytest.raises(FlowError, match=r"recipe tiny has changed since this run began .*start a new run, or put the recipe back"):
        bench_of(run)


def test_the_plan_is_the_same_again_and_after_a_way_through_json(plane: Plane) -> None:
    run = plane.run()
    first = plan("sft", run, SFT_GIVEN)
    assert plan("sft", json.loads(json.dumps(run)), json.loads(json.dumps(SFT_GIVEN))).key == first.key


def test_who_asked_and_from_which_run_moves_no_key_and_a_salt_does(plane: Plane) -> None:
    key = plan("sft", plane.run(), SFT_GIVEN).key
    assert plan("sft", plane.run(requested_by="eve", run_id="other", dag_id="train_sft"), SFT_GIVEN).key == key
    assert plan("sft", plane.run(rerun_salt="again"), SFT_GIVEN).key != key


def test_the_method_of_the_run_says_which_program_optimises_the_policy(plane: Plane) -> None:
    dpo = plan("policy", plane.run(method="dpo"), POLICY_GIVEN).spec
    ppo = plan("policy", plane.run(method="ppo"), POLICY_GIVEN).spec
    assert (dpo.stage, dpo.program) == ("dpo", "include.training.dpo")
    assert (ppo.stage, ppo.program) == ("ppo", "include.training.ppo")
    assert dpo.inputs == {"policy": POLICY, "reference": POLICY, "preferences": D[14]}
    assert ppo.inputs == {"policy": POLICY, "reference": POLICY, "reward_model": REWARD, "prompts": D[18]}


def test_the_reward_model_learns_from_its_own_pairs_and_dpo_from_the_snapshots(plane: Plane) -> None:
    assert plan("reward_model", plane.run(), POLICY_GIVEN).spec.inputs["preferences"] == D[16]
    assert plan("policy", plane.run(method="dpo"), POLICY_GIVEN).spec.inputs["preferences"] == D[14]


def test_a_step_whose_input_came_without_a_result_says_so(plane: Plane) -> None:
    with pytest.raises(FlowError, match="sft: base came without a result"):
        plan("sft", plane.run(), {**SFT_GIVEN, "base": None})


def test_who_asked_is_noted_beside_the_key(plane: Plane) -> None:
    note = plan("sft", plane.run(requested_by="ada"), SFT_GIVEN).spec.note
    assert (note["requested_by"], note["recipe"]) == ("ada", "tiny@v1")


def test_every_stage_of_the_chain_has_a_planner() -> None:
    assert set(PLANNERS) == {"base_import", "sft", "generate", "reward_model", "policy", "evaluate", "judge", "shadow"}


def test_every_member_of_a_reward_ensemble_reaches_ppo_and_the_evaluation(plane: Plane) -> None:
    reward = result("reward_model", "reward_model", REWARD, "reward_model")
    reward["outputs"] |= {name: {"kind": "reward_model", "digest": D[at]} for name, at in (("reward_model_2", 20), ("reward_model_3", 21))}
    inputs = plan("policy", plane.run(method="ppo"), {**POLICY_GIVEN, "reward": reward}).spec.inputs
    assert [inputs[name] for name in ("reward_model", "reward_model_2", "reward_model_3")] == [REWARD, D[20], D[21]]
    further = [ref.to_json() for ref in StageResult.from_json(reward).further("reward_model")]
    wanted = {
        "models": {"candidate": StageResult.from_json(POLICY_GIVEN["sft"]).model("policy").to_json()},
        "suites": {},
        "suite_settings": {},
        "reward": StageResult.from_json(reward).model("reward_model").to_json(),
    }
    alone = plan("evaluate", plane.run(), {"wanted": wanted}).spec
    assert alone.config["reward_hacking"] == {"limit": alone.config["reward_hacking"]["limit"]}
    together = plan("evaluate", plane.run(), {"wanted": {**wanted, "reward_members": further}}).spec
    assert together.inputs["reward_model_3"] == D[21]
    assert together.config["reward_hacking"]["combine"] == "mean"
