"""Registry and release: the dossier, the canary, the promotion, and the way back. The ledger first, aliases after."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from include.domain.canonical import canonical_bytes
from include.domain.outcomes import NotDone
from include.flows import services
from include.flows.errors import FlowError, Rejected
from include.flows.planners import model
from include.settings.catalogue import recipe
from include.stages.refs import DatasetRef

if TYPE_CHECKING:
    from include.stores.catalog.dossiers import Decision

Json = Mapping[str, Any]


def dataset_facts(datasets: Json) -> list[dict[str, Any]]:
    """Name, hash, licences and share of imported and synthetic rows of every dataset behind a release."""
    facts = []
    for ref in datasets.values():
        found = services.catalog().datasets.by_hash(ref["content_hash"])[0]
        info = found.info
        origins: Mapping[str, int] = info.get("origins", {})
        total = sum(origins.values())
        elsewhere = sum(n for origin, n in origins.items() if origin.startswith(("external:", "synthetic:")))
        facts.append(
            {
                "dataset": str(DatasetRef.from_json(ref)),
                "content_hash": ref["content_hash"],
                "licences": dict(info.get("licences", {})),
                "imported_share": round(elsewhere / total, 4) if total else 0.0,
            }
        )
    return sorted(facts, key=lambda fact: str(fact["dataset"]))


def evidence(run: Json, wanted: Json, gates: Json, datasets: Json) -> dict[str, Any]:
    """What is approved: rebuilt before the release, and any difference voids the approval."""
    found = recipe(run["recipe"])
    report = services.catalog().measurements.gate_report(gates["digest"])
    if report is None:
        raise FlowError(f"gate report {gates['digest']} is not in the catalog")
    stored = services.store().read_json(f"reports/gates/{gates['digest'].removeprefix('sha256:')}.json")
    if canonical_bytes(stored) != canonical_bytes(report.body):
        raise FlowError(f"gate report {gates['digest']} in the store differs from the catalog's: it was changed after it was made")
    return {
        "recipe": found.reference,
        "recipe_digest": found.digest,
        "deployment": wanted["deployment"],
        "gates": gates["digest"],
        "verdict": report.verdict,
        "policies": gates["policies"],
        "datasets": dataset_facts(datasets),
        "known_risks": list(gates["known_risks"]),
        "fallback": found.release.fallback,
        "canary": {"kind": found.release.canary, **found.shadow.model_dump(mode="json", include={"requests", "limits", "max_new_tokens"})},
        **({"reward_ensemble": ensemble} if (ensemble := reward_ensemble(run, wanted)) else {}),
    }


def reward_ensemble(run: Json, wanted: Json) -> dict[str, Any]:
    """The members of the reward ensemble that scored the candidate (and, by PPO, taught it) and how they become one; empty for one model."""
    others = wanted.get("reward_members") or []
    if not others:
        return {}
    return {
        "combine": recipe(run["recipe"]).ppo.reward.combine,
        "members": [wanted["reward"]["digest"], *(ref["digest"] for ref in others)],
    }


def dossier(run: Json, wanted: Json, policy: Json, gates: Json, datasets: Json, actor: str) -> dict[str, Any]:
    """Registers the candidate with all its evidence and files what a person is asked to approve."""
    from include.stores.catalog.releases import Dossier

    found, releases = recipe(run["recipe"]), services.catalog().releases
    name = found.release.registered_name
    body = evidence(run, wanted, gates, datasets)
    digest = releases.file_dossier(
        Dossier(
            name=name,
            deployment=wanted["deployment"],
            body=body,
            champion=wanted["champion"],
            approvals_needed=found.approval.count,
            demonstration=found.demonstration,
        )
    )
    others = list(run.get("also_requested_by", ()))
    decision = releases.ask(digest, run["run_id"], run["requested_by"], also=others, anew=bool(run.get("ask_again")))
    version = register_version(run, wanted, policy, gates, datasets)
    rejected = decision.state in ("rejected", "rolled_back")
    if not rejected:
        releases.propose(digest, actor)
        repair_aliases(name)
    return {
        "status": _standing_no(decision) if rejected else "open",
        "digest": digest,
        "title": f"{name} version {version}",
        "version": version,
        "text": _text(body, gates, wanted),
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
        "prompts": datasets["preference_prompts"],
    }


def _text(body: Json, gates: Json, wanted: Json) -> str:
    digest = body["deployment"]
    links = (
        f"[All that was judged and decided about it](/alignment/deployments/{digest})",
        f"[what it came from](/alignment/lineage?ref={digest})",
        "[what happened before](/alignment/ledger)",
    )
    lines = [" · ".join(links), "", gates["markdown"], "", "**Data**", ""]
    for fact in body["datasets"]:
        licences = ", ".join(fact["licences"]) or "–"
        lines.append(f"- {fact['dataset']}: {licences}; imported or synthetic {fact['imported_share']:.0%}")
    if ensemble := body.get("reward_ensemble"):
        lines += ["", f"**Reward ensemble**, its {ensemble['combine']}", "", *(f"- `{member}`" for member in ensemble["members"])]
    lines += [] if body["known_risks"] else ["", "No known risk is recorded."]  # else they stand below the gates
    lines += ["", f"Champion now: `{wanted['champion'] or NotDone.NO_CHAMPION}`. Canary: a shadow run on recorded prompts."]
    return "\n".join(lines)


def register_version(run: Json, wanted: Json, policy: Json, gates: Json, datasets: Json) -> int:
    """The MLflow version of this deployment: card, manifest, config and gates as artifacts, weights by URI and digest."""
    from include.stores.card import CardFacts, model_card
    from include.stores.catalog.render import render_node
    from include.stores.registry import ModelEntry

    found, catalog = recipe(run["recipe"]), services.catalog()
    done = catalog.runs.committed(policy["key"])
    if done is None:
        raise FlowError(f"{policy['key']} is not committed")
    out = done.outputs["policy"]
    run_id = services.registry().log_run(_stage_log(policy["key"], done))
    ensemble = reward_ensemble(run, wanted)
    name = found.release.registered_name
    facts = CardFacts(
        name=name,
        deployment=wanted["deployment"],
        weights=out.digest,
        recipe=found.reference,
        description=found.description,
        demonstration=found.demonstration,
        datasets=dataset_facts(datasets),
        gates_table=gates["markdown"],
        known_risks=list(gates["known_risks"]),
        lineage=render_node(catalog.lineage.trace(out.digest)),
        reward_models=ensemble.get("members") or ([wanted["reward"]["digest"]] if wanted.get("reward") else []),
        reward_combined=ensemble.get("combine"),
    )
    entry = ModelEntry(
        deployment=wanted["deployment"],
        weights=out.digest,
        weights_uri=f"{services.store().uri}/{out.path}",
        run_id=run_id,
        card=model_card(facts),
        manifest=services.store().outputs(policy["key"], done.attempt)["policy"].to_json(),
        config=found.model_dump(mode="json"),
        gates=catalog.measurements.gate_report(gates["digest"]).body,
        tags={"stage": "policy", "stage_key": policy["key"], "recipe": found.reference},
    )
    return int(services.registry().register(name, entry))


def _stage_log(key: str, done: Any) -> Any:
    from include.flows.after_commit import stage_log

    run = services.catalog().runs.get(key)
    if run is None:
        raise FlowError(f"{key} is not in the catalog")
    return stage_log(run.spec, done)


def start_canary(dossier_ref: Json, actor: str) -> dict[str, Any]:
    """Starts the canary, if the ledger holds the approvals of exactly this dossier; a task marked as success is no approval."""
    services.catalog().releases.canary_started(dossier_ref["digest"], actor)
    found = services.catalog().releases.dossier(dossier_ref["digest"])
    repair_aliases(found.name)
    return dict(dossier_ref["shadow"])


def promote(run: Json, wanted: Json, gates: Json, datasets: Json, dossier_ref: Json, observed: Json, actor: str) -> dict[str, Any]:
    """Takes the canary's observations, then releases: ledger, then aliases. Safe to do again after a crash at any line."""
    catalog, name = services.catalog(), recipe(run["recipe"]).release.registered_name
    seen = observations_of(observed)
    digest = dossier_ref["digest"]
    if seen["verdict"] != "passed":
        catalog.releases.canary_aborted(digest, actor, seen)
        repair_aliases(name)
        raise Rejected(f"the shadow run was aborted: {'; '.join(seen['reasons'])}")
    catalog.releases.canary_passed(digest, actor, seen)
    entry = catalog.releases.release(digest, evidence(run, wanted, gates, datasets), actor)
    if not catalog.ledger.entries(name=name, kind="anchor_set"):
        catalog.ledger.append("anchor_set", {"deployment": wanted["anchor"]}, actor, name=name, subject=wanted["anchor"])
    drift = repair_aliases(name)
    if (champion := catalog.ledger.champion(name)) != wanted["deployment"]:
        raise FlowError(f"{name}: {wanted['deployment']} was released (ledger {entry.seq}) and is not champion any more: {champion} is")
    head = catalog.ledger.head()
    print(f"{name}: {wanted['deployment']} is champion (ledger {entry.seq}, head {head['hash']}); aliases set: {drift or 'none'}")
    return {"name": name, "deployment": wanted["deployment"], "version": dossier_ref["version"], "ledger": {"seq": entry.seq, **head}}


