"""Estimates against numbers worked out by hand."""

from dataclasses import replace

import pytest

from include.cli import main
from include.domain.errors import SpecError
from include.settings.catalogue import recipe
from include.settings.ppo import PpoHeldout, PpoLag
from include.settings.recipes import ModelShape
from include.settings.training import LoraSettings
from include.stages.choices import choices
from include.stages.estimate import StageCost, estimate
from include.stages.hardware import Hardware, shape_of
from include.stages.memory import PROCESS, Layout, Shape, frozen, offloaded, state, training
from include.stages.ppo_memory import phases

ONE = Hardware(devices=1, peak_tflops=1.0, bandwidth_gb_s=1000.0, memory_gb=80.0, utilisation=0.5)
TINY = recipe("tiny")
TINY = TINY.model_copy(update={"ppo": TINY.ppo.model_copy(update={"generation": "in_process"})})
SMALL = Shape(1e6, 2, 96, 500, 96)
STATE = ("weights", "master", "gradients", "moments")


def _stages(hardware: Hardware = ONE, method: str = "dpo", **changed: object) -> dict[str, StageCost]:
    return {stage.stage: stage for stage in estimate(TINY.model_copy(update=changed), SMALL, lambda settings: hardware, method)}


def _state(cost: StageCost) -> dict[str, float]:
    return {name: 1e3 * value for name, value in cost.memory.items() if name in STATE}


def test_sft_costs_six_operations_a_parameter_and_token() -> None:
    sft = _stages()["sft"]
    tokens = TINY.sft.steps * TINY.sft.global_batch * TINY.sft.max_length
    assert sft.tokens == tokens
    assert sft.total_s == pytest.approx(6e6 * tokens / 0.5e12)
    assert _state(sft) == pytest.approx({"weights": 4, "gradients": 4, "moments": 8})
    assert sft.state_gb == pytest.approx(16e-3)
    assert sft.checkpoint_gb == pytest.approx(12e-3)
    assert sft.save_s == pytest.approx(12e-3)


def test_sharding_divides_what_it_shards_and_adapters_need_little() -> None:
    eight = Hardware(devices=8)
    stage3 = _stages(eight, sft=TINY.sft.model_copy(update={"zero_stage": 3}))["sft"]
    stage1 = _stages(eight, sft=TINY.sft.model_copy(update={"zero_stage": 1}))["sft"]
    lora = _stages(eight, sft=TINY.sft.model_copy(update={"lora": LoraSettings()}))["sft"]
    assert _state(stage3) == pytest.approx({"weights": 4 / 8, "master": 4 / 8, "gradients": 4 / 8, "moments": 1})
    assert _state(stage1) == pytest.approx({"weights": 4, "master": 4 / 8, "gradients": 4, "moments": 1})
    assert _state(lora) == pytest.approx({"weights": 4, "gradients": 0.04, "moments": 0.08})


def test_what_is_offloaded_leaves_the_device_for_the_nodes_memory() -> None:
    layout = Layout(ranks=8, zero_stage=3, offload="optimizer")
    assert state(SMALL, layout) == pytest.approx({"weights": 5e5, "master": 0, "gradients": 5e5, "moments": 0})
    assert offloaded(SMALL, layout) == pytest.approx(5e5 + 1e6)
    everything = Layout(ranks=8, zero_stage=3, offload="parameters")
    assert sum(state(SMALL, everything).values()) == pytest.approx(5e5)
    assert offloaded(SMALL, everything) == pytest.approx(2e6)


def test_tensor_and_pipeline_parallel_share_the_weights_of_one_copy() -> None:
    layout = Layout(ranks=128, tensor=8, pipeline=4, deepspeed=False)
    assert (layout.copy, layout.data) == (32, 4)
    assert sum(state(SMALL, layout).values()) == pytest.approx(16e6 / 32)
    rounded = state(SMALL, replace(layout, precision="bf16"))
    assert sum(rounded.values()) == pytest.approx((2 + 4 + 4 + 8) * 1e6 / 32)
    shared = state(SMALL, replace(layout, precision="bf16", shared_optimizer=True))
    assert sum(shared.values()) == pytest.approx((2 + 4 + (4 + 8) / 4) * 1e6 / 32)
    with pytest.raises(SpecError, match="no multiple of 8 × 4"):
        Layout(ranks=16, tensor=8, pipeline=4)


