"""From the JSON that travels between tasks to the plan of a stage."""

from collections.abc import Callable, Mapping
from typing import Any

from include.flows import services
from include.flows.benches import bench_of, evaluation, model
from include.flows.errors import FlowError
from include.flows.model_judge import asked_of
from include.stages import programs
from include.stages.plan import Bench, Plan
from include.stages.refs import DatasetRef, FileRef, ModelRef, StageResult

Json = Mapping[str, Any]


def _base_import(bench: Bench, run: Json, given: Json) -> Plan:
    return programs.base_import(bench, FileRef.from_json(given["source"]))


def _sft(bench: Bench, run: Json, given: Json) -> Plan:
    mixture = bench.recipe.sft.mixture
    names = [part.dataset for part in mixture.parts if part.dataset != "own"] if mixture else []
    own = DatasetRef.from_json(given["datasets"]["demonstrations"])
    return programs.sft(bench, model(given["base"], "base"), own, {name: _in_catalog(name) for name in names})


def _in_catalog(name: str) -> DatasetRef:
    """The data set version `name` (id@3) as the catalog knows it."""
    return DatasetRef.of(services.catalog().datasets.resolve(name))


def _generate(bench: Bench, run: Json, given: Json) -> Plan:
    return programs.generate(bench, model(given["sft"], "policy"), DatasetRef.from_json(given["datasets"]["preference_prompts"]))


def _reward_model(bench: Bench, run: Json, given: Json) -> Plan:
    return programs.reward_model(bench, model(given["sft"], "policy"), DatasetRef.from_json(given["pairs"]["reward_pairs"]))


def _policy(bench: Bench, run: Json, given: Json) -> Plan:
    sft = model(given["sft"], "policy")
    if run["method"] == "ppo":
        reward, prompts = StageResult.from_json(given["reward"]), DatasetRef.from_json(given["datasets"]["rl_prompts"])
        return programs.ppo(bench, sft, reward.model("reward_model"), prompts, reward.further("reward_model"))
    return programs.dpo(bench, sft, DatasetRef.from_json(given["pairs"]["preferences"]))


def _evaluate(bench: Bench, run: Json, given: Json) -> Plan:
    return evaluation(bench, given["wanted"])


def _judge(bench: Bench, run: Json, given: Json) -> Plan:
    wanted, measured = given["wanted"], given["measured"]
    asked = asked_of(run, wanted, measured)
    suites = {name: DatasetRef.from_json(wanted["suites"][name]) for name in sorted({pair["suite"] for pair in asked.pairs})}
    return programs.judge(bench, StageResult.from_json(measured).artifact("answers"), suites, asked)


def _shadow(bench: Bench, run: Json, given: Json) -> Plan:
    wanted = given["wanted"]
    other, role = ModelRef.from_json(wanted["other"]), wanted["other_role"]
    candidate, prompts = ModelRef.from_json(wanted["candidate"]), DatasetRef.from_json(wanted["prompts"])
    return programs.shadow(bench, candidate, other, role, prompts, wanted.get("other_deployment"))


PLANNERS: Mapping[str, Callable[[Bench, Json, Json], Plan]] = {
    "base_import": _base_import,
    "sft": _sft,
    "generate": _generate,
    "reward_model": _reward_model,
    "policy": _policy,
    "evaluate": _evaluate,
    "judge": _judge,
    "shadow": _shadow,
}


def plan(stage: str, run: Json, given: Json) -> Plan:
    """The plan of `stage` in this run, from what earlier tasks returned."""
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise FlowError(f"{stage}: {', '.join(missing)} came without a result; clear the task that should give it")
    return PLANNERS[stage](bench_of(run), run, given)
