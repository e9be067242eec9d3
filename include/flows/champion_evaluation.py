"""Evaluating what was champion at an instant: by the ledger, with the suite of then or of now."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from include.domain.layout import dataset_dir
from include.domain.manifest import MANIFEST
from include.domain.outcomes import NotDone
from include.domain.spec import RunSpec
from include.flows import services
from include.flows.apart import require_suites_apart
from include.flows.benches import bench_of, evaluation
from include.flows.errors import FlowError
from include.flows.evaluation_tasks import keep_report, released_model
from include.flows.measured import gate_set, measurements_of
from include.flows.skipping import say_and_skip
from include.settings.catalogue import recipe, versioned
from include.stages.refs import DatasetRef, ModelRef

Json = Mapping[str, Any]


def champion_then(params: Json, dag_run: Any, instant: datetime | None) -> dict[str, Any]:
    """The champion at the end of the data interval (now, when a run has none), ready to be measured.

    Ends as *no champion* or *not evaluable* where there was none, or where its weights or a suite are gone.
    """
    found = recipe(str(params["recipe"]))
    at = instant or datetime.now(UTC)
    name = found.release.registered_name
    deployment = services.catalog().ledger.champion_at(name, at)
    if deployment is None:
        say_and_skip(f"{NotDone.NO_CHAMPION}: {name} had none at {at.isoformat()}")
    spec = release_evaluation(str(deployment))
    models = {role: _model_of(spec, role) for role in _roles(spec)}
    models["candidate"] = released_model(str(deployment))[0].to_json()
    for role, ref in models.items():
        _still_there(f"the weights of {role}", ref["digest"], "config.json")
    run = {
        "recipe": found.name,
        "recipe_digest": found.digest,
        "method": found.method,
        "requested_by": getattr(dag_run, "triggering_user_name", None) or found.owner,
        "run_id": dag_run.run_id,
        "dag_id": dag_run.dag_id,
    }
    wanted = {
        "deployment": deployment,
        "as_of": at.isoformat(),
        "suite": params["suite"],
        "models": models,
        "released": {role: spec.config["deployments"][role] for role in models},
        **_rewards_of(spec),
        **_suites(found.evaluation.suites, spec, str(params["suite"]), f"{found.data.project}-"),
    }
    for name, suite in wanted["suites"].items():
        _still_there(f"suite {name}", suite["artifact"], MANIFEST)
    if params["suite"] == "now":
        require_suites_apart(run, wanted["suites"], data_behind({ref["digest"] for ref in models.values()}))
    return {"run": run, "wanted": wanted}


def data_behind(weights: Iterable[str]) -> dict[str, Json]:
    """The dataset versions behind these models, by name. Ends as *not evaluable* where one is gone: whether a suite of today was
    trained on cannot be known then."""
    catalog, store = services.catalog(), services.store()
    refs = {node.ref for digest in weights for node in catalog.lineage.trace(digest).walk()}
    versions = [v for ref in sorted(refs) for v in catalog.datasets.by_hash(ref)[:1] if v.row_kind != "suite"]
    for version in versions:
        if not store.exists(f"{dataset_dir(version.content_hash)}/{MANIFEST}"):
            say_and_skip(f"{NotDone.NOT_EVALUABLE}: {version.name}, which was trained on, is gone: take the suite of then")
    return {version.name: DatasetRef.of(version).to_json() for version in versions}


def release_evaluation(deployment: str) -> RunSpec:
    """The specification of the evaluation run that first measured `deployment`."""
    catalog = services.catalog()
    for measurement in catalog.measurements.of(deployment):
        run = catalog.runs.get(measurement.run_key)
        if run is not None and run.spec.config["deployments"].get("candidate", {}).get("digest") == deployment:
            found: RunSpec = run.spec
            break
    else:
        why = f"no evaluation of {deployment} is on record: it was released from elsewhere, or the catalog is not whole"
        say_and_skip(f"{NotDone.NOT_EVALUABLE}: {why}")
    return found


def _roles(spec: RunSpec) -> list[str]:
    return [name.removeprefix("model_") for name in spec.inputs if name.startswith("model_")]


def _model_of(spec: RunSpec, role: str) -> dict[str, Any]:
    body = spec.config["deployments"][role]
    return ModelRef("model", spec.inputs[f"model_{role}"], body["tokenizer"], body["chat_template"]).to_json()


def _rewards_of(spec: RunSpec) -> dict[str, Any]:
    """The reward model with which that evaluation scored, and the other members where it was an ensemble."""
    names = sorted((n for n in spec.inputs if n.startswith("reward_model")), key=lambda n: (len(n), n))
    refs = [ModelRef("reward_model", spec.inputs[name], str(spec.tokenizer), str(spec.chat_template)).to_json() for name in names]
    return {"reward": refs[0] if refs else None, "reward_members": refs[1:]}


def _still_there(what: str, digest: str, file: str) -> None:
    """Ends as *not evaluable* where an artifact was erased, or has no place in this store any more; `file`: what each of its kind has."""
    from include.stores.errors import NotFound

    store = services.store()
    try:
        path = services.catalog().artifacts.locate(digest, store.uri)
    except NotFound as error:
        say_and_skip(f"{NotDone.NOT_EVALUABLE}: {what}: {error}")
    if not store.exists(f"{path}/{file}"):
        say_and_skip(f"{NotDone.NOT_EVALUABLE}: {what} ({digest}): it is gone from {path}")


def _suites(reference: str, spec: RunSpec, which: str, prefix: str) -> dict[str, Any]:
    """Suites as the release measured them (then), or the newest versions with today's settings (now)."""
    datasets = services.catalog().datasets
    if which == "then":
        hashes = {name.removeprefix("suite_"): value for name, value in spec.inputs.items() if name.startswith("suite_")}
        found = {name: datasets.by_hash(value)[0] for name, value in hashes.items()}
        return {
            "suites": {name: DatasetRef.of(version).to_json() for name, version in found.items()},
            "suite_settings": dict(spec.config["suites"]),
        }
    today = versioned("suites", reference)["suites"]
    latest = {name: datasets.latest(prefix + item["dataset"]) for name, item in today.items()}
    newest = {name: version for name, version in latest.items() if version is not None}
    if missing := sorted(set(latest) - set(newest)):
        raise FlowError(f"suites {', '.join(missing)} have no version yet: run build_dataset")
    settings = {name: {k: v for k, v in item.items() if k != "dataset"} for name, item in today.items()}
    return {"suites": {name: DatasetRef.of(version).to_json() for name, version in newest.items()}, "suite_settings": settings}


def judge_champion(chosen: Json, measured: Json) -> dict[str, Any]:
    """The verdict of today's gate code on that champion, kept beside every earlier one. It lets nothing through and stops nothing."""
    from include.gates.expected import expected_from
    from include.gates.judge import judge
    from include.gates.render import table
    from include.gates.tables import table_from

    run, wanted = chosen["run"], chosen["wanted"]
    spec = evaluation(bench_of(run), wanted).spec
    gates = gate_set(run)
    report = judge(gates, table_from(measurements_of(measured)), expected_from(spec))
    keep_report(report, wanted["deployment"], policies_digest=gates.digest, purpose="backfill", as_of=wanted["as_of"])
    print(f"{wanted['deployment']}, champion at {wanted['as_of']}, suite as {wanted['suite']}\n{table(report)}")
    return {
        "deployment": wanted["deployment"],
        "as_of": wanted["as_of"],
        "gates": report.digest,
        "passed": report.passed,
        "suite": wanted["suite"],
    }
