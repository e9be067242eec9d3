"""What a person is asked to approve, and what is rebuilt before the release: recipe, base, data learnt from, gates, risks, fallback, canary."""

from collections.abc import Mapping
from typing import Any

from include.domain.canonical import canonical_bytes, hex_of
from include.flows import services
from include.flows.errors import FlowError
from include.settings.catalogue import recipe
from include.settings.recipes import Recipe
from include.stages.refs import DatasetRef

Json = Mapping[str, Any]


def learnt_from(*results: Json) -> dict[str, Json]:
    """Every dataset version among the inputs of the runs behind `results`, by the runs' own word: demonstrations of a mixture, the
    pairs that a reward model and DPO learnt from, PPO's prompts. Name: ``<input> of <stage>``."""
    catalog = services.catalog()
    found: dict[str, Json] = {}
    for result in results:
        if (run := catalog.runs.get(str(result["key"]))) is None:
            continue
        for name, value in sorted(run.spec.inputs.items()):
            for version in catalog.datasets.by_hash(value)[:1]:
                found[f"{name} of {run.spec.stage}"] = DatasetRef.of(version).to_json()
    return found


def together(datasets: Json, learnt: Json) -> dict[str, Json]:
    """Both, each content once."""
    known = {ref["content_hash"] for ref in datasets.values()}
    return {**datasets, **{name: ref for name, ref in learnt.items() if ref["content_hash"] not in known}}


def dataset_facts(datasets: Json) -> list[dict[str, Any]]:
    """Name, hash, licences, and shares of imported and of synthetic rows of every dataset behind a release, each content once."""
    from include.stores.catalog.facts import shares

    facts = {}
    for ref in datasets.values():
        info = services.catalog().datasets.by_hash(ref["content_hash"])[0].info
        facts[ref["content_hash"]] = {
            "dataset": str(DatasetRef.from_json(ref)),
            "content_hash": ref["content_hash"],
            "licences": dict(info.get("licences", {})),
            "imported_share": 0.0,
            "synthetic_share": 0.0,
            **{name: round(value, 4) for name, value in shares(info.get("origins") or {}).items()},
        }
    return sorted(facts.values(), key=lambda fact: str(fact["dataset"]))


def base_facts(found: Recipe, wanted: Json) -> dict[str, Any]:
    """The base's weights, where they come from and under which licence, as its import recorded it."""
    base, source = wanted["models"].get("base") or {}, found.base_source
    run = services.catalog().runs.get(str(wanted.get("base_key") or ""))
    note = run.spec.note if run else {}
    stated = {
        "name": source.repository or source.path or f"{source.kind} from seed {source.seed}",
        "revision": source.revision,
        "licence": source.licence or ("own (generated here)" if source.kind == "generated" else None),
    }
    if note.get("recipe", found.reference).partition("@")[0] != found.name:  # an API request may name another recipe than made the base
        stated = dict.fromkeys(stated)
    told = {name: note[f"base_{name}"] for name in stated if note.get(f"base_{name}")}
    return {"weights": base.get("digest"), **stated, **told}


def fallback_of(found: Recipe, wanted: Json) -> dict[str, Any] | None:
    """What answers uncertain long-tail inputs, as policy: a deployment by role and digest, or the recipe's own words and their owner."""
    chosen = found.release.fallback
    if chosen is None:
        return None
    if not isinstance(chosen, str):
        return {"to": "own", "policy": chosen.policy, "owner": chosen.owner}
    deployments = {**wanted.get("deployments", {}), "champion": wanted["champion"], "anchor": wanted.get("anchor")}
    return {"to": chosen, "deployment": deployments.get(chosen)}


