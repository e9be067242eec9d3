"""Configuration: YAML 1.2, strict models, identity apart from placement."""

from pathlib import Path
from typing import Any

import pytest

from include.gates.policies import policies_from
from include.settings.base import identity_config, mark_of, placement_config, unmarked
from include.settings.catalogue import cluster, recipe, recipe_names, rubric, versioned
from include.settings.errors import SettingsError
from include.settings.loader import parse, read_yaml
from include.settings.recipes import BaseSource, Recipe
from include.settings.training import STAGE_SETTINGS, Mixture

PLACEMENT = {
    "job",
    "threads",
    "log_every_steps",
    "save_every_steps",
    "keep_checkpoints",
    "keep_every_steps",
    "keep_best",
    "save_every_minutes",
    "save_in_background",
    "micro_batch",
    "generation_batch",
    "generators",
    "server_command",
    "server_start_s",
    "tensor_parallel",
    "shards",
    "offload",
    "pipeline_parallel",
    "members",
    "parts",
    "reuse_first_pass",
    "frozen",
}
"""Everything else is identity. A field that moves between the two moves keys: this set changes by decision only."""


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_reads(name: str) -> None:
    assert recipe(name).name == name
    assert recipe(f"{name}@v{recipe(name).version}").digest == recipe(name).digest


@pytest.mark.parametrize("stage", STAGE_SETTINGS)
def test_every_setting_says_identity_or_placement(stage: str) -> None:
    model = STAGE_SETTINGS[stage]
    assert list(unmarked(model)) == []
    assert {name for name, field in model.model_fields.items() if mark_of(field) in ("placement", "placement-added")} == PLACEMENT & set(
        model.model_fields
    )


def test_placement_moves_no_identity() -> None:
    before = recipe("tiny").sft
    after = before.model_copy(update={"micro_batch": 1, "log_every_steps": 7, "save_every_steps": 3})
    assert identity_config(before) == identity_config(after)
    assert placement_config(before) != placement_config(after)


def test_the_best_checkpoint_is_kept_only_where_something_says_which_it_is() -> None:
    tiny = recipe("tiny")
    for settings, said in (
        (tiny.dpo, "looks at no validation rows"),
        (tiny.ppo, r"set `heldout\.every` too"),
        (tiny.sft, "set that too"),
    ):
        with pytest.raises(ValueError, match=said):
            type(settings).model_validate(settings.model_dump() | {"keep_best": 1})
    looking = type(tiny.sft).model_validate(tiny.sft.model_dump() | {"keep_best": 1, "early_stop": {"every_steps": 2}})
    assert looking.keep_best == 1
    watched = tiny.ppo.model_dump() | {"keep_best": 1, "heldout": {"every": 2}}
    assert type(tiny.ppo).model_validate(watched).keep_best == 1
    alone = tiny.reward_model.model_dump() | {"keep_best": 1, "seeds": ()}
    assert type(tiny.reward_model).model_validate(alone).keep_best == 1
    with pytest.raises(ValueError, match="members of an ensemble are kept"):
        type(tiny.reward_model).model_validate(alone | {"seeds": (1, 2, 3)})


