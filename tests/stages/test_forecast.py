"""What is said, warned of and refused before a stage is submitted, by numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from include.settings.catalogue import cluster, recipe
from include.settings.clusters import Cluster, DeviceSettings
from include.settings.errors import SettingsError
from include.settings.loader import parse
from include.settings.recipes import Recipe
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
    assert made.cost.host_gb == pytest.approx(8 * (0.9 + 4) + 12)  # what is gathered is written as it is, without a copy
    few = changed(sft={"job": JOB | {"tasks": 8, "gpus": 8, "memory_gb": 32}, "zero_stage": 3})
    assert any("job.memory_gb asks for 32" in warning for warning in of(few).warnings())


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