def test_activations_are_34_bytes_a_token_layer_and_unit_of_width_in_bf16_and_twice_that_in_fp32() -> None:
    bf16 = training(SMALL, Layout(precision="bf16_autocast", rows=3, length=10))
    fp32 = training(SMALL, Layout(rows=3, length=10))
    assert bf16["activations"] == 3 * 10 * 96 * 2 * 34
    assert fp32["activations"] == 2 * bf16["activations"]
    cut = training(SMALL, Layout(ranks=16, tensor=8, pipeline=2, precision="bf16_autocast", rows=3, length=10))
    assert cut["activations"] == 3 * 10 * 96 * 2 * (10 + 3)
    assert bf16["logits"] == 3 * 10 * 500 * 12
    assert "buckets" not in fp32
    assert "bf16 copies" not in fp32


def test_a_model_is_handed_on_from_the_cpus_memory_where_no_device_has_room_for_it() -> None:
    large, small = Hardware(devices=8, memory_gb=1.0, processes_a_node=8), Hardware(devices=8, memory_gb=4e-3, processes_a_node=8)
    cut = TINY.sft.model_copy(update={"engine": "megatron", "tensor_parallel": 8, "precision": "fp32"})
    inside, outside = (_stages(where, sft=cut)["sft"] for where in (large, small))
    assert outside.phases["export"] == pytest.approx(16e6 / 8 / 1e9)
    assert inside.phases["export"] == pytest.approx((16e6 / 8 + 4e6) / 1e9)
    assert inside.host_phases["export"] == pytest.approx(PROCESS / 1e9 + 4e6 / 1e9)
    sharded = TINY.sft.model_copy(update={"zero_stage": 3})
    assert [_stages(where, sft=sharded)["sft"].phases["export"] for where in (large, small)] == pytest.approx([4e6 / 1e9, 0.0])
    alone = _stages(replace(ONE, cpu=True))["sft"]
    assert alone.phases["export"] == pytest.approx((16e6 + 4e6 + PROCESS) / 1e9)
    assert alone.host_phases == {}


def test_work_stands_still_while_a_checkpoint_is_copied_and_as_long_as_one_is_written_into_the_next() -> None:
    cost = replace(_stages()["sft"], seconds={"training": 100.0}, interval_s=10.0, capture_s=0.5, save_s=4.0, background=True)
    assert cost.stall_share() == pytest.approx(9 * 0.5 / 104.5), "the last of ten is waited for, and not counted"
    assert cost.stall_share(12.0) == pytest.approx(9 * 2.5 / 122.5)
    assert replace(cost, background=False).stall_share() == pytest.approx(9 * 4.5 / 140.5)
    assert replace(cost, interval_s=100.0).stall_share() == 0.0
    assert _stages()["sft"].capture_s == pytest.approx(12e6 / 8e9)


def test_decoding_is_bound_by_memory_in_small_batches_and_by_arithmetic_in_large_ones() -> None:
    assert ONE.decoding_seconds(1e6, rows=1, tokens=10, batch=1, dtype="float32") == pytest.approx(10 * 4e-6)
    assert ONE.decoding_seconds(1e6, rows=100, tokens=10, batch=100) == pytest.approx(10 * 2e6 * 100 / 0.5e12)
    fast = Hardware(1, 1000.0, 1000.0)
    assert fast.decoding_seconds(1e9, rows=4, tokens=10, batch=4) == pytest.approx(10 * 2e9 / 1e12)