def evidence(run: Json, wanted: Json, gates: Json, datasets: Json) -> dict[str, Any]:
    """What is approved: rebuilt before the release, and any difference voids the approval."""
    found = recipe(run["recipe"])
    report = services.catalog().measurements.gate_report(gates["digest"])
    if report is None:
        raise FlowError(f"gate report {gates['digest']} is not in the catalog")
    stored = services.store().read_json(f"reports/gates/{hex_of(gates['digest'])}.json")
    if canonical_bytes(stored) != canonical_bytes(report.body):
        raise FlowError(f"gate report {gates['digest']} in the store differs from the catalog's: it was changed after it was made")
    base = base_facts(found, wanted)
    risks = [] if base["licence"] else ["licence: that of the base is not stated"]
    return {
        "recipe": found.reference,
        "recipe_digest": found.digest,
        "deployment": wanted["deployment"],
        "gates": gates["digest"],
        "verdict": report.verdict,
        "policies": gates["policies"],
        "base": base,
        "datasets": dataset_facts(together(datasets, wanted.get("learnt_from", {}))),
        "known_risks": [*gates["known_risks"], *risks],
        "waivers": [f"{r['name']}: {r['waived']}" for r in report.body["results"] if r.get("waived") and r.get("lets_through")],
        "fallback": fallback_of(found, wanted),
        "canary": {"kind": found.release.canary, **found.shadow.model_dump(mode="json", include={"requests", "limits", "max_new_tokens"})},
        "reward_models": reward_models(wanted),
        **({"reward_ensemble": ensemble} if (ensemble := reward_ensemble(run, wanted)) else {}),
    }


def reward_models(wanted: Json) -> list[str]:
    """Digests of what scored the candidate."""
    return [ref["digest"] for ref in ([wanted["reward"]] if wanted.get("reward") else []) + list(wanted.get("reward_members") or ())]


def reward_ensemble(run: Json, wanted: Json) -> dict[str, Any]:
    """The members of the reward ensemble that scored the candidate (and, by PPO, taught it) and how they become one; empty for one model."""
    if not wanted.get("reward_members"):
        return {}
    return {"combine": recipe(run["recipe"]).ppo.reward.combine, "members": reward_models(wanted)}


def question(body: Json, gates: Json, champion: str | None, no_champion: str) -> str:
    """The Markdown that a person reads before the answer."""
    digest = body["deployment"]
    links = (
        f"[All that was judged and decided about it](/alignment/deployments/{digest})",
        f"[what it came from](/alignment/lineage?ref={digest})",
        "[what happened before](/alignment/ledger)",
    )
    lines = [" · ".join(links), "", gates["markdown"], "", "**Data**", ""]
    for fact in body["datasets"]:
        licences = ", ".join(fact["licences"]) or "–"
        lines.append(f"- {fact['dataset']}: {licences}; imported {fact['imported_share']:.0%}, synthetic {fact['synthetic_share']:.0%}")
    base = body["base"]
    lines += ["", f"**Base**: {base['name'] or '–'}, licence {base['licence'] or 'not stated'}"]
    if ensemble := body.get("reward_ensemble"):
        lines += ["", f"**Reward ensemble**, its {ensemble['combine']}", "", *(f"- `{member}`" for member in ensemble["members"])]
    gated = set(gates["known_risks"])  # these stand below the gates
    lines += ["", *(f"- known risk: {risk}" for risk in body["known_risks"] if risk not in gated)]
    lines += [] if body["known_risks"] else ["No known risk is recorded."]
    lines += ["", f"Fallback for uncertain inputs: {fallback_words(body['fallback'])}."]
    lines += ["", f"Champion now: `{champion or no_champion}`. Canary: a shadow run on recorded prompts."]
    return "\n".join(lines)


def fallback_words(fallback: Json | str | None) -> str:
    """A fallback in a sentence's words; one that an earlier version recorded as text is that text."""
    if fallback is None or isinstance(fallback, str):
        return fallback or "none is recorded"
    if fallback["to"] == "own":
        return f"{fallback['policy']} (owner: {fallback['owner']})"
    return f"the {fallback['to']}'s deployment `{fallback['deployment'] or 'none yet'}`"
