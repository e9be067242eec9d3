"""From the JSON that travels between tasks to the plan of a stage."""

from collections.abc import Callable, Mapping
from typing import Any

from include.flows import services
from include.flows.errors import FlowError, RecipeChanged
from include.settings.catalogue import cluster, recipe
from include.stages import programs
from include.stages.plan import Bench, Plan
from include.stages.refs import DatasetRef, FileRef, ModelRef, StageResult

Json = Mapping[str, Any]


def bench_of(run: Json) -> Bench:
    """The bench of a run, as `resolve` recorded it; a recipe that has changed since is refused."""
    found = recipe(run["recipe"])
    if found.digest != run["recipe_digest"]:
        raise RecipeChanged(
            f"recipe {run['recipe']} has changed since this run began ({run['recipe_digest'][:19]} → {found.digest[:19]}): "
            "start a new run, or put the recipe back"
        )
    return Bench(found, cluster(), rerun_salt=run.get("rerun_salt", ""), note={"requested_by": run["requested_by"]})


def model(result: Json, name: str) -> ModelRef:
    return StageResult.from_json(result).model(name)


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
    wanted = given["wanted"]
    reward = ModelRef.from_json(wanted["reward"]) if wanted.get("reward") else None
    further = [ModelRef.from_json(ref) for ref in wanted.get("reward_members", ())]
    models = {role: ModelRef.from_json(ref) for role, ref in wanted["models"].items()}
    suites = {name: DatasetRef.from_json(ref) for name, ref in wanted["suites"].items()}
    return programs.evaluate(bench, models, suites, wanted["suite_settings"], reward, wanted.get("released"), further)


def _judge(bench: Bench, run: Json, given: Json) -> Plan:
    from include.flows.model_judge import asked_of

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