def test_ppo_counts_two_trained_and_four_scoring_models_and_its_bottleneck_moves() -> None:
    apart = TINY.ppo.model_copy(update={"reuse_first_pass": False})
    ppo = _stages(method="ppo", ppo=apart)["ppo"]
    tokens = TINY.ppo.iterations * TINY.ppo.prompts_per_iteration * TINY.ppo.max_length
    assert ppo.seconds["training"] == pytest.approx(12e6 * tokens / 0.5e12)
    assert ppo.seconds["scoring"] == pytest.approx(8e6 * tokens / 0.5e12)
    assert _state(ppo) == pytest.approx({"weights": 8, "gradients": 8, "moments": 16})
    assert (ppo.memory["reference"], ppo.memory["rewards"]) == pytest.approx((4e-3, 4e-3))
    assert ppo.memory_gb == pytest.approx(max(ppo.phases.values()))
    assert ppo.state_gb == pytest.approx(40e-3)
    cut_up = _stages(Hardware(devices=8), "ppo", ppo=apart.model_copy(update={"zero_stage": 3}))["ppo"]
    assert cut_up.state_gb == pytest.approx((2 * 20 / 8 + 2 * 4 + 4) * 1e-3)
    assert cut_up.phases["drawing"] > cut_up.phases["scoring"]
    assert ppo.bottleneck == "training"
    assert _stages(Hardware(1, 1000.0, 1.0), "ppo")["ppo"].bottleneck == "decoding"


def test_under_adapters_ppo_trains_little_and_its_reference_takes_no_memory() -> None:
    whole, adapted = (_stages(method="ppo", ppo=TINY.ppo.model_copy(update={"lora": lora}))["ppo"] for lora in (None, LoraSettings()))
    assert _state(adapted) == pytest.approx({"weights": 8, "gradients": 0.08, "moments": 0.16})
    assert ("reference" in whole.memory, "reference" in adapted.memory) == (True, False)
    assert adapted.state_gb == pytest.approx((8 + 0.08 + 0.16 + 4) * 1e-3)
    assert adapted.checkpoint_gb == pytest.approx(whole.checkpoint_gb / 100)
    assert adapted.seconds["training"] == pytest.approx(whole.seconds["training"] * 4 / 6)
    assert adapted.seconds["scoring"] == pytest.approx(whole.seconds["scoring"])


def test_first_passes_that_serve_the_update_too_cost_memory_and_spare_two_passes() -> None:
    settings = TINY.ppo.model_copy(update={"micro_batch": 4, "minibatch": 16, "prompts_per_iteration": 32})
    before, after = (_stages(method="ppo", ppo=settings.model_copy(update={"reuse_first_pass": reused}))["ppo"] for reused in (False, True))
    tokens = settings.iterations * settings.prompts_per_iteration * settings.max_length
    assert before.seconds["scoring"] - after.seconds["scoring"] == pytest.approx(2e6 * tokens / 0.5e12)
    once, kept = (phases(settings.model_copy(update={"reuse_first_pass": reused}), SMALL, ONE, 1)["update"] for reused in (False, True))
    assert kept["activations"] == pytest.approx(8 * once["activations"])
    assert kept["logits"] == pytest.approx(4 * once["logits"])


