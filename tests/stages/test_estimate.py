"""Estimates against numbers worked out by hand."""

import pytest

from include.cli import main
from include.domain.errors import SpecError
from include.settings.catalogue import recipe
from include.settings.training import LoraSettings
from include.stages.estimate import Hardware, choices, estimate, parameters_of

ONE = Hardware(devices=1, peak_tflops=1.0, bandwidth_gb_s=1000.0, memory_gb=80.0, utilisation=0.5)
TINY = recipe("tiny")


def _stages(hardware: Hardware = ONE, method: str = "dpo", **changed: object) -> dict[str, object]:
    return {stage.stage: stage for stage in estimate(TINY.model_copy(update=changed), 1e6, hardware, method)}


def test_sft_costs_six_operations_a_parameter_and_token() -> None:
    sft = _stages()["sft"]
    tokens = TINY.sft.steps * TINY.sft.global_batch * TINY.sft.max_length
    assert sft.tokens == tokens  # type: ignore[attr-defined]
    assert sft.total_s == pytest.approx(6e6 * tokens / 0.5e12)  # type: ignore[attr-defined]
    assert sft.memory_gb == pytest.approx(16e-3)  # type: ignore[attr-defined]
    assert sft.checkpoint_gb == pytest.approx(12e-3)  # type: ignore[attr-defined]


def test_sharding_divides_what_it_shards_and_adapters_need_little() -> None:
    eight = Hardware(devices=8)
    stage3 = _stages(eight, sft=TINY.sft.model_copy(update={"zero_stage": 3}))["sft"]
    stage1 = _stages(eight, sft=TINY.sft.model_copy(update={"zero_stage": 1}))["sft"]
    lora = _stages(eight, sft=TINY.sft.model_copy(update={"lora": LoraSettings()}))["sft"]
    assert stage3.memory_gb == pytest.approx(16e-3 / 8)  # type: ignore[attr-defined]
    assert stage1.memory_gb == pytest.approx((4 + 4 + 8 / 8) * 1e-3)  # type: ignore[attr-defined]
    assert lora.memory_gb == pytest.approx((4 + 0.12) * 1e-3)  # type: ignore[attr-defined]


def test_decoding_is_bound_by_memory_in_small_batches_and_by_arithmetic_in_large_ones() -> None:
    assert ONE.decoding_seconds(1e6, rows=1, tokens=10, batch=1) == pytest.approx(10 * 4e-6)
    assert ONE.decoding_seconds(1e6, rows=100, tokens=10, batch=100) == pytest.approx(10 * 2e6 * 100 / 0.5e12)
    fast = Hardware(1, 1000.0, 1000.0)
    assert fast.decoding_seconds(1e9, rows=4, tokens=10, batch=4) == pytest.approx(10 * 2e9 / 1e12)


def test_ppo_counts_two_trained_and_four_scoring_models_and_its_bottleneck_moves() -> None:
    ppo = _stages(method="ppo")["ppo"]
    tokens = TINY.ppo.iterations * TINY.ppo.prompts_per_iteration * TINY.ppo.max_length
    assert ppo.seconds["training"] == pytest.approx(12e6 * tokens / 0.5e12)  # type: ignore[attr-defined]
    assert ppo.seconds["scoring"] == pytest.approx(8e6 * tokens / 0.5e12)  # type: ignore[attr-defined]
    assert ppo.memory_gb == pytest.approx(40e-3)  # type: ignore[attr-defined]
    cut_up = _stages(Hardware(devices=8), "ppo", ppo=TINY.ppo.model_copy(update={"zero_stage": 3}))["ppo"]
    assert cut_up.memory_gb == pytest.approx((2 * 16 / 8 + 2 * 4 + 4) * 1e-3)  # type: ignore[attr-defined]
    assert ppo.bottleneck == "training"  # type: ignore[attr-defined]
    assert _stages(Hardware(1, 1000.0, 1.0), "ppo")["ppo"].bottleneck == "decoding"  # type: ignore[attr-defined]


def test_choices_show_what_more_would_cost() -> None:
    hours = {choice.name: choice.device_hours for choice in choices(TINY, 1e6, ONE)}
    assert hours["ppo, twice the rollouts"] > hours["ppo"]
    assert hours["dpo, twice the model"] == pytest.approx(2 * hours["dpo"])


def test_a_bases_size_is_its_shape_or_its_name() -> None:
    assert parameters_of(recipe("quickstart")) == 135e6
    shape = TINY.base.tiny
    assert shape is not None
    assert parameters_of(TINY) == shape.vocab_size * 96 + 2 * 12 * 96**2
    nameless = recipe("quickstart").base.model_copy(update={"file": "model.gguf"})
    with pytest.raises(SpecError, match="tells no size; give --parameters"):
        parameters_of(recipe("quickstart").model_copy(update={"base": nameless}))


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "quickstart", "--method", "ppo", "--devices", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("quickstart@v1: 1.35e+08 parameters on 2 devices")
    assert all(word in text for word in ("sft", "generate", "reward_model", "ppo, twice the rollouts"))
    assert main(["estimate", "quickstart", "--parameters", "0"]) == 1
    assert main(["estimate", "tiny", "--devices", "0"]) == 1


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "quickstart", "--parameters", "70e9"]) == 0
    assert "does not fit" in capsys.readouterr().out
