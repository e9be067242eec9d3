"""What the programs can do beyond `tiny`, through the whole chain: each variant from its data to its gates and its release."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from include.stores.tracking import Tracking, tags_of
from tests.e2e.conftest import follow_unattended
from tests.e2e.runs import PATIENCE, Run
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200 * PATIENCE)]


@pytest.fixture(scope="module")
def of(world: World) -> Callable[..., Run]:
    """The run of a variant, followed to its end once, with its table of gates printed."""
    ended: dict[str, Run] = {}

    def run(name: str, method: str = "dpo") -> Run:
        if name not in ended:
            started = world.runs.start("alignment_refresh", name, {"recipe": name, "method": method, "auto": True})
            ended[name] = follow_unattended(world, started)
            print(started.xcom("evaluation.gates")["table"])
        return ended[name]

    return run


@pytest.fixture
def ensemble(of: Callable[..., Run], megatron: Run) -> Run:
    """Its mixture names the demonstrations of `tiny`, which a run before it has built."""
    return of("tiny-ensemble", "ppo")


@pytest.fixture
def lora(of: Callable[..., Run]) -> Run:
    return of("tiny-lora")


@pytest.fixture
def megatron(of: Callable[..., Run]) -> Run:
    return of("tiny-megatron")


def spec_of(world: World, run: Run, task: str) -> Any:
    found = world.catalog.runs.get(run.xcom(task)["key"])
    assert found is not None
    return found.spec


def tasks_of(world: World, run: Run, task: str) -> int:
    """Processes that Slurm's books say the stage's one step of srun had."""
    (job,) = world.jobs(run.xcom(task)["key"])
    said = world.stack.slurm.run("sacct", "-n", "-P", "-j", job.id, "-o", "JobID,NTasks,State").stdout
    steps = [line.split("|") for line in said.splitlines() if line.startswith(f"{job.id}.0|")]
    assert [state for _, _, state in steps] == ["COMPLETED"], said
    return int(steps[0][1])


def lineage(world: World, ref: str) -> str:
    shown = world.align("lineage", ref)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def champion_is_its_candidate(world: World, run: Run, name: str) -> None:
    assert run.xcom("outcome") == f"released: {name} version 1"
    assert world.catalog.ledger.champion(name) == run.xcom("evaluation.compare_with")["deployment"]


@pytest.mark.parametrize("task", ["sft.train", "policy.optimise"])
def test_an_adapter_lies_beside_the_merged_policy_and_leads_to_its_base(world: World, lora: Run, task: str) -> None:
    result = lora.xcom(task)
    base = {
        "sft.train": lora.xcom("base.import_base")["outputs"].get("base"),
        "policy.optimise": lora.xcom("sft.train")["outputs"]["policy"],
    }[task]
    folder = world.attempt_folder(result) / "output"
    told = json.loads((folder / "adapter/adapter_config.json").read_text())
    assert (told["base_model_name_or_path"], told["r"]) == (base["digest"], 16)
    adapter = world.catalog.lineage.trace(result["outputs"]["adapter"]["digest"])
    assert base["digest"] in {node.ref for _, node in adapter.made[0].inputs}
    assert base["digest"][:19] in lineage(world, adapter.ref)
    policy = world.catalog.lineage.trace(result["outputs"]["policy"]["digest"])
    assert dict(policy.made[0].inputs)["adapter"].ref == adapter.ref
    small, whole = ((folder / part).stat().st_size for part in ("adapter/adapter_model.safetensors", "policy/model.safetensors"))
    assert small < whole


def test_the_merged_policy_is_what_was_measured_and_released(world: World, lora: Run) -> None:
    champion_is_its_candidate(world, lora, "demo-lora")
    merged = lora.xcom("policy.optimise")["outputs"]["policy"]["digest"]
    assert spec_of(world, lora, "evaluation.measure").inputs["model_candidate"] == merged
    assert world.catalog.releases.deployment(lora.xcom("evaluation.compare_with")["deployment"])["weights"] == merged
    shown = lineage(world, "champion:demo-lora")
    assert f"adapter: adapter dpo/adapter  {lora.xcom('policy.optimise')['outputs']['adapter']['digest'][:19]}" in shown
    assert f"adapter: adapter sft/adapter  {lora.xcom('sft.train')['outputs']['adapter']['digest'][:19]}" in shown


def test_megatron_trained_sft_and_dpo_on_two_processes_each(world: World, megatron: Run) -> None:
    champion_is_its_candidate(world, megatron, "demo-megatron")
    for task, program in (("sft.train", "sft_megatron"), ("policy.optimise", "dpo_megatron")):
        spec, report = spec_of(world, megatron, task), world.report(megatron.xcom(task))
        assert (spec.program, spec.config["engine"]) == (f"include.training.{program}", "megatron")
        assert spec.environment == spec_of(world, megatron, "base.import_base").environment
        assert tasks_of(world, megatron, task) == 2
        assert report["last_step"] == report["asked_steps"]
        placement = json.loads((world.attempt_folder(megatron.xcom(task)) / "placement.json").read_text())
        assert placement["settings"]["tensor_parallel"] == 2


def test_an_ensemble_of_three_taught_ppo_by_its_minimum_and_the_policy_was_released(world: World, ensemble: Run) -> None:
    champion_is_its_candidate(world, ensemble, "demo-ensemble")
    trained = ensemble.xcom("reward_model.gate")["outputs"]
    members = [trained[name]["digest"] for name in ("reward_model", "reward_model_2", "reward_model_3")]
    assert len(set(members)) == 3
    for task in ("policy.optimise", "evaluation.measure"):
        inputs = spec_of(world, ensemble, task).inputs
        assert [inputs[name] for name in ("reward_model", "reward_model_2", "reward_model_3")] == members
    assert spec_of(world, ensemble, "policy.optimise").config["reward"]["combine"] == "minimum"
    assert spec_of(world, ensemble, "evaluation.measure").config["reward_hacking"]["combine"] == "minimum"


def test_every_member_is_registered_and_named_by_lineage_and_dossier(world: World, ensemble: Run) -> None:
    trained = ensemble.xcom("reward_model.gate")["outputs"]
    members = {out["digest"] for out in trained.values() if out["kind"] == "reward_model"}
    tracking = Tracking(world.stack.environment()["MLFLOW_TRACKING_URI"])
    versions = [tags_of(version) for version in tracking.versions("demo-ensemble-reward-model")]
    assert {tags["align.weights"] for tags in versions} == members
    assert sorted(tags["align.member"] for tags in versions) == ["1 of 3", "2 of 3", "3 of 3"]
    shown = lineage(world, "champion:demo-ensemble")
    assert all(member[:19] in shown for member in members)
    dossier = world.catalog.releases.dossier(ensemble.xcom("release.dossier", "digest"))
    assert set(dossier.body["reward_ensemble"]["members"]) == members


def test_a_generator_beside_ppo_drew_answers_of_earlier_weights_within_the_limit(world: World, ensemble: Run) -> None:
    result = ensemble.xcom("policy.optimise")
    lines = [json.loads(line) for line in (world.attempt_folder(result) / "metrics.jsonl").read_text().splitlines()]
    lags = [line["policy_lag_max"] for line in lines]
    assert len(lags) == world.report(result)["asked_steps"]
    assert 0 < max(lags) <= 1, lags


def test_sft_on_two_ranks_learnt_packed_rows_of_two_data_sets(world: World, megatron: Run, ensemble: Run) -> None:
    spec, report = spec_of(world, ensemble, "sft.train"), world.report(ensemble.xcom("sft.train"))
    assert tasks_of(world, ensemble, "sft.train") == 2
    assert (spec.config["zero_stage"], spec.config["packing"]) == (2, True)
    own = ensemble.xcom("data.build_datasets")["demonstrations"]["content_hash"]
    other = megatron.xcom("data.build_datasets")["demonstrations"]["content_hash"]
    assert own != other
    assert (spec.inputs["demonstrations"], spec.inputs["demonstrations_1"]) == (own, other)
    assert report["last_step"] == report["asked_steps"]
    shown = lineage(world, "champion:demo-ensemble")
    assert all(digest[:19] in shown for digest in (own, other))