def observations_of(result: Json) -> dict[str, Any]:
    """observations.json of a committed shadow run."""
    store = services.store()
    done = services.catalog().runs.committed(result["key"])
    if done is None:
        raise FlowError(f"{result['key']} is not committed")
    out = done.outputs["observations"]
    store.verify_small(out.path, store.outputs(result["key"], done.attempt)["observations"], limit_bytes=64 << 20)
    found: dict[str, Any] = store.read_json(f"{out.path}/observations.json")
    return found


def rollback(name: str, why: str, actor: str, request_id: str) -> dict[str, Any]:
    """Puts the newest untainted earlier deployment whose bytes are there back, in one step."""
    catalog, store = services.catalog(), services.store()

    def whole(deployment_digest: str) -> bool:
        weights = catalog.releases.deployment(deployment_digest)["weights"]
        try:
            path = catalog.artifacts.locate(weights, store.uri)
            manifest = next(m for m in _manifests_at(path) if m.digest == weights)
            store.check_sizes(path, manifest)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with its bytes, this one is no way back; the next is tried
            print(f"{deployment_digest} cannot be put back: {error}")
            return False
        return True

    entry = catalog.releases.rollback(name, request_id, actor, why, verify=whole)
    drift = repair_aliases(name)
    champion = catalog.ledger.champion(name)
    print(f"{name}: champion is {champion} again (ledger {entry.seq}); aliases set: {drift or 'none'}")
    return {"name": name, "champion": champion, "ledger_seq": entry.seq}


def _manifests_at(path: str) -> list[Any]:
    """The manifests of the attempt whose output lies at `path` (runs/<key>/attempts/<name>/output/<artifact>)."""
    from include.domain.manifest import Manifest

    folder = path.rsplit("/", 1)[0]
    outputs = services.store().read_json(f"{folder}/manifest.json")
    return [Manifest.from_json(item) for item in outputs["artifacts"].values()]


def candidate_digest(run: Json, policy: Json) -> str:
    return model(policy, "policy").digest
