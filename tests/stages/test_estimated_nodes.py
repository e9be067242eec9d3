"""What a node's processes have of its memory for themselves, and what files they map beside it, by numbers worked out by hand."""

from dataclasses import replace

import pytest

from include.settings.catalogue import recipe
from include.settings.training import LoraSettings
from include.stages.choices import rendered
from include.stages.estimate import StageCost, estimate
from include.stages.hardware import Hardware
from include.stages.memory import Layout, Shape, flattening_host

BILLION = Shape(1e9, 16, 2048, 32000, 2048)
TINY = recipe("tiny")
GPUS = Hardware(devices=8, processes_a_node=8)
MEGATRON = {"engine": "megatron", "tensor_parallel": 2, "zero_stage": 0, "precision": "fp32"}


def stages(hardware: Hardware = GPUS, method: str = "dpo", **changed: object) -> dict[str, StageCost]:
    """The tiny recipe's with a billion parameters; `changed`: fields of each trained stage."""
    of_all = {name: getattr(TINY, name).model_copy(update=changed) for name in ("sft", "reward_model", "dpo")}
    return {cost.stage: cost for cost in estimate(TINY.model_copy(update=of_all), BILLION, lambda asked: hardware, method)}


@pytest.mark.parametrize("processes", [1, 8])
def test_a_loaded_model_counts_once_a_node_and_to_no_process(processes: int) -> None:
    """Eight at ZeRO 3 have 0.9 GB and, for a checkpoint, 12 / 8 GB each."""
    cost = stages(Hardware(devices=8, processes_a_node=processes), zero_stage=3)["dpo"]
    assert cost.mapped_gb == pytest.approx(4)
    assert cost.host_phases["training"] == pytest.approx(processes * (0.9 + 12 / 8))


def test_the_model_that_is_handed_on_is_the_first_processs_own_and_is_read_back_as_a_mapped_file() -> None:
    found = stages(zero_stage=3)
    assert found["dpo"].host_phases["export"] == pytest.approx(0.9 + 4)
    assert found["reward_model"].host_phases["export"] == pytest.approx(0.9 + 4 + 4), "and the best weights"


def test_best_weights_are_put_back_one_after_the_other_whatever_the_engine() -> None:
    for engine in ("deepspeed", "megatron"):
        found = stages(Hardware(devices=8, processes_a_node=8), engine=engine)["reward_model"].host_phases
        assert set(found) == {"training", "export"}


def test_what_is_offloaded_is_the_processes_own() -> None:
    """At ZeRO 3 over eight: weights, master and moments, 16 / 8 GB each, beside 0.9 and 12 / 8 of a checkpoint."""
    away = stages(zero_stage=3, offload="parameters")["dpo"]
    assert away.host_phases["training"] == pytest.approx(8 * (0.9 + 16 / 8 + 12 / 8))
    assert away.mapped_gb == pytest.approx(4)


@pytest.mark.parametrize(("stage", "room", "gb"), [(1, 8.0, 0), (1, 7.9, 8), (2, 7.9, 8), (0, 7.9, 0), (3, 7.9, 0), (2, None, 0)])
def test_deepspeed_lays_weights_in_a_row_in_the_cpus_memory_where_a_device_has_no_room_for_them_twice(
    stage: int, room: float | None, gb: float
) -> None:
    assert flattening_host(BILLION, Layout(ranks=8, zero_stage=stage), room and room * 1e9) == gb * 1e9
    assert flattening_host(BILLION, Layout(zero_stage=stage, deepspeed=False), 1e9) == 0


def test_the_phase_in_which_they_do_is_shown() -> None:
    tight = stages(replace(GPUS, memory_gb=7.5), zero_stage=2)["dpo"]
    assert tight.host_phases["loading"] == tight.host_gb == pytest.approx(8 * (0.9 + 8))


def test_under_adapters_the_frozen_base_is_mapped_and_no_process_has_a_copy() -> None:
    cost = stages(lora=LoraSettings())["dpo"]
    assert cost.host_phases["training"] == pytest.approx(8 * 0.9 + 0.12)
    assert cost.mapped_gb == pytest.approx(4)


def test_a_process_on_cpus_trains_in_place_and_megatrons_has_the_file_mapped_beside() -> None:
    cpus = Hardware(devices=4, processes_a_node=4, cpu=True)
    deepspeed, megatron = stages(cpus)["dpo"], stages(cpus, **MEGATRON)["dpo"]
    assert (deepspeed.host_gb, deepspeed.mapped_gb) == (0, 0)
    assert deepspeed.memory["weights"] == pytest.approx(4)
    assert "mapped files" not in deepspeed.memory
    assert megatron.memory["weights"] == pytest.approx(4 / 2)
    assert megatron.memory["mapped files"] == pytest.approx(4 / 4)


def test_generating_maps_one_file() -> None:
    cost = stages()["generate"]
    assert (cost.host_gb, cost.mapped_gb) == pytest.approx((8 * 0.9, 4))


def test_the_table_tells_both_apart() -> None:
    assert "; of a node 19.2 (training 19.2, export 4.9) and mapped files 4" in rendered(
        TINY.model_copy(update={"dpo": TINY.dpo.model_copy(update={"zero_stage": 3})}), BILLION, lambda asked: GPUS
    )
