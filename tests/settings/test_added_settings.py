"""Settings that came after the first release: at their default they move nothing, and a program that is not told one does the same."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include.data.plan import split_of
from include.domain.canonical import digest
from include.domain.split import DEFAULT_SHARES
from include.settings.base import Settings, identity_config, mark_of, placement_config, unsaid_of
from include.settings.catalogue import recipe, recipe_names
from include.settings.errors import SettingsError
from include.settings.loader import parse
from include.settings.ppo import PpoGuards, PpoRewardSettings
from include.settings.recipes import Recipe
from include.settings.training import STAGE_SETTINGS
from include.stages.plan import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"base_import": "base", "evaluate": "evaluation"}
FILES = {
    "base_import": ("base_import", "base.tiny_model"), "sft": ("sft_program",), "generate": ("generate",), "reward_model": ("reward.dimensions", "reward.program"),
    "dpo": ("dpo_program",), "ppo": ("rl.program", "rl.settings"),
}  # fmt: skip
ADDED = ("identity-added", "placement-added")
SET_ELSEWHERE = {"dpo": {"allow_early_stop"}, "generate": {"part"}}
"""Read by a program only to be refused, or set by the plan of a part."""


def added(model: type[Settings]) -> dict[str, Any]:
    """Added fields of a settings class, with the values at which they go unsaid."""
    return {name: unsaid_of(field) for name, field in model.model_fields.items() if mark_of(field) in ADDED}


def first_release(value: Any) -> Any:
    """Settings as the first release would have written them down."""
    if isinstance(value, Settings):
        return {name: first_release(getattr(value, name)) for name in type(value).model_fields if name not in added(type(value))}
    if isinstance(value, (list, tuple)):
        return [first_release(item) for item in value]
    return {k: first_release(v) for k, v in value.items()} if isinstance(value, dict) else value


def without_added(value: Any) -> Any:
    """The same settings with every added one at its default."""
    if isinstance(value, Settings):
        kept = {name: without_added(getattr(value, name)) for name in type(value).model_fields}
        return value.model_copy(update=kept | added(type(value)))
    return value


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_that_use_none_keep_their_digest_and_their_stages(name: str) -> None:
    found = without_added(recipe(name))
    assert found.digest == digest("recipe", first_release(found))
    for stage, model in STAGE_SETTINGS.items():
        settings = getattr(found, PARTS.get(stage, stage))
        then = first_release(settings)
        identities = {field for field in then if mark_of(model.model_fields[field]) == "identity"}
        assert identity_config(settings) == {field: then[field] for field in identities}


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("dpo", {"eval_pairs": 8}),
    ("dpo", {"eval_rows": 4}),
    ("dpo", {"eval_max_new_tokens": 16}),
    ("ppo", {"eval_rows": 4}),
    ("ppo", {"reward": {"combine": "minimum"}}),
    ("ppo", {"guards": {"ratio_max": 3.0}}),
    ("ppo", {"lora": {"rank": 4, "alpha": None, "dropout": 0.0, "targets": None}}),
    ("generate", {"portion_prompts": 8}),
    ("base", {"chat_template": "source"}),
    ("reward_model", {"dimensions": ["clarity"]}),
]


@pytest.mark.parametrize(("part", "change"), CHANGES)
def test_a_setting_that_is_used_moves_its_stage_and_the_recipe_and_nothing_else(part: str, change: dict[str, Any]) -> None:
    before = recipe("tiny")
    body = before.model_dump(mode="json")
    body[part] |= {k: {**(body[part][k] or {}), **v} if isinstance(v, dict) else v for k, v in change.items()}
    after = parse(Recipe, body, "x.yaml")
    assert after.digest != before.digest
    for stage in STAGE_SETTINGS:
        name = PARTS.get(stage, stage)
        same = identity_config(getattr(after, name)) == identity_config(getattr(before, name))
        assert same == (name != part)
    ((field, value),) = change.items()
    written = identity_config(getattr(after, part))[field]
    assert value.items() <= written.items() if isinstance(value, dict) else written == value


def read_settings(stage: str) -> Iterator[tuple[str, Any]]:
    """(name, default) of each setting that a stage's program reads by name; `...` where it must be given."""
    for file in FILES[stage]:
        tree = ast.parse((ROOT / f"include/training/{file.replace('.', '/')}.py").read_text())
        constants = {n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            if call.func.attr in ("positive", "integer", "number", "flag", "text") and ast.unparse(call.func.value).endswith(
                ("config", "section")
            ):
                place = 2 if call.func.attr == "text" else 1
                given = [k.value for k in call.keywords if k.arg == "default"] or call.args[place : place + 1]
                value = constants.get(given[0].id, given[0]) if given and isinstance(given[0], ast.Name) else (given or [None])[0]
                if not isinstance(call.args[0], ast.Constant):
                    continue
                yield str(call.args[0].value), ... if value is None else _literal(value)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...


@pytest.mark.parametrize("stage", FILES)
def test_a_program_that_is_not_told_does_what_the_default_says(stage: str) -> None:
    assert PROGRAMS[stage].startswith("include.training.")
    wanted: dict[str, Any] = dict(added(STAGE_SETTINGS[stage]))
    if stage == "base_import":
        wanted["vocab_size"] = 512
    if stage == "ppo":
        wanted["combine"] = PpoRewardSettings().combine
    read = dict(read_settings(stage))
    for name, default in wanted.items():
        if name in read and read[name] is not ... and default is not None and not isinstance(default, Settings):
            assert read[name] == default, name
    assert {name for name in ("eval_pairs", "eval_rows", "portion_prompts", "combine") if name in wanted} <= set(read)


@pytest.mark.parametrize("stage", ["sft", "generate", "reward_model", "dpo", "ppo"])
def test_whatever_a_program_reads_can_be_set(stage: str) -> None:
    from importlib import import_module

    module = import_module(f"include.training.{FILES[stage][-1]}")
    keys = set(getattr(module, "CONFIG_KEYS", None) or module.KEYS)
    assert keys - set(STAGE_SETTINGS[stage].model_fields) <= SET_ELSEWHERE.get(stage, set())


def test_limits_of_guards_and_rewards_are_those_of_the_programs() -> None:
    from include.runtime.settings import Settings as Config
    from include.training.rl.guard_limits import GuardLimits
    from include.training.rl.settings import RewardMix

    assert GuardLimits.from_config(PpoGuards().model_dump()) == GuardLimits()
    assert set(PpoGuards.model_fields) == set(GuardLimits.__dataclass_fields__)
    told = RewardMix.of(Config(PpoRewardSettings(combine="minimum").model_dump(), "config.reward"))
    assert told.combine == "minimum"
    assert RewardMix.of(Config({}, "config.reward")) == RewardMix.of(Config(PpoRewardSettings().model_dump(), "config.reward"))
    assert set(PpoRewardSettings.model_fields) == set(RewardMix.__dataclass_fields__)


def with_part(part: str, **changed: Any) -> Recipe:
    body = recipe("tiny").model_dump(mode="json")
    body[part] |= changed
    return parse(Recipe, body, "x.yaml")


def test_an_engine_moves_the_key_and_where_its_weights_lie_does_not() -> None:
    before, after = recipe("tiny"), with_part("sft", engine="megatron", job={"tasks": 4}, tensor_parallel=2)
    assert identity_config(after.sft) == {**identity_config(before.sft), "engine": "megatron"}
    assert placement_config(after.sft)["tensor_parallel"] == 2
    assert after.digest != with_part("sft", engine="megatron", job={"tasks": 4}).digest
    staged = with_part("sft", engine="megatron", job={"tasks": 4}, pipeline_parallel=2)
    assert identity_config(staged.sft) == identity_config(after.sft)
    shared = with_part("sft", engine="megatron", distributed_optimizer=True, precision="bf16")
    assert identity_config(shared.sft) == {**identity_config(after.sft), "distributed_optimizer": True, "precision": "bf16"}


@pytest.mark.parametrize(
    ("part", "changed", "words"),
    [
        ("sft", {"tensor_parallel": 2}, "belongs to engine megatron"),
        ("sft", {"engine": "megatron", "tensor_parallel": 2, "job": {"tasks": 3}}, "does not divide job.tasks 3"),
        ("sft", {"pipeline_parallel": 2}, "belongs to engine megatron"),
        ("sft", {"precision": "bf16"}, "precision bf16 belongs to engine megatron"),
        ("dpo", {"distributed_optimizer": True}, "distributed_optimizer belongs to engine megatron"),
        ("sft", {"engine": "megatron", "zero_stage": 1}, "zero_stage 0"),
        ("sft", {"engine": "megatron", "precision": "bf16_autocast"}, "precision fp32 or bf16"),
        ("sft", {"engine": "megatron", "lora": {"rank": 4}}, "no lora in this version"),
        ("sft", {"engine": "megatron", "trainer": "trl"}, "engine belong to our own"),
        ("sft", {"engine": "megatron", "tensor_parallel": 2, "pipeline_parallel": 2, "job": {"tasks": 6}}, "2 does not divide job.tasks 6"),
        ("dpo", {"engine": "megatron", "zero_stage": 2}, "zero_stage 0"),
        ("reward_model", {"engine": "megatron", "tensor_parallel": 2, "job": {"tasks": 1}}, "does not divide job.tasks 1"),
        ("ppo", {"engine": "megatron"}, "deepspeed"),
        ("ppo", {"lora": {"rank": 4, "dropout": 0.1}}, "lora.dropout is 0.1: PPO needs 0"),
        ("ppo", {"minibatch": 6, "prompts_per_iteration": 12, "job": {"tasks": 4}}, "minibatch 6 is no multiple of job.tasks 4"),
        ("sft", {"offload": "optimizer"}, "needs zero_stage 1 at least, this recipe has 0"),
        ("dpo", {"offload": "parameters", "zero_stage": 2}, "needs zero_stage 3 at least, this recipe has 2"),
        ("reward_model", {"engine": "megatron", "offload": "optimizer"}, "engine megatron has no offload"),
        ("sft", {"offload": "disk"}, "offload"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(part: str, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        with_part(part, **changed)


def test_where_the_optimiser_lies_is_no_part_of_a_key() -> None:
    before, after = with_part("sft", zero_stage=2), with_part("sft", zero_stage=2, offload="optimizer")
    assert identity_config(after.sft) == identity_config(before.sft)
    assert placement_config(after.sft)["offload"] == "optimizer"


def data(**changed: Any) -> Recipe:
    body = recipe("tiny").model_dump(mode="json")
    body["data"] |= changed
    return parse(Recipe, body, "x.yaml")


def test_sides_have_the_shares_that_the_recipe_names() -> None:
    assert split_of(recipe("tiny").data).shares == DEFAULT_SHARES
    found = split_of(data(shares={"holdout": 0.3, "train": 0.6, "validation": 0.1}).data)
    assert list(found.shares.items()) == [("train", 0.6), ("validation", 0.1), ("holdout", 0.3)]
    assert data(shares=dict(DEFAULT_SHARES)).digest == recipe("tiny").digest


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"train": 0.8, "validation": 0.1}, "name train, validation, holdout"),
        ({"train": 0.8, "validation": 0.1, "holdout": 0.2}, "together 1"),
        ({"train": 1.0, "validation": 0.0, "holdout": 0.0}, "neither train nor holdout"),
        ({"train": 1.2, "validation": -0.4, "holdout": 0.2}, "below 0"),
        ({"train": 0.8, "validation": 0.05, "test": 0.15}, "name train"),
    ],
)
def test_shares_that_make_no_sense_are_refused(shares: dict[str, float], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        data(shares=shares)


def test_dimensions_move_the_key_of_the_reward_model_and_their_weight_with_them() -> None:
    plain, told = with_part("reward_model"), with_part("reward_model", dimensions=["clarity", "factuality"])
    assert not {"dimensions", "dimension_weight"} & set(identity_config(plain.reward_model))
    assert identity_config(told.reward_model) == {**identity_config(plain.reward_model), "dimensions": ["clarity", "factuality"]}
    heavier = with_part("reward_model", dimensions=["clarity", "factuality"], dimension_weight=0.5)
    assert identity_config(heavier.reward_model)["dimension_weight"] == 0.5


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dimensions": ["clarity", "clarity"]}, "each once"),
        ({"dimensions": ["preference"]}, "none called preference"),
        ({"dimensions": ["how clear?"]}, "pattern"),
        ({"dimensions": ["clarity"], "dimension_weight": 0}, "greater than 0"),
        ({"dimension_weight": 0.5}, "weighs dimensions, and none is named"),
    ],
)
def test_dimensions_that_are_none_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        with_part("reward_model", **changed)


def test_a_recipe_may_name_only_dimensions_of_its_rubrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.setenv("ALIGN_CONFIGS", str(tmp_path / "configs"))
    path = tmp_path / "configs" / "recipes" / "tiny.yaml"
    lines, opening = path.read_text(), "reward_model:\n  {"
    assert lines.count(opening) == 1
    path.write_text(lines.replace(opening, opening + "dimensions: [clarity], "))
    assert recipe("tiny").reward_model.dimensions == ("clarity",)
    path.write_text(lines.replace(opening, opening + "dimensions: [clarity, grammar], "))
    with pytest.raises(SettingsError, match="names 'grammar', which no rubric of its preferences has: .*clarity"):
        recipe("tiny")
