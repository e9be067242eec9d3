"""What is said, warned of and refused before a stage is submitted, by numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from include.settings.catalogue import cluster, recipe
from include.settings.clusters import Cluster, DeviceSettings
from include.settings.errors import SettingsError
from include.settings.loader import parse
from include.settings.recipes import Recipe
from include.settings.training import LoraSettings
from include.stages.errors import StageError
from include.stages.forecast import Forecast, Measured, compared, forecast, measured_in

GPU = DeviceSettings(name="a GPU", bf16_tflops=100, fp32_tflops=10, bandwidth_gb_s=1000, memory_gb=20, utilisation=0.5, store_mb_s=100)
SITE = cluster("example").model_copy(update={"device": GPU})
BILLION = {"parameters": 1e9, "layers": 16, "hidden_size": 2048, "vocab_size": 32000}


def changed(**stages: Any) -> Recipe:
    """The tiny recipe with a base of a billion parameters and changed stages."""
    body = recipe("tiny").model_dump(mode="json")
    body["base_source"]["shape"] = BILLION
    for name, fields in stages.items():
        body[name] |= fields
    return parse(Recipe, body, "x.yaml")


def of(found: Recipe, stage: str = "sft", site: Cluster = SITE, measured: Measured | None = None) -> Forecast:
    made = forecast(found, stage, site, measured)
    assert made is not None
    return made


JOB = {"tasks": 1, "gpus": 1, "cpus": 4, "memory_gb": 64}


def test_time_memory_and_checkpoint_are_those_of_the_sites_device() -> None:
    made = of(changed(sft={"job": JOB, "steps": 100, "global_batch": 10, "max_length": 100, "micro_batch": 1}))
    figures = made.to_json()
    assert figures["tokens"] == 1e5
    assert figures["seconds"] == pytest.approx(6e9 * 1e5 / (10e12 * 0.5))
    assert figures["tokens_per_s"] == pytest.approx(10e12 * 0.5 / 6e9, rel=1e-4)
    assert figures["checkpoint_gb"] == 12
    assert figures["save_s"] == 120
    text = "\n".join(made.lines())
    assert "of 20 GB a device: weights 4, gradients 4, moments 8" in text
    assert "12 GB, 120 s at 100 MB/s" in text
    (warning,) = made.warnings()  # a save takes as long as the work itself
    assert "stand still" in warning
    assert "2% is usual" in warning
    made.check()


def test_a_stage_that_cannot_fit_is_refused_and_one_that_may_not_is_warned_of() -> None:
    small = of(changed(dpo={"job": JOB}), "dpo", SITE.model_copy(update={"device": GPU.model_copy(update={"memory_gb": 10.0})}))
    with pytest.raises(StageError, match="dpo cannot fit: weights, gradients and moments alone take 16 GB a device, it has 10 GB"):
        small.check()
    wide = of(changed(sft={"job": JOB, "max_length": 4096, "micro_batch": 8, "global_batch": 8}))
    assert "it has 20: a smaller micro_batch" in wide.warnings()[0]
    wide.check()


def test_offload_and_sharding_make_it_fit() -> None:
    site = SITE.model_copy(update={"device": GPU.model_copy(update={"memory_gb": 10.0})})
    alone = {"job": JOB, "micro_batch": 1, "max_length": 64}
    with pytest.raises(StageError, match="cannot fit"):
        of(changed(sft=alone), site=site).check()
    of(changed(sft=alone | {"zero_stage": 2, "offload": "optimizer"}), site=site).check()
    of(changed(sft=alone | {"zero_stage": 3, "job": JOB | {"tasks": 8, "gpus": 8}}), site=site).check()


def test_a_nodes_memory_counts_every_process_and_the_checkpoint() -> None:
    made = of(changed(sft={"job": JOB | {"tasks": 8, "gpus": 8}, "zero_stage": 3, "save_in_background": True}))
    assert made.cost.host_gb == pytest.approx(8 * 0.9 + 12)  # what is gathered is written as it is, without a copy
    assert "of 64 GB of its processes (training 19.2, export 4.9), and 4 GB of mapped files once a node, which may be" in "".join(
        made.lines()
    )


@pytest.mark.parametrize(("asked", "said", "warned"), [(24, False, False), (20, True, False), (19, True, True)])
def test_mapped_files_that_do_not_fit_are_said_and_only_what_processes_have_for_themselves_is_warned_of(
    asked: int, said: bool, warned: bool
) -> None:
    """19.2 GB of their own, and 4 of a file."""
    made = of(changed(sft={"job": JOB | {"tasks": 8, "gpus": 8, "memory_gb": asked}, "zero_stage": 3}))
    made.check()
    assert any("they do not all fit beside it, so some are dropped and read again" in line for line in made.lines()) == said
    assert (
        any(f"19.2 GB of a node's memory are estimated beside mapped files, job.memory_gb asks for {asked}" in w for w in made.warnings())
        == warned
    )


def preemptible(minutes: float, **more: Any) -> Recipe:
    return changed(sft={"job": JOB | {"preemptible": True, "accepted_loss_minutes": minutes}, **more})


def test_a_job_is_preemptible_only_when_saving_takes_less_than_the_work_one_is_ready_to_lose() -> None:
    of(preemptible(2.5)).check()
    with pytest.raises(StageError, match=r"sft must not be preemptible: a checkpoint takes 120 s \(12 GB at 100 MB/s\)") as refused:
        of(preemptible(1.5)).check()
    assert "is 90 s. Set job.preemptible: false" in str(refused.value)


def test_a_measured_checkpoint_counts_more_than_an_estimated_one() -> None:
    of(preemptible(1.5), measured=Measured(80.0, "attempt 1-1.0")).check()
    with pytest.raises(StageError, match=r"takes 200 s \(measured in attempt 1-1.0\)"):
        of(preemptible(2.5), measured=Measured(200.0, "attempt 1-1.0")).check()


def test_saves_that_are_too_far_apart_are_warned_of() -> None:
    slow = preemptible(2.5, steps=100, global_batch=100, max_length=256, save_every_steps=50)
    assert any("a preemption would lose up to" in warning for warning in of(slow).warnings())
    assert not any("a preemption" in warning for warning in of(preemptible(60, save_every_minutes=2)).warnings())


def test_the_longest_save_of_any_report_is_the_measured_one() -> None:
    reports = {"a": {"summary": {"checkpoints": {"longest_s": 3.0}}}, "b": {"summary": {"checkpoints": {"longest_s": 7.0}}}, "c": {}}
    assert measured_in(reports) == Measured(7.0, "b")
    assert measured_in({"a": {"summary": {"checkpoints": {"longest_s": 0.0}}}}) is None


def test_nothing_is_foretold_where_too_little_is_known() -> None:
    assert forecast(changed(), "evaluate", SITE) is None
    assert forecast(changed(), "sft", cluster("example").model_copy(update={"device": None})) is None
    assert forecast(changed(sft={"job": JOB | {"gpus": 0}}), "sft", SITE) is None


def test_estimate_and_report_stand_side_by_side() -> None:
    rows = {"tokens": {"estimated": 100.0, "seen": 50.0, "ratio": 0.5}}
    assert compared({"estimate": rows})[1].split() == ["tokens", "100", "50", "0.5"]
    assert compared({}) == []


def test_a_devices_memory_is_said_for_gpus_alone() -> None:
    body = GPU.model_dump()
    with pytest.raises(SettingsError, match="memory_gb"):
        parse(DeviceSettings, body | {"memory_gb": None}, "x.yaml")
    with pytest.raises(SettingsError, match="memory_gb"):
        parse(DeviceSettings, body | {"kind": "cpu"}, "x.yaml")


FOUR = JOB | {"tasks": 4, "gpus": 8}


def test_device_hours_are_those_of_all_gpus_that_the_job_holds() -> None:
    """Four ranks and four generators on eight GPUs hold eight, as one rank does that asks for eight; of an array each job."""
    steady = of(changed(ppo={"job": FOUR, "generation": "apart", "generators": 4}), "ppo")
    alone = of(changed(sft={"job": JOB | {"gpus": 8}}))
    arrayed = of(changed(generate={"job": JOB | {"gpus": 2}, "shards": 3}), "generate")
    for made, gpus in ((steady, 8), (alone, 8), (arrayed, 6), (of(changed(sft={"job": FOUR | {"nodes": 2}})), 16)):
        assert made.cost.device_hours == pytest.approx(gpus * made.cost.total_s / 3600)
    assert f"{steady.cost.device_hours:.3g} device-hours" in "\n".join(steady.lines())
    cpus = SITE.model_copy(update={"device": GPU.model_copy(update={"kind": "cpu", "memory_gb": None})})
    shared = of(changed(sft={"job": JOB | {"tasks": 4}}), site=cpus)
    assert shared.cost.device_hours == pytest.approx(4 * shared.cost.total_s / 3600)


def test_gpus_that_the_site_gives_by_default_are_generators_too() -> None:
    """Eight by default for four ranks; asked for are four."""
    site = SITE.model_copy(update={"defaults": SITE.defaults.model_copy(update={"gpus": 8})})
    free, none = (
        of(changed(ppo={"job": {"tasks": 4, "gpus": gpus, "memory_gb": 64}, "generation": "apart"}), "ppo", site) for gpus in (None, 4)
    )
    assert "generator" not in free.cost.memory
    assert none.cost.memory["generator"] == pytest.approx(4)


def test_a_checkpoint_with_earlier_versions_of_the_actor_is_held_against_preemption() -> None:
    """Actor and critic are 24 GB, 240 s at 100 MB/s; with an earlier version 28 GB, 280 s. One is ready to lose 270."""
    job = JOB | {"preemptible": True, "accepted_loss_minutes": 4.5}
    site = SITE.model_copy(update={"device": GPU.model_copy(update={"memory_gb": 200.0})})
    of(changed(ppo={"job": job, "generation": "in_process"}), "ppo", site).check()
    with pytest.raises(StageError, match=r"a checkpoint takes 280 s \(28 GB at 100 MB/s\)"):
        of(changed(ppo={"job": job, "generation": "apart"}), "ppo", site).check()


@pytest.mark.parametrize("adapted", [False, True])
def test_ppo_of_sixty_five_billion_is_refused_however_it_is_cut(adapted: bool) -> None:
    """On all 128 GPUs at ZeRO 3 with everything off the devices: each still loads the critic whole, 4 × 65.3 GB."""
    found = recipe("assistant-65b")
    spread = {"zero_stage": 3, "offload": "parameters", "frozen": "host", "minibatch": 128, "micro_batch": 1, "generation_batch": 1}
    cut = found.ppo.model_copy(update={**spread, "lora": LoraSettings() if adapted else None, "job": found.sft.job})
    made = forecast(found.model_copy(update={"ppo": cut}), "ppo", cluster("example-h100"))
    assert made is not None
    assert made.cost.phases["loading"] >= 4 * 65.3
    with pytest.raises(StageError, match="ppo cannot fit"):
        made.check()
    shipped = forecast(found, "ppo", cluster("example-h100"))
    assert shipped is not None
    with pytest.raises(StageError, match="ppo cannot fit"):
        shipped.check()
