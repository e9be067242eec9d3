"""The papers of a released, or to be released, version in MLflow: card, gate report and tags, made from the dossier and the ledger alone.

They are written when the candidate is registered, and again after each approval, canary, release and rollback: the same facts give the
same papers, so writing them again after a crash changes nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from include.flows import services
from include.flows.errors import FlowError
from include.flows.evidence import fallback_words
from include.flows.measured import committed
from include.settings.catalogue import recipe
from include.settings.errors import SettingsError

if TYPE_CHECKING:
    from include.stores.catalog.ledger import Entry
    from include.stores.catalog.releases import Dossier
    from include.stores.registry import ModelEntry, Papers

TOLD = ("approved", "rejected", "no_answer", "canary_started", "canary_passed", "canary_aborted", "released", "rolled_back")


def entry_of(dossier: "Dossier", key: str) -> "ModelEntry":
    """The MLflow version of a dossier's deployment, whose weights the policy run `key` made: papers as artifacts, weights by URI and digest."""
    from include.stores.registry import ModelEntry

    catalog, store = services.catalog(), services.store()
    done = catalog.runs.committed(key)
    if done is None:
        raise FlowError(f"{key} is not committed")
    out, papers = done.outputs["policy"], papers_of(dossier)
    return ModelEntry(
        deployment=dossier.deployment,
        weights=out.digest,
        weights_uri=f"{store.uri}/{out.path}",
        run_id=services.registry().log_run(_stage_log(key, done)),
        card=papers.card,
        manifest=committed(key, "policy")[1].to_json(),
        config=recipe(_recipe_name(dossier)).model_dump(mode="json"),
        gates=papers.gates,
        tags={"stage": "policy", "stage_key": key, "recipe": dossier.body["recipe"], **tags_of(dossier)},
    )


def _stage_log(key: str, done: Any) -> Any:
    from include.flows.after_commit import stage_log

    run = services.catalog().runs.get(key)
    if run is None:
        raise FlowError(f"{key} is not in the catalog")
    return stage_log(run.spec, done)


def renew(dossier: "Dossier") -> None:
    """Writes the papers of the dossier's version as they are now."""
    if services.registry().renew(dossier.name, dossier.deployment, papers_of(dossier), tags_of(dossier)):
        print(f"{dossier.name}: the papers of {dossier.deployment} say what is decided now")


def renew_deployment(deployment: str, name: str) -> None:
    """As `renew`, for the last dossier of a deployment; one that came from elsewhere has none."""
    if mine := [found for found in services.catalog().releases.dossiers_of(deployment) if found.name == name]:
        renew(mine[-1])


def papers_of(dossier: "Dossier") -> "Papers":
    """Card and gate report."""
    from include.gates.render import markdown
    from include.gates.results import report_from
    from include.stores.card import CardFacts, model_card
    from include.stores.catalog.render import render_node
    from include.stores.registry import Papers

    catalog, body = services.catalog(), dossier.body
    report = catalog.measurements.gate_report(body["gates"])
    if report is None:
        raise FlowError(f"gate report {body['gates']} is not in the catalog")
    weights = str(catalog.releases.deployment(dossier.deployment)["weights"])
    facts = CardFacts(
        name=dossier.name,
        deployment=dossier.deployment,
        weights=weights,
        recipe=body["recipe"],
        description=_description(dossier),
        demonstration=dossier.demonstration,
        datasets=body["datasets"],
        gates_table=markdown(report_from(report.body)),
        known_risks=body["known_risks"],
        lineage=render_node(catalog.lineage.trace(weights)),
        waivers=body.get("waivers", ()),
        reward_models=body.get("reward_models", ()),
        reward_combined=body.get("reward_ensemble", {}).get("combine"),
        base=body.get("base", {}),
        fallback=fallback_words(body["fallback"]) if body.get("fallback") else "",
        decisions=[sentence(entry) for entry in history(dossier)],
    )
    return Papers(model_card(facts), report.body)


def _recipe_name(dossier: "Dossier") -> str:
    return str(dossier.body["recipe"]).partition("@")[0]


def _description(dossier: "Dossier") -> str:
    """The recipe's own words; a recipe that is gone, or another version by now, has none to give."""
    try:
        return recipe(str(dossier.body["recipe"])).description
    except SettingsError:
        return ""


def history(dossier: "Dossier") -> list["Entry"]:
    """What was decided about the dossier's deployment under its name, oldest first; a rollback from it as well as one to it."""
    mine = dossier.deployment

    def about(entry: "Entry") -> bool:
        undone = entry.kind == "rolled_back" and entry.payload.get("previous") == mine
        return entry.kind in TOLD and (undone or entry.payload.get("deployment") == mine)

    return [entry for entry in services.catalog().ledger.history(dossier.name) if about(entry)]


def sentence(entry: "Entry") -> str:
    """A row of the ledger in words."""
    said: Mapping[str, Any] = entry.payload
    who = said.get("person") or entry.actor
    demo = " (demonstration account)" if said.get("account") == "demonstration" else ""
    observed = said.get("observed") or {}
    why = said.get("comment") or said.get("why") or "; ".join(observed.get("reasons", ())) or ""
    what = entry.kind.replace("_", " ")
    if entry.kind == "rolled_back":
        what += f" from `{said['previous']}` to `{said['deployment']}`"
    return f"{entry.at[:19].replace('T', ' ')} UTC: {what} by {who}{demo}{f': {why}' if why else ''} (ledger row {entry.seq})"


def tags_of(dossier: "Dossier") -> dict[str, str]:
    """What a version's tags say of the last that was decided, each ``align.…``."""
    catalog, body = services.catalog(), dossier.body
    rows = history(dossier)
    decision = catalog.releases.decision(dossier.digest)
    canaries = [row for row in rows if row.kind.startswith("canary_")]
    releases = [row for row in rows if row.kind in ("released", "rolled_back")]
    champion = catalog.ledger.champion(dossier.name) == dossier.deployment
    tags = {
        "dossier": dossier.digest,
        "gates": body["gates"],
        "approval": decision.state if decision else "nobody was asked",
        "approved_by": ", ".join(decision.approved_by) if decision else "",
        "canary": canaries[-1].kind if canaries else "none",
        "release": "champion" if champion else (releases[-1].kind if releases else "not released"),
    }
    head = catalog.ledger.head()
    return {name: value or "–" for name, value in tags.items()} | ({"ledger_head": f"{head['seq']} {head['hash']}"} if releases else {})
