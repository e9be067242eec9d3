"""The bench of a run, and the plan of its evaluation, which more than one task holds results against."""

from collections.abc import Mapping
from typing import Any

from include.flows.errors import RecipeChanged
from include.settings.catalogue import cluster, recipe
from include.stages import programs
from include.stages.plan import Bench, Plan
from include.stages.refs import DatasetRef, ModelRef, StageResult

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
    """The model `name` of what a stage returned."""
    return StageResult.from_json(result).model(name)


def evaluation(bench: Bench, wanted: Json) -> Plan:
    """The plan of the evaluation that measures what is `wanted`."""
    reward = ModelRef.from_json(wanted["reward"]) if wanted.get("reward") else None
    further = [ModelRef.from_json(ref) for ref in wanted.get("reward_members", ())]
    models = {role: ModelRef.from_json(ref) for role, ref in wanted["models"].items()}
    suites = {name: DatasetRef.from_json(ref) for name, ref in wanted["suites"].items()}
    return programs.evaluate(bench, models, suites, wanted["suite_settings"], reward, wanted.get("released"), further)
