"""Parts of planned runs: what their keys depend on, and that cutting moves no key of the whole."""

from __future__ import annotations

from typing import Any

import pytest

from include.domain.parts import ALONE
from include.settings.catalogue import recipe
from include.settings.errors import SettingsError
from include.settings.loader import parse
from include.settings.recipes import Recipe
from include.stages import programs
from include.stages.parts import Taken, planned_parts, taking
from include.stages.plan import Plan
from include.stages.refs import DatasetRef, ModelRef
from tests.stages.test_plan import BASE, PAIRS, PROMPTS, REWARD, SFT, D, bench

CANDIDATE = ModelRef("model", D[14], D[2], D[3])
SUITES = {"word_problems": DatasetRef("word_problems", 1, D[12], D[13])}


def with_stage(stage: str, **changed: Any) -> Any:
    return bench(**{stage: getattr(recipe("tiny"), stage).model_copy(update=changed)})


def evaluation(models: dict[str, ModelRef], reward: ModelRef = REWARD, **changed: Any) -> Plan:
    settings = {"word_problems": {"scorers": ["exact_match"], "limit": 200}}
    return programs.evaluate(with_stage("evaluation", **changed), models, SUITES, settings, reward)


def test_cutting_moves_no_key_of_the_whole() -> None:
    assert programs.generate(with_stage("generate", shards=4), SFT, PROMPTS).key == programs.generate(bench(), SFT, PROMPTS).key
    seeds = (1, 2, 3)
    in_turn, array = (
        programs.reward_model(with_stage("reward_model", seeds=seeds, members=how), SFT, PAIRS) for how in ("in_turn", "array")
    )
    assert in_turn.key == array.key
    models = {"candidate": CANDIDATE, "sft": SFT}
    assert evaluation(models).key == evaluation(models, parts=True).key
    assert [planned_parts(plan) for plan in (in_turn, evaluation(models))] == [(), ()]


def test_a_member_is_the_reward_model_of_its_seed_alone() -> None:
    plan = programs.reward_model(with_stage("reward_model", seeds=(1, 42, 3), members="array"), SFT, PAIRS)
    parts = {part.name: part for part in planned_parts(plan)}
    assert list(parts) == ["seed 1", "seed 42", "seed 3"]
    assert recipe("tiny").seed == 42
    assert parts["seed 42"].key == programs.reward_model(bench(), SFT, PAIRS).key
    assert parts["seed 42"].plan.artifacts == plan.artifacts
    assert planned_parts(parts["seed 1"].plan) == ()


def test_a_models_part_knows_no_role_and_no_other_model() -> None:
    """Base and SFT model are measured once, whatever candidate stands beside them."""
    first = {
        part.name: part for part in planned_parts(evaluation({"candidate": CANDIDATE, "base": BASE, "sft": SFT, "anchor": SFT}, parts=True))
    }
    later = {
        part.name: part
        for part in planned_parts(
            evaluation({"candidate": ModelRef("model", D[19], D[2], D[3]), "base": BASE, "champion": SFT}, parts=True)
        )
    }
    assert list(first) == ["anchor, sft", "base", "candidate"]
    assert later["base"].key == first["base"].key
    assert later["champion"].key == first["anchor, sft"].key
    assert later["candidate"].key != first["candidate"].key
    spec = first["candidate"].plan.spec
    assert (spec.config["measure"], spec.config["latency"], list(spec.config["deployments"])) == ([ALONE], [], [ALONE])
    assert spec.inputs[f"model_{ALONE}"] == CANDIDATE.digest
    assert first["candidate"].plan.artifacts == {f"model_{ALONE}": D[14], "suite_word_problems": D[13], "reward_model": REWARD.digest}


def test_what_a_measurement_depends_on_moves_a_models_part() -> None:
    def key(reward: ModelRef = REWARD, **changed: Any) -> str:
        return planned_parts(evaluation({"candidate": CANDIDATE}, reward, parts=True, **changed))[0].key

    assert key() != key(ModelRef("reward_model", D[18], D[2], D[3]))
    assert key() != key(max_new_tokens=7)
    assert key() != key(reward_hacking_items=3)
    assert key() == key(latency_requests=3) == key(generation_batch=1)


def test_the_whole_is_told_what_to_take_and_asks_for_no_gpu_where_it_only_joins() -> None:
    plan = programs.generate(with_stage("generate", shards=2), SFT, PROMPTS)
    taken = {part.name: Taken(part.key, D[1], f"/store/{i}") for i, part in enumerate(planned_parts(plan))}
    whole = taking(plan, taken)
    assert whole.key == plan.key
    assert whole.settings["taken"]["2 of 2"] == {"key": taken["2 of 2"].key, "artifact": D[1], "path": "/store/1"}
    assert [part.beside for part in planned_parts(plan)] == [("log_probs",)] * 2
    both = Taken("k", D[1], "/store/1", {"log_probs": {"artifact": D[2], "path": "/store/2"}})
    assert taking(plan, {"2 of 2": both}).settings["taken"]["2 of 2"]["beside"] == {"log_probs": {"artifact": D[2], "path": "/store/2"}}
    assert (whole.job.gpus, whole.job.tasks, whole.job.heavy) == (0, 1, False)
    measured = evaluation({"candidate": CANDIDATE}, parts=True)
    assert taking(measured, {}).job == measured.job


@pytest.mark.parametrize(
    ("stage", "changed", "words"),
    [
        ("generate", {"prompt_limit": 64, "portion_prompts": 32, "shards": 3}, "64 prompts make 2 portions of 32"),
        ("generate", {"shards": 0}, "shards"),
        ("reward_model", {"members": "array"}, "name the members' seeds"),
    ],
)
def test_parts_that_cannot_be_are_refused(stage: str, changed: dict[str, Any], words: str) -> None:
    body = recipe("tiny").model_dump(mode="json")
    body[stage] |= changed
    with pytest.raises(SettingsError, match=words):
        parse(Recipe, body, "x.yaml")