def test_a_setting_added_later_moves_no_identity_until_it_is_set() -> None:
    sft, ppo = recipe("tiny").sft, recipe("tiny").ppo
    assert {"packing", "lora", "guards", "mixture"} & set(identity_config(sft)) == set()
    assert identity_config(sft.model_copy(update={"packing": True}))["packing"] is True
    assert set(identity_config(ppo)["guards"]) == {
        *("kl_negative", "kl_max", "value_loss_max", "entropy_min", "missing_reward_share", "consecutive")
    }
    wider = ppo.model_copy(update={"guards": ppo.guards.model_copy(update={"length_factor": 5.0})})
    assert identity_config(wider)["guards"]["length_factor"] == 5.0


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([{"dataset": "extra@3"}], "must name `own` once"),
        ([{"dataset": "own"}, {"dataset": "extra@3"}, {"dataset": "extra@3"}], "every other data set once"),
        ([{"dataset": "own"}, {"dataset": "extra"}], "name a version, as extra@3"),
    ],
)
def test_a_mixture_names_its_own_data_and_versions_of_others(parts: list[dict[str, str]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Mixture.model_validate({"parts": parts})


def test_a_number_in_scientific_form_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: 2e-5\nb: no\nc: 012\n")
    assert read_yaml(tmp_path / "x.yaml")["a"] == 2e-5
    assert read_yaml(tmp_path / "x.yaml")["b"] == "no"


@pytest.mark.parametrize(("text", "words"), [("a: 1\na: 2\n", "a"), ("- 1\n", "mapping"), ("a: [1\n", "x.yaml"), ("", "mapping")])
def test_a_broken_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_yaml(tmp_path / "x.yaml")


def data(**changed: object) -> dict[str, object]:
    value = recipe("tiny").model_dump(mode="json")
    value.update(changed)
    return value


def test_an_unknown_key_names_its_neighbours() -> None:
    value = data()
    value["sft"] = {**value["sft"], "learning_rat": 1}  # type: ignore[dict-item]
    with pytest.raises(SettingsError, match=r"sft\.learning_rat: unknown key; did you mean 'learning_rate'"):
        parse(Recipe, value, "x.yaml")


def test_demonstration_accounts_belong_to_demonstrations() -> None:
    with pytest.raises(SettingsError, match="demonstration"):
        parse(Recipe, data(demonstration=False), "x.yaml")


def test_demonstration_models_have_names_of_their_own() -> None:
    release = {**recipe("tiny").release.model_dump(), "registered_name": "policy"}
    with pytest.raises(SettingsError, match="demo-"):
        parse(Recipe, data(release=release), "x.yaml")


@pytest.mark.parametrize("name", ["../tiny", "tiny/x", "", "tiny@v999", "nothing"])
def test_only_plain_known_names_are_read(name: str) -> None:
    with pytest.raises(SettingsError):
        recipe(name)


def test_a_rubric_whose_text_changes_cannot_keep_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rubric("worked-answers@1").version
    folder = tmp_path / "rubrics"
    folder.mkdir()
    text = (Path(__file__).parents[2] / "configs/rubrics/worked-answers.yaml").read_text()
    (folder / "worked-answers.yaml").write_text(text.replace("Length is no reason", "Longer is better"))
    monkeypatch.setenv("ALIGN_CONFIGS", str(tmp_path))
    assert rubric("worked-answers@1").version != before


def test_clusters_read() -> None:
    assert cluster("local").heavy_licence == "heavy"
    assert cluster("example").store_root.startswith("/")


SOURCE: dict[str, Any] = {"kind": "safetensors", "path": "some-model", "files": {}}
PIN = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"path": None}, "is named with `path`"),
        ({"sha256": PIN}, "not with `sha256`"),
        ({"revision": "main"}, "revision"),
        ({"files": {"pytorch_model.bin": PIN}}, "pickles least of all"),
        ({"files": {"../config.json": PIN}}, "neither .safetensors"),
        ({"files": {"model.safetensors": PIN}}, "config.json and tokenizer.json are needed"),
        ({"files": {"config.json": "1234"}}, "files.config.json"),
        ({"kind": "generated", "files": {"config.json": PIN}}, "belong to kind: safetensors"),
    ],
)
def test_a_folder_of_safetensors_is_pinned_by_plain_names(changed: dict[str, Any], words: str) -> None:
    parse(BaseSource, SOURCE, "x.yaml")
    with pytest.raises(SettingsError, match=words):
        parse(BaseSource, SOURCE | changed, "x.yaml")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_names_gates_suites_and_a_rubric_that_are_there(name: str) -> None:
    found = recipe(name)
    gates = policies_from(versioned("gates", found.gates))
    suites = versioned("suites", found.evaluation.suites)["suites"]
    assert {gate.suite for gate in gates.gates if gate.suite} <= set(suites)
    assert gates.demonstration == found.demonstration
    assert rubric(found.annotation.rubric)
    assert found.annotation.rubric in found.preferences.rubrics


@pytest.mark.parametrize(
    ("part", "changed", "words"),
    [
        ("annotation", {"min_decided": 2000}, "1400 comparisons at least: 2400 of 3040 prompts count for preferences.min_train_pairs .1200., so about 1105 do"),
        ("reward_gate", {"min_pairs": 260}, "400 of 3040 prompts count for reward_gate.min_pairs .260., so about 211 do"),
    ],
)  # fmt: skip
def test_a_batch_that_may_be_given_up_has_enough_for_what_comes_after(part: str, changed: dict[str, Any], words: str) -> None:
    body = recipe("assistant-7b").model_dump(mode="json")
    body["preferences"]["min_train_pairs"] = 1200
    body["annotation"]["min_decided"] = 2200
    Recipe.model_validate(body)
    with pytest.raises(ValueError, match=words):
        Recipe.model_validate({**body, part: {**body[part], **changed}})
    Recipe.model_validate({**body, part: {**body[part], **changed}, "annotation": {**body["annotation"], "settle_hours": None}})