def test_of_ppo_the_largest_phase_counts_and_frozen_models_off_the_device_are_there_one_at_a_time() -> None:
    eight, three = Hardware(devices=8, processes_a_node=8, host_gb_s=2.0), TINY.reward_model.model_copy(update={"seeds": (1, 2, 3)})
    settings = TINY.ppo.model_copy(update={"zero_stage": 3, "precision": "bf16_autocast", "reuse_first_pass": False})
    there, away = (
        _stages(eight, "ppo", reward_model=three, ppo=settings.model_copy(update={"frozen": place}))["ppo"] for place in ("device", "host")
    )
    one, rounded = 1e6, 2e6 + 4 * SMALL.vocabulary * SMALL.hidden
    assert there.memory_gb == max(there.phases.values())
    assert list(away.phases) == ["loading", "drawing", "scoring", "update", "export"]
    for phase in ("loading", "drawing", "update"):
        assert there.phases[phase] - away.phases[phase] == pytest.approx(4 * rounded / 1e9)
    unrounded = 4 * SMALL.vocabulary * SMALL.hidden
    assert there.phases["scoring"] - away.phases["scoring"] == pytest.approx((3 * rounded - unrounded) / 1e9)
    assert away.phases["export"] == pytest.approx(4 * one / 1e9)
    assert away.host_gb == there.host_gb, "mapped files are nobody's own"
    assert away.mapped_gb == there.mapped_gb == pytest.approx((1 + 3) * 4 * one / 1e9)
    looks = 1 + settings.iterations // settings.heldout.every if settings.heldout.every else 0
    assert away.seconds["bringing"] == pytest.approx((4 * settings.iterations + 3 * looks) * 4 * one / 2e9)
    assert "bringing" not in there.seconds


@pytest.mark.parametrize("method", ["fp32", "bf16_autocast"])
def test_ppo_keeps_its_optimisers_off_the_device_as_the_other_trainers_do(method: str) -> None:
    settings = TINY.ppo.model_copy(update={"zero_stage": 3, "precision": method, "reuse_first_pass": False, "frozen": "host"})
    inside, away = (
        _stages(Hardware(devices=8, processes_a_node=8), "ppo", ppo=settings.model_copy(update={"offload": what}))["ppo"]
        for what in ("none", "optimizer")
    )
    moved = 2 * (4 + 8) * 1e6 / 8 / 1e9
    assert inside.phases["update"] - away.phases["update"] == pytest.approx(moved)
    assert inside.phases["drawing"] - away.phases["drawing"] == pytest.approx(moved)


def test_kto_passes_over_each_pairs_prompt_with_other_answers_too() -> None:
    plain, kto = (_stages(dpo=TINY.dpo.model_copy(update={"loss": loss}))["dpo"].seconds for loss in ("sigmoid", "kto"))
    assert kto["reference"] == pytest.approx(2 * plain["reference"])
    assert kto["reference point"] == pytest.approx(plain["reference"])
    assert kto["training"] == plain["training"]


def test_frozen_models_hold_rounded_weights_under_autocast_but_for_the_embedding() -> None:
    shape = Shape(parameters=1000, layers=1, hidden=4, vocabulary=50, kv_width=4)
    assert (frozen(shape, "fp32"), frozen(shape, "bf16_autocast")) == (4000, 2 * 1000 + 4 * 200)


def test_a_server_over_several_devices_shares_the_weights() -> None:
    alone = TINY.generate.model_copy(update={"backend": "vllm"})
    eight = alone.model_copy(update={"server_command": ("vllm", "serve", "--tensor-parallel-size", "8")})
    one, shared = (_stages(generate=settings)["generate"] for settings in (alone, eight))
    assert one.memory["weights"] == pytest.approx(8 * shared.memory["weights"])
    assert shared.total_s < one.total_s
    assert (one.hardware.devices, shared.hardware.devices) == (1, 8)


def test_jobs_of_an_array_share_the_prompts() -> None:
    one, four = (_stages(generate=TINY.generate.model_copy(update={"shards": n}))["generate"] for n in (1, 4))
    assert four.hardware.devices == 4
    assert four.seconds["prompts"] == pytest.approx(one.seconds["prompts"] / 4)


def test_choices_show_what_more_would_cost() -> None:
    hours = {choice.name: choice.device_hours for choice in choices(TINY, SMALL, lambda settings: ONE)}
    assert hours["ppo, twice the rollouts"] > hours["ppo"]
    assert hours["dpo, twice the model"] == pytest.approx(2 * hours["dpo"])


