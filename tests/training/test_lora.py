"""Low-rank adapters: they start at the base, train alone, merge to the same logits, and are written as peft reads them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from include.domain.errors import SpecError
from include.runtime.settings import Settings
from include.training.errors import TrainingError
from include.training.lora import DEFAULT_TARGETS, LoraSettings, adapters_of, add_adapters, merge_adapters, save_adapter
from tests.training.small_llama import small_llama

IDS = torch.arange(20)[None] % 61
SETTINGS = LoraSettings(4, 8.0)


def _trained_a_little(settings: LoraSettings = SETTINGS) -> torch.nn.Module:
    model = small_llama()
    add_adapters(model, settings, seed=3)
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
    return model


def test_training_starts_at_the_base_and_trains_the_adapters_alone() -> None:
    base, model = small_llama(), small_llama()
    names = add_adapters(model, SETTINGS, seed=3)
    assert len(names) == 2 * len(DEFAULT_TARGETS)
    assert torch.equal(model(input_ids=IDS).logits, base(input_ids=IDS).logits)
    trained = {name.rsplit(".", 1)[-1] for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {"lora_A", "lora_B"}


def test_the_base_under_a_trained_adapter_has_not_moved() -> None:
    base, model = small_llama(), _trained_a_little()
    for name, layer in adapters_of(model).items():
        assert torch.equal(layer.base.weight, base.get_submodule(name).weight)
        assert layer.lora_B.abs().max() > 0


def test_merged_the_model_is_plain_again_and_gives_the_same_logits() -> None:
    model = _trained_a_little().eval()
    with torch.no_grad():
        apart = model(input_ids=IDS).logits
        difference = merge_adapters(model, IDS)
        together = model(input_ids=IDS).logits
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in small_llama().named_parameters()}
    assert torch.allclose(apart, together, atol=1e-4)
    assert difference < 1e-5
    assert not torch.allclose(together, small_llama()(input_ids=IDS).logits, atol=1e-2)


def test_a_merge_that_changes_the_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _trained_a_little()
    monkeypatch.setattr("include.training.lora.LoraLinear.merged", lambda self: self.base)
    with pytest.raises(TrainingError, match="other logits"):
        merge_adapters(model, IDS)


def test_dropout_acts_in_training_and_not_in_evaluation() -> None:
    model = _trained_a_little(LoraSettings(4, 8.0, dropout=0.5))
    model.eval()
    assert torch.equal(model(input_ids=IDS).logits, model(input_ids=IDS).logits)
    model.train()
    assert not torch.equal(model(input_ids=IDS).logits, model(input_ids=IDS).logits)


def test_the_seed_draws_the_adapter() -> None:
    models = [small_llama() for _ in range(3)]
    for model, seed in zip(models, (3, 3, 4), strict=True):
        add_adapters(model, SETTINGS, seed)
    first, again, other = (next(iter(adapters_of(model).values())).lora_A for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_file_names_base_rank_and_layers_as_peft_does(tmp_path: Path) -> None:
    model = _trained_a_little()
    save_adapter(model, SETTINGS, "sha256:abc", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == ("LORA", 4, 8.0, "sha256:abc")
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 2 * len(adapters_of(model))
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (4, 16)
    assert tensors["base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"].shape == (16, 4)


def test_a_target_that_the_model_has_not_is_refused_with_those_it_has() -> None:
    with pytest.raises(TrainingError, match=r"'query' is no linear layer of this model; it has down_proj, gate_proj, k_proj"):
        add_adapters(small_llama(), LoraSettings(4, 8.0, targets=("query",)), 3)


def test_settings_have_defaults_and_refuse_what_makes_no_sense() -> None:
    assert LoraSettings.of(Settings({"lora": {"rank": 8}}, "config")) == LoraSettings(8, 16.0)
    assert LoraSettings.of(Settings({}, "config")) is None
    for wrong in ({"rank": 0}, {"rank": 4, "dropout": 1.0}, {"rank": 4, "alpha": 0.0}, {"rank": 4, "ranks": 1}):
        with pytest.raises(SpecError):
            LoraSettings.of(Settings({"lora": wrong}, "config"))
