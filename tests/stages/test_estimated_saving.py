"""What a checkpoint costs by the number of those that write it, by numbers worked out by hand."""

import pytest

from include.settings.catalogue import cluster, recipe
from include.stages.estimate import StageCost, estimate
from include.stages.forecast import forecast
from include.stages.hardware import Hardware
from include.stages.memory import PROCESS, Layout, Shape, saving

BILLION = Shape(1e9, 16, 2048, 32000, 2048)
TINY = recipe("tiny")
TINY = TINY.model_copy(update={"ppo": TINY.ppo.model_copy(update={"generation": "in_process"})})
H100 = cluster("example-h100")


def large(name: str, stage: str) -> StageCost:
    made = forecast(recipe(name), stage, H100)
    assert made is not None
    return made.cost


def small(hardware: Hardware, stage: str = "sft", **changed: object) -> StageCost:
    """A stage of the tiny recipe with a billion parameters."""
    settings = getattr(TINY, stage).model_copy(update=changed)
    stages = estimate(TINY.model_copy(update={stage: settings}), BILLION, lambda asked: hardware, "ppo" if stage == "ppo" else "dpo")
    return next(cost for cost in stages if cost.stage == stage)


def test_seven_billion_on_eight_devices_at_zero_3_are_copied_in_eight_parts() -> None:
    """12 × 7.616 / 8 = 11.424 GB each; beside them 0.9 each, and the best weights of two looks (30.464). The loaded file counts once, apart."""
    dpo, sft = large("assistant-7b", "dpo"), large("assistant-7b", "sft")
    assert dpo.capture_s == sft.capture_s == pytest.approx(11.424 / 8)
    assert dpo.checkpoint_gb == pytest.approx(91.392)
    assert dpo.save_s == pytest.approx(91.392e3 / 1500)
    assert dpo.host_phases["training"] == pytest.approx(8 * (0.9 + 11.424))
    assert sft.host_phases["training"] == pytest.approx(8 * (0.9 + 11.424) + 2 * 30.464)
    assert dpo.mapped_gb == sft.mapped_gb == pytest.approx(30.464)
    assert sft.checkpoint_gb == pytest.approx(91.392 + 30.464)


def test_sixty_five_billion_are_copied_in_32_parts_of_which_a_node_has_eight() -> None:
    """12 × 65.3 / 32 = 24.4875 GB each; beside them 0.9 each, and the best weights of two looks (261.2). The loaded file counts once, apart."""
    dpo, sft = large("assistant-65b", "dpo"), large("assistant-65b", "sft")
    assert dpo.capture_s == sft.capture_s == pytest.approx(24.4875 / 8)
    assert dpo.save_s == pytest.approx(783.6e3 / 1500)
    assert dpo.host_phases["training"] == pytest.approx(8 * (0.9 + 24.4875))
    assert sft.host_phases["training"] == pytest.approx(8 * (0.9 + 24.4875) + 2 * 261.2)
    assert dpo.mapped_gb == sft.mapped_gb == pytest.approx(261.2)


def test_of_a_single_rank_the_checkpoint_is_whole() -> None:
    alone = small(Hardware(devices=1))
    assert alone.capture_s == pytest.approx(12 / 8)
    assert alone.host_phases["training"] == pytest.approx(0.9 + 12)
    assert saving(BILLION, Layout(background=False)) == 0, "what lies there is written as it is"
    assert saving(BILLION, Layout(zero_stage=3, background=False)) == 12e9


def test_at_zero_0_the_first_of_two_ranks_has_all_of_it_and_from_zero_1_on_half() -> None:
    for stage, part, both in ((0, 12, 12), (1, 6, 12)):
        together = small(Hardware(devices=2, processes_a_node=2), zero_stage=stage)
        assert together.capture_s == pytest.approx(part / 8)
        assert together.host_phases["training"] == pytest.approx(2 * 0.9 + both)
        apart = small(Hardware(devices=2, processes_a_node=1), zero_stage=stage)
        assert apart.host_phases["training"] == pytest.approx(0.9 + part), "the first one's node"


def test_the_stores_seconds_are_the_same_whoever_writes() -> None:
    one, eight = (small(Hardware(devices=devices, store_mb_s=500.0), zero_stage=3) for devices in (1, 8))
    assert one.save_s == eight.save_s == pytest.approx(12e3 / 500)


def test_actor_and_critic_are_both_copied_in_parts() -> None:
    cut = small(Hardware(devices=4, processes_a_node=2), "ppo", zero_stage=2)
    assert cut.capture_s == pytest.approx(2 * 12 / 4 / 8)
    assert cut.host_phases["training"] == pytest.approx(2 * 0.9 + 2 * 2 * 12 / 4)


def test_a_process_on_cpus_holds_its_own_pieces_and_the_first_one_the_best_weights_too() -> None:
    cut = small(Hardware(devices=4, processes_a_node=4, cpu=True), "reward_model", zero_stage=2)
    assert cut.memory["checkpoint"] == pytest.approx(12 / 4 + 2 * 4)
    assert cut.memory["process"] == PROCESS / 1e9


@pytest.mark.parametrize(
    ("tensor", "pipeline", "ranks", "a_node", "there"),
    [(8, 4, 128, 8, 8), (8, 4, 128, 16, 8), (2, 4, 32, 8, 2), (2, 2, 8, 8, 4), (1, 2, 4, 4, 2), (1, 1, 4, 4, 1), (2, 1, 2, 8, 2)],
)
def test_under_megatron_only_the_first_copys_ranks_write(tensor: int, pipeline: int, ranks: int, a_node: int, there: int) -> None:
    layout = Layout(ranks=ranks, tensor=tensor, pipeline=pipeline, deepspeed=False)
    assert layout.writers == tensor * pipeline
    assert layout.writers_among(a_node) == there


def test_under_adapters_only_what_is_trained_is_copied() -> None:
    assert saving(BILLION, Layout(ranks=4, zero_stage=2, trained_share=0.01)) == pytest.approx(12e7 / 4)