def test_a_bases_size_is_what_it_says_or_its_shape_or_its_name() -> None:
    quickstart = recipe("quickstart")
    assert shape_of(quickstart).parameters == 135e6
    shape = TINY.base.tiny
    assert shape is not None
    assert shape_of(TINY) == Shape(shape.vocab_size * 96 + 2 * 12 * 96**2, 2, 96, shape.vocab_size, 96)
    guessed = shape_of(TINY, 7e9)
    assert (guessed.hidden, guessed.layers) == pytest.approx((4096, 32), rel=0.05)
    nameless = quickstart.base.model_copy(update={"file": "model.gguf"})
    with pytest.raises(SpecError, match="tells no size; give --parameters"):
        shape_of(quickstart.model_copy(update={"base": nameless}))
    said = ModelShape(parameters=8e9, layers=32, hidden_size=4096, vocab_size=128256, kv_width=1024)
    source = quickstart.base_source.model_copy(update={"shape": said})
    assert shape_of(quickstart.model_copy(update={"base_source": source})) == Shape(8e9, 32, 4096, 128256, 1024)


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "quickstart", "--method", "ppo", "--devices", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("quickstart@v1: 1.35e+08 parameters; a device has 989 TFLOP/s")
    assert all(word in text for word in ("sft", "generate", "reward_model", "ppo, twice the rollouts"))
    assert main(["estimate", "quickstart", "--parameters", "0"]) == 1
    assert main(["estimate", "tiny", "--devices", "0"]) == 1


def test_a_cluster_says_on_what_each_stage_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "quickstart", "--cluster", "local"]) == 0
    text = capsys.readouterr().out
    assert "a device has 0.44 TFLOP/s (0.28 in float32), 10 GB/s, 6 GB" in text
    assert main(["estimate", "quickstart", "--cluster", "nowhere"]) == 1


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "quickstart", "--parameters", "70e9"]) == 0
    assert "does not fit" in capsys.readouterr().out


PASSES_FP32 = 2 * 4 * 2 * 96 * 32 * 96 + 32 * 64 * 96 * 68 * 2 + 32 * 500 * 4 * 6
"""32 answers of 64 tokens of prompt and 32 written: keys and values, two layers' activations, six copies of a next token's logits."""


def test_a_generator_beside_the_trainer_is_counted_where_it_lies() -> None:
    gpus = Hardware(devices=8, processes_a_node=8)

    def ppo(**changed: object) -> StageCost:
        return _stages(gpus, "ppo", ppo=TINY.ppo.model_copy(update={"generation": "own_process", **changed}))["ppo"]

    def job(gpus: int | None) -> object:
        return TINY.ppo.job.model_copy(update={"gpus": gpus, "tasks": 8})

    inside, shared, apart = ppo(generation="in_process"), ppo(job=job(8)), ppo(job=job(9))
    whole = 4e6 / 1e9
    assert inside.memory.keys() & {"earlier actor", "generator"} == set()
    assert shared.memory["earlier actor"] == apart.memory["earlier actor"] == pytest.approx(whole)
    assert shared.memory["generator"] == pytest.approx(whole)
    assert shared.memory["generator's passes"] == pytest.approx(PASSES_FP32 / 1e9)
    assert "generator" not in apart.memory
    assert apart.phases["drawing beside"] == pytest.approx(whole + PASSES_FP32 / 1e9)
    assert ppo(job=job(9), generators=3).phases["drawing beside"] == pytest.approx(3 * apart.phases["drawing beside"])
    assert ppo(job=job(10), generators=3).phases["drawing beside"] == pytest.approx(2 * apart.phases["drawing beside"]), (
        "two on one of them"
    )
    crowded = ppo(job=job(9), generators=15)
    assert crowded.memory_gb == pytest.approx(15 * apart.phases["drawing beside"])
    assert crowded.state_gb == pytest.approx(15 * whole), "of the fullest GPU, whoever has it"
    assert "drawing beside" not in shared.phases
    assert "generator" in ppo(job=job(None)).memory
    assert apart.state_gb - inside.state_gb == pytest.approx(whole)
    assert shared.host_phases["training"] - inside.host_phases["training"] == pytest.approx(PROCESS / 1e9 + whole), (
        "it, and what it is handed"
    )
    assert shared.mapped_gb - inside.mapped_gb == pytest.approx(whole)
    steady = ppo(generation="apart", generators=2, lag=PpoLag(limit=2), job=job(8))
    assert steady.memory["generator"] == pytest.approx(2 * shared.memory["generator"])
    assert steady.memory["generator's passes"] == pytest.approx(2 * shared.memory["generator's passes"])
    assert steady.state_gb - apart.state_gb == pytest.approx(2 * whole), "a smaller batch makes its passes smaller, not its weights"
    assert steady.host_phases["training"] - inside.host_phases["training"] == pytest.approx(2 * PROCESS / 1e9 + 3 * whole), (
        "both, what they are handed, and two earlier versions in a checkpoint"
    )


