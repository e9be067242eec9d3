"""Before a job is submitted its task says what it will cost, refuses what cannot be, and after it what was seen."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_slurm.requests import JobRequest
from include.domain.layout import RunDir
from include.domain.spec import Report
from include.flows import stage_work
from include.flows.foretelling import Unaffordable, refuse_unaffordable, say_what_was_seen
from include.flows.resolve_run import resolve_run
from include.settings.catalogue import cluster, recipe
from include.settings.stage import StageSettings
from include.stages.errors import StageError
from include.stages.forecast import forecast
from include.stages.hardware import shape_of
from tests.flows.conftest import Plane
from tests.flows.test_planners import POLICY_GIVEN
from tests.flows.things import SFT_GIVEN

GPU = {"name": "a GPU", "bf16_tflops": 100, "fp32_tflops": 10, "bandwidth_gb_s": 1000, "memory_gb": 0.01, "store_mb_s": 1}


@pytest.fixture(autouse=True)
def inputs_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_work, "whereabouts", lambda made, uri: lambda digest: f"somewhere/{digest[7:15]}")


def site(plane: Plane, device: dict[str, Any] | None) -> None:
    path = plane.configs / "clusters/here.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"device": device}))


def sft(plane: Plane, **job: Any) -> dict[str, Any]:
    body = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())["sft"]
    plane.change_recipe("tiny", sft=body | {"job": body.get("job", {}) | job})
    return plane.run()


def test_the_log_has_the_estimate_and_the_placement_has_its_figures(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        request = stage_work.prepare("sft", plane.run(), SFT_GIVEN)
    assert isinstance(request, JobRequest)
    assert "Estimate of sft, an upper bound, on 1 process(es):" in caplog.text
    assert request.stage_in is not None
    request.stage_in(1)
    placement = json.loads((plane.store_root / RunDir(request.key).submission(1) / "placement.json").read_text())
    tiny = recipe("tiny").sft
    assert placement["resources"]["estimate"]["tokens"] == tiny.steps * tiny.global_batch * tiny.max_length


def test_without_a_described_device_nothing_is_estimated(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    site(plane, None)
    with caplog.at_level(logging.INFO):
        assert isinstance(stage_work.prepare("sft", plane.run(), SFT_GIVEN), JobRequest)
    assert "Estimate" not in caplog.text


def test_what_cannot_fit_is_refused_for_good_before_anything_is_submitted(plane: Plane) -> None:
    site(plane, GPU | {"memory_gb": 0.0001})
    with pytest.raises(Unaffordable, match="sft cannot fit: weights, gradients and moments alone take"):
        stage_work.prepare("sft", sft(plane, gpus=1), SFT_GIVEN)


def test_a_run_whose_last_stage_cannot_fit_is_refused_before_the_first_is_planned(plane: Plane) -> None:
    """Of assistant-65b on the example's nodes DPO fits, PPO does not: nobody trains SFT for days to learn that."""
    (plane.configs / "clusters/here.yaml").write_bytes((plane.configs / "clusters/example-h100.yaml").read_bytes())
    asked: dict[str, Any] = {"recipe": "assistant-65b", "method": "ppo"}
    with pytest.raises(Unaffordable, match="ppo cannot fit: .* or frozen: host"):
        resolve_run(asked, "r", "alignment_refresh", None, whole_chain=True)
    refuse_unaffordable(recipe("assistant-65b"), "dpo", cluster())
    refuse_unaffordable(recipe("assistant-7b"), "ppo", cluster())


def test_a_preemptible_job_whose_checkpoint_was_seen_to_take_too_long_is_refused(plane: Plane) -> None:
    run = sft(plane, preemptible=True, accepted_loss_minutes=1)
    request = stage_work.prepare("sft", run, SFT_GIVEN)
    assert isinstance(request, JobRequest)
    attempt = plane.store_root / RunDir(request.key).attempt("1-7.0")
    attempt.mkdir(parents=True)
    seen = {"checkpoints": {"longest_s": 75.0}}
    report = Report(request.key, "1-7.0", "interrupted", "signal", 0, 5, 40, {}, {}, summary=seen)
    Path(attempt, "report.json").write_text(json.dumps(report.to_json()))
    with pytest.raises(Unaffordable, match=r"a checkpoint takes 75 s \(measured in attempt 1-7.0\).* is 60 s"):
        stage_work.prepare("sft", run, SFT_GIVEN)


