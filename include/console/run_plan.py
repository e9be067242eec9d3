"""A request resolved: the state from which `align_policy` starts, and the key of the stage run that it asks for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from include.console import references
from include.console.run_body import FieldRefused, RunBody
from include.settings.catalogue import cluster, versioned
from include.settings.recipes import Recipe
from include.stages.errors import StageError
from include.stages.refs import DatasetRef

if TYPE_CHECKING:
    from include.stores.catalog import Catalog

ROWS = {"dpo": "pair", "ppo": "prompt"}


@dataclass(frozen=True)
class Resolved:
    """What is kept of a request beside its own words. `state` is what the DAG is started with; `key` as the code is now."""

    config: dict[str, Any]
    state: dict[str, Any]
    key: str

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def resolve(opened: "Catalog", body: RunBody, who: str) -> Resolved:
    """Checks every reference of `body` against the catalog.

    Raises:
        FieldRefused: naming the first field that cannot be honoured, and why.
    """
    recipe = references.configuration(opened, body.config)
    sft = references.checkpoint(opened, "baseCheckpoint", body.baseCheckpoint, "sft", "policy")
    reference = references.checkpoint(opened, "referenceCheckpoint", body.referenceCheckpoint, "sft", "policy")
    if reference.digest != sft.digest:
        words = "align_policy takes the base checkpoint as its reference too; a reference of its own cannot be honoured: name the same"
        raise FieldRefused("referenceCheckpoint", words)
    data = references.dataset(opened, "dataset", body.dataset, ROWS[body.type], recipe.data.project)
    reward = references.reward_model(opened, body.rewardModel, sft, gate_required=recipe.reward_gate.required)
    base = _base(opened, sft)
    datasets = _datasets(opened, recipe, sft)
    state = {
        "run": _run(recipe, body, who),
        "base": base.result.to_json(),
        "sft": sft.result.to_json(),
        "reward": reward.result.to_json(),
        "pairs": {"preferences": data.to_json()} if body.type == "dpo" else {},
        # What was learnt from is among them: evaluation looks that its suites are apart from it, the dossier names its licences.
        "datasets": datasets | {"rl_prompts" if body.type == "ppo" else "preferences": data.to_json()},
    }
    config = {"reference": recipe.reference, "digest": recipe.digest, "body": recipe.model_dump(mode="json")}
    return Resolved(config, state, _key(recipe, body, sft, reward, data, who))


def _run(recipe: Recipe, body: RunBody, who: str) -> dict[str, Any]:
    """As `resolve` of the whole chain records it; run and DAG ids are set by the DAG itself."""
    return {
        "recipe": recipe.name,
        "recipe_digest": recipe.digest,
        "method": body.type,
        "auto": False,
        "ask_again": False,
        "rerun_salt": "",
        "requested_by": who,
        "run_id": "",
        "dag_id": "",
    }


def _base(opened: "Catalog", sft: references.Checkpoint) -> references.Checkpoint:
    digest = sft.inputs.get("base", "")
    return references.checkpoint(opened, "baseCheckpoint", digest, "base_import", "base")


def _datasets(opened: "Catalog", recipe: Recipe, sft: references.Checkpoint) -> dict[str, Any]:
    """What the phases after this one read: the demonstrations behind the SFT model, and the newest of every other set by name."""
    suites = versioned("suites", recipe.evaluation.suites)["suites"]
    names = {"preference_prompts", *(item["dataset"] for item in suites.values())}
    found: dict[str, Any] = {}
    for name in sorted(names):
        newest = opened.datasets.latest(f"{recipe.data.project}-{name}")
        if newest is None:
            words = f"{recipe.reference} measures on {recipe.data.project}-{name}, which is not in the catalog: run build_dataset"
            raise FieldRefused("config", words)
        found[name] = DatasetRef.of(newest, counted=True).to_json()
    for name in (name for name in sft.inputs if name.startswith("demonstrations")):  # of a mixture, more than one
        for version in opened.datasets.by_hash(sft.inputs[name])[:1]:
            found[name] = DatasetRef.of(version, counted=True).to_json()
    return found


def _key(recipe: Recipe, body: RunBody, sft: Any, reward: Any, data: Any, who: str) -> str:
    from include.stages import programs
    from include.stages.plan import Bench

    bench, policy = Bench(recipe, cluster(), note={"requested_by": who}), sft.result.model("policy")
    try:
        if body.type == "ppo":
            return programs.ppo(bench, policy, reward.result.model("reward_model"), data, reward.result.further("reward_model")).key
        return programs.dpo(bench, policy, data).key
    except StageError as error:
        raise FieldRefused("rewardModel", str(error)) from error