def test_what_generators_draw_while_the_ranks_learn_takes_no_time() -> None:
    def decoding(**changed: object) -> float:
        slow = Hardware(devices=8, bandwidth_gb_s=1.0)
        found = _stages(slow, "ppo", ppo=TINY.ppo.model_copy(update={"heldout": PpoHeldout(), **changed}))["ppo"].seconds
        return found["prompts"] + found["decoding"]

    inside, one, four = decoding(), decoding(generation="apart"), decoding(generation="apart", generators=4)
    assert 0 < four < one
    assert decoding(generation="apart", generators=64, epochs=10**6) == 0 < inside
    waits = decoding(generation="apart", generators=64, epochs=10**6, lag=PpoLag(limit=0))
    steps = 32 * 20 * 4e6 / 1e9
    assert waits == pytest.approx(steps + 20 * (4e6 / 1e9 + 4e6 / 8e9), rel=1e-3), "by the present actor: nobody draws before it is there"


def test_looks_at_validation_prompts_take_time_to_write() -> None:
    plain = _stages(method="ppo")["ppo"].seconds["decoding"]
    heldout = PpoHeldout(every=4, prompts=TINY.ppo.prompts_per_iteration)
    looked = _stages(method="ppo", ppo=TINY.ppo.model_copy(update={"heldout": heldout}))["ppo"].seconds["decoding"]
    assert looked == pytest.approx(plain * (1 + (1 + TINY.ppo.iterations // 4) / TINY.ppo.iterations))


@pytest.mark.parametrize(("micro_batch", "rows"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_megatrons_rows_are_shared_by_the_copies_of_the_weights_and_not_by_all_processes(micro_batch: int, rows: int) -> None:
    """128 processes, 32 to a copy: 4 copies share 16 rows. A token, layer and unit of width takes 2 × (10 + 24 / 8) bytes in float32."""
    changed = {"engine": "megatron", "tensor_parallel": 8, "pipeline_parallel": 4, "precision": "fp32", "global_batch": 16}
    settings = TINY.sft.model_copy(update={**changed, "micro_batch": micro_batch, "max_length": 100})
    sft = _stages(Hardware(devices=128, processes_a_node=8, memory_gb=1e-3), sft=settings)["sft"]
    assert sft.memory["activations"] == pytest.approx(rows * 100 * 96 * 2 * 26 / 1e9)


def test_ppos_ranks_share_the_answers_of_an_iteration_and_the_rows_of_a_minibatch() -> None:
    """8 ranks: of 32 answers 4 each are written and learnt from, whatever generation_batch and micro_batch would allow."""
    settings = TINY.ppo.model_copy(update={"reuse_first_pass": False, "heldout": PpoHeldout()})
    found = phases(settings, SMALL, Hardware(devices=8, processes_a_node=8), 1)
    assert found["drawing"]["cache"] == 2 * 4 * 2 * 96 * 4 * 96
    assert found["update"]["activations"] == 4 * 96 * 96 * 2 * 68
    looks = settings.model_copy(update={"heldout": PpoHeldout(every=4, prompts=64)})
    assert phases(looks, SMALL, Hardware(devices=8, processes_a_node=8), 1)["drawing"]["cache"] == 2 * 4 * 2 * 96 * 8 * 96


def test_earlier_versions_of_the_actor_are_in_a_checkpoint_and_the_first_rank_alone_copies_them() -> None:
    """Actor and critic 12 MB each, over 4 ranks at ZeRO 2; two earlier versions 4 MB each, under adapters a hundredth of all."""

    def ppo(**changed: object) -> StageCost:
        settings = TINY.ppo.model_copy(update={"zero_stage": 2, "minibatch": 16, "lag": PpoLag(limit=2), **changed})
        return _stages(Hardware(devices=4, processes_a_node=4, store_mb_s=100.0), "ppo", ppo=settings)["ppo"]

    for generation, whole, first in (("apart", 32, 6 + 8), ("own_process", 24, 6), ("in_process", 24, 6)):
        cost = ppo(generation=generation)
        assert cost.checkpoint_gb == pytest.approx(whole / 1e3)
        assert cost.save_s == pytest.approx(whole / 100)
        assert cost.capture_s == pytest.approx(first / 8e3)
    adapted = ppo(generation="apart", lora=LoraSettings())
    assert adapted.checkpoint_gb == pytest.approx(0.32 / 1e3)
    cpus = Hardware(devices=4, processes_a_node=4, cpu=True)
    before, after = (
        _stages(cpus, "ppo", ppo=TINY.ppo.model_copy(update={"generation": "apart", "lag": PpoLag(limit=limit)}))["ppo"] for limit in (0, 2)
    )
    assert after.memory["checkpoint"] - before.memory["checkpoint"] == pytest.approx(8 / 1e3)


def test_publishing_the_actor_takes_time_and_an_earlier_actor_passes_over_the_answers_it_drew() -> None:
    """4 MB: 8 ms to write, 4 to hash, 2 from or to a device. 20 times published; 19 times read, hashed and brought, by the second node from
    the store. Two ages may both be among the answers of an iteration where timing decides."""
    two_nodes = Hardware(devices=8, processes_a_node=4, store_mb_s=500.0, host_gb_s=2.0)

    def seconds(**changed: object) -> dict[str, float]:
        return dict(_stages(two_nodes, "ppo", ppo=TINY.ppo.model_copy(update=changed))["ppo"].seconds)

    inside, apart, present = seconds(), seconds(generation="apart"), seconds(generation="apart", lag=PpoLag(limit=0))
    a_pass = two_nodes.seconds(2e6 * 19 * 32 * 96, "fp32")
    assert "publishing" not in inside
    assert apart["publishing"] == pytest.approx(20 * 0.014 + 19 * (0.006 + 0.008))
    assert apart["scoring"] - inside["scoring"] == pytest.approx(a_pass)
    assert present["publishing"] == pytest.approx(20 * 0.014)
    assert present["scoring"] == pytest.approx(inside["scoring"])
    timed = seconds(generation="own_process", lag=PpoLag(limit=2))
    assert timed["scoring"] - inside["scoring"] == pytest.approx(2 * a_pass)
    assert seconds(generation="apart", lora=LoraSettings())["publishing"] == pytest.approx(apart["publishing"] / 100)


def test_a_generator_keeps_rounded_copies_of_what_can_be_trained() -> None:
    """2 MB of them beside 4 of weights, under adapters a hundredth; the passes' activations take half as much in bf16."""
    gpus = Hardware(devices=8, processes_a_node=8)
    passes = PASSES_FP32 - 32 * 64 * 96 * 34 * 2
    for lora, rounded in ((None, 2e6), (LoraSettings(), 2e4)):
        settings = TINY.ppo.model_copy(update={"generation": "apart", "precision": "bf16_autocast", "lora": lora})
        assert phases(settings, SMALL, gpus, 1)["drawing"]["generator's passes"] == pytest.approx(passes + rounded)