def test_what_was_measured_counts_at_a_site_that_describes_no_device_too(plane: Plane) -> None:
    site(plane, None)
    run = sft(plane, preemptible=True, accepted_loss_minutes=1)
    request = stage_work.prepare("sft", run, SFT_GIVEN)
    assert isinstance(request, JobRequest)
    attempt = plane.store_root / RunDir(request.key).attempt("1-7.0")
    attempt.mkdir(parents=True)
    report = Report(request.key, "1-7.0", "interrupted", "signal", 0, 5, 40, {}, {}, summary={"checkpoints": {"longest_s": 75.0}})
    Path(attempt, "report.json").write_text(json.dumps(report.to_json()))
    with pytest.raises(Unaffordable, match=r"a checkpoint takes 75 s \(measured in attempt 1-7.0\).* is 60 s"):
        stage_work.prepare("sft", run, SFT_GIVEN)
    patient = sft(plane, preemptible=True, accepted_loss_minutes=2)
    assert isinstance(stage_work.prepare("sft", patient, SFT_GIVEN), JobRequest)


def test_a_policy_rate_that_is_seldom_meant_is_warned_of_before_the_job_is_submitted(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    stage_work.prepare("policy", plane.run(), POLICY_GIVEN)
    assert "sft.learning_rate" not in caplog.text
    body = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())["dpo"]
    plane.change_recipe("tiny", dpo=body | {"learning_rate": 2.5e-4})
    stage_work.prepare("policy", plane.run(), POLICY_GIVEN)
    assert (
        "dpo.learning_rate 0.00025 is 2 times below sft.learning_rate 0.0005; usual is 10 to 100 times, here 5e-06 to 5e-05" in caplog.text
    )


def test_what_was_seen_is_said_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        say_what_was_seen({"summary": {"estimate": {"save_s": {"estimated": 4.0, "seen": 5.0, "ratio": 1.25}}}})
        say_what_was_seen({})
    assert [record.message.split() for record in caplog.records][1] == ["save_s", "4", "5", "1.25"]


LARGE = [name for name in ("assistant-7b", "assistant-65b") if (Path(__file__).parents[2] / f"configs/recipes/{name}.yaml").exists()]


@pytest.mark.parametrize("name", LARGE)
def test_large_recipes_plan_and_what_their_method_needs_fits_the_example(plane: Plane, name: str) -> None:
    run = plane.run(name)
    where = cluster("example-h100")
    keys = {stage: stage_work.plan(stage, run, {**POLICY_GIVEN, **SFT_GIVEN}).key for stage in ("sft",)}
    keys |= {stage: stage_work.plan(stage, run, POLICY_GIVEN).key for stage in ("reward_model", "policy")}
    assert len(set(keys.values())) == 3
    for stage in ("sft", "generate", "reward_model", "dpo"):
        made = forecast(recipe(name), stage, where)
        assert made is not None
        made.check()
        assert made.warnings() == [], stage
        assert made.stall_share <= 0.02, stage
        if stage != "generate":
            hardware, whole = made.cost.hardware, 4 * shape_of(recipe(name)).parameters / 1e9
            assert made.cost.phases["export"] < hardware.memory_gb < 261
            assert whole < made.cost.host_phases["export"] < hardware.host_memory_gb
            assert made.cost.host_gb + made.cost.mapped_gb < hardware.host_memory_gb, "no page of a file need be dropped"
            assert (whole <= made.cost.phases["export"]) == (name == "assistant-7b"), "65 billion are handed on from the CPU's memory"
    base: StageSettings = recipe(name).base
    assert base.job.memory_gb is not None
    assert base.job.memory_gb >= 2 * 4 * shape_of(recipe(name)).parameters / 1e9


def test_ppo_of_seven_billion_with_three_reward_models_fits_one_node_of_the_example() -> None:
    """By the recipe's own settings; with its frozen models on the devices it is refused."""
    found = recipe("assistant-7b")
    assert (found.ppo.zero_stage, len(found.reward_model.seeds), found.ppo.job.nodes, found.ppo.job.gpus) == (3, 3, 1, 8)
    made = forecast(found, "ppo", cluster("example-h100"))
    assert made is not None
    made.check()
    assert made.warnings() == []
    assert made.cost.hardware.memory_gb == 80
    assert made.cost.memory_gb == pytest.approx(max(made.cost.phases.values()))
    assert 60 < made.cost.memory_gb < 80
    there = found.model_copy(update={"ppo": found.ppo.model_copy(update={"frozen": "device"})})
    refused = forecast(there, "ppo", cluster("example-h100"))
    assert refused is not None
    with pytest.raises(StageError, match="ppo cannot fit: .* or frozen: host"):
        refused.check()
