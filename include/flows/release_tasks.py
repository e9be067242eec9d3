"""Registry and release: the dossier, the canary, the promotion. The ledger first, aliases and papers after."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from include.domain.outcomes import NotDone
from include.flows import services
from include.flows.benches import model
from include.flows.errors import FlowError, Rejected
from include.flows.evidence import evidence, question
from include.flows.measured import committed_file
from include.settings.catalogue import recipe

if TYPE_CHECKING:
    from include.stores.catalog.dossiers import Decision

Json = Mapping[str, Any]


def dossier(run: Json, wanted: Json, policy: Json, gates: Json, datasets: Json, actor: str) -> dict[str, Any]:
    """Registers the candidate with all its evidence and files what a person is asked to approve."""
    from include.flows.papers import entry_of
    from include.stores.catalog.releases import Dossier

    found, releases = recipe(run["recipe"]), services.catalog().releases
    name = found.release.registered_name
    body = evidence(run, wanted, gates, datasets)
    made = Dossier(name, wanted["deployment"], body, wanted["champion"], found.approval.count, found.demonstration)
    digest = releases.file_dossier(made)
    others = list(run.get("also_requested_by", ()))
    decision = releases.ask(digest, run["run_id"], run["requested_by"], also=others, anew=bool(run.get("ask_again")))
    version = int(services.registry().register(name, entry_of(made, policy["key"])))
    rejected = decision.state in ("rejected", "rolled_back")
    if not rejected:
        releases.propose(digest, actor)
        repair_aliases(name)
    return {
        "status": _standing_no(decision) if rejected else "open",
        "digest": digest,
        "title": f"{name} version {version}",
        "version": version,
        "text": question(body, gates, wanted["champion"], NotDone.NO_CHAMPION),
        "approvers": list(found.approval.approvers),
        "demonstration_accounts": list(found.approval.demonstration_accounts),
        "requested_by": run["requested_by"],
        "also_requested_by": others,
        "timeout_hours": found.approval.timeout_hours,
        "seats": list(range(found.approval.count)),
        "shadow": shadow_wanted(wanted, datasets),
    }


def _standing_no(decision: "Decision") -> str:
    """A no, or a rollback from a release of this very dossier: both stand until a person asks anew."""
    if decision.state == "rejected":
        return str(NotDone.ALREADY_REJECTED)
    return f"{NotDone.ALREADY_REJECTED}: {decision.decided_by} took this very release back ({decision.why}); to have it looked at again, ask anew"


def repair_aliases(name: str) -> str:
    """Makes MLflow's aliases say what the ledger says; gives what was put right, in words."""
    drifts = services.registry().repair(services.catalog().ledger, name)
    said = [f"{d.alias}: {d.was or 'none'} → {d.now or 'none'}" + (f" ({d.problem})" if d.problem else "") for d in drifts]
    print(f"{name}: aliases {'; '.join(said) or 'as the ledger has them'}")
    return "; ".join(said)


def shadow_wanted(wanted: Json, datasets: Json) -> dict[str, Any]:
    role = "champion" if wanted["champion"] else "sft"
    return {
        "candidate": wanted["models"]["candidate"],
        "other": wanted["models"][role],
        "other_role": role,
        "other_deployment": (wanted.get("released") or {}).get(role),
        "prompts": datasets["preference_prompts"],
    }


def start_canary(dossier_ref: Json, actor: str) -> dict[str, Any]:
    """Starts the canary, if the ledger holds the approvals of exactly this dossier; a task marked as success is no approval."""
    from include.flows.papers import renew

    services.catalog().releases.canary_started(dossier_ref["digest"], actor)
    found = services.catalog().releases.dossier(dossier_ref["digest"])
    repair_aliases(found.name)
    renew(found)
    return dict(dossier_ref["shadow"])


def promote(run: Json, wanted: Json, gates: Json, datasets: Json, dossier_ref: Json, observed: Json, actor: str) -> dict[str, Any]:
    """Takes the canary's observations, then releases: ledger, then aliases and papers. Safe to do again after a crash at any line."""
    from include.flows.ledger_heads import check_ledger, keep_head
    from include.flows.papers import renew, renew_deployment

    catalog, name, deployment = services.catalog(), recipe(run["recipe"]).release.registered_name, wanted["deployment"]
    check_ledger(name)
    seen = observations_of(observed)
    digest = dossier_ref["digest"]
    if seen["verdict"] != "passed":
        catalog.releases.canary_aborted(digest, actor, seen)
        repair_aliases(name)
        renew(catalog.releases.dossier(digest))
        words = f"the shadow run was aborted: {'; '.join(seen['reasons'])}"
        raise Rejected(words, f"{NotDone.REJECTED}: {words}")
    catalog.releases.canary_passed(digest, actor, seen)
    entry = catalog.releases.release(digest, evidence(run, wanted, gates, datasets), actor)
    if not catalog.ledger.entries(name=name, kind="anchor_set"):
        catalog.ledger.append("anchor_set", {"deployment": wanted["anchor"]}, actor, name=name, subject=wanted["anchor"])
    drift = repair_aliases(name)
    if (champion := catalog.ledger.champion(name)) != deployment:
        raise FlowError(f"{name}: {deployment} was released (ledger {entry.seq}) and is not champion any more: {champion} is")
    head = keep_head()
    renew(catalog.releases.dossier(digest))
    if entry.payload["previous"]:
        renew_deployment(entry.payload["previous"], name)
    print(f"{name}: {deployment} is champion (ledger {entry.seq}, head {head['hash']}); aliases set: {drift or 'none'}")
    return {"name": name, "deployment": deployment, "version": dossier_ref["version"], "ledger": {**head, "seq": entry.seq}}


def observations_of(result: Json) -> dict[str, Any]:
    """observations.json of a committed shadow run."""
    return committed_file(result["key"], "observations", "observations.json")


def candidate_digest(run: Json, policy: Json) -> str:
    return model(policy, "policy").digest
