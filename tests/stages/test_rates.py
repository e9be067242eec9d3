"""A policy's learning rate against SFT's: what is seldom meant is said."""

from typing import Any

import pytest

from include.settings.catalogue import recipe, recipe_names
from include.settings.loader import parse
from include.settings.recipes import Recipe
from include.stages.rates import unusual_rate


def rated(sft: float, dpo: float, also: dict[str, Any] | None = None) -> Recipe:
    body = recipe("tiny").model_dump(mode="json")
    body["sft"]["learning_rate"], body["dpo"]["learning_rate"] = sft, dpo
    for part, changed in (also or {}).items():
        body[part] |= changed
    return parse(Recipe, body, "x.yaml")


@pytest.mark.parametrize(("dpo", "usual"), [(1e-4, True), (1e-5, True), (1.1e-4, False), (0.9e-5, False), (2e-3, False)])
def test_ten_to_a_hundred_times_below_sft_is_usual(dpo: float, usual: bool) -> None:
    assert (unusual_rate(rated(1e-3, dpo), "dpo") is None) == usual


def test_adapters_are_compared_with_adapters_alone() -> None:
    lora = {"lora": {"rank": 4}}
    assert unusual_rate(rated(1e-3, 1e-3, {"dpo": lora}), "dpo") is None
    assert unusual_rate(rated(1e-3, 1e-3, {"dpo": lora, "sft": lora}), "dpo") is not None


def test_stages_that_move_no_policy_have_no_such_rate() -> None:
    assert all(unusual_rate(rated(1e-3, 1e-3), stage) is None for stage in ("sft", "reward_model", "generate"))


def test_recipes_meant_to_be_good_are_usual() -> None:
    unusual = {name for name in recipe_names() for stage in ("dpo", "ppo") if unusual_rate(recipe(name), stage)}
    assert unusual <= {"overtrained"}
