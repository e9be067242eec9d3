"""Evaluation and gates: what is measured against what, the verdict, and its place in the catalog."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from include.domain.canonical import canonical_bytes, digest, hex_of
from include.domain.outcomes import NotDone
from include.domain.spec import RunSpec
from include.flows import services
from include.flows.apart import require_suites_apart
from include.flows.benches import bench_of, evaluation, model
from include.flows.errors import Rejected
from include.flows.evidence import learnt_from, together
from include.flows.gates_fit import require_gates_fit
from include.flows.measured import gate_set, measurements_of, outputs_of
from include.flows.model_judge import read as judge_of
from include.flows.panel_result import panel_of
from include.settings.catalogue import recipe, versioned
from include.stages.programs import deployment
from include.stages.refs import ModelRef, StageResult

if TYPE_CHECKING:
    from include.gates.judge import GateReport

Json = Mapping[str, Any]


def reward_gate(run: Json, result: Json) -> dict[str, Any]:
    """The reward model's own gate, before anything uses it; gives the reward model's result on.

    Raises:
        Rejected: it is not better than chance, 'longer wins' and 'shorter wins' on held-out pairs.
    """
    from include.gates.named import named
    from include.gates.render import table
    from include.gates.reward_model import reward_model_gate

    wanted = recipe(run["recipe"]).reward_gate
    report = reward_model_gate(measurements_of(result), {"min_pairs": wanted.min_pairs, "alpha": wanted.alpha})
    print(table(report))
    out = StageResult.from_json(result).model("reward_model")
    keep_report(report, out.digest, policies_digest=digest("reward-gate", wanted.model_dump(mode="json")), purpose="reward_model")
    if wanted.required and not report.passed:
        raise Rejected(f"the reward model does not pass its gate; nothing may use it\n{table(report)}", named(report))
    return dict(result)


def keep_report(report: "GateReport", subject: str, *, policies_digest: str, purpose: str, as_of: str | None = None) -> None:
    """The report in the store, by digest, and its row in the catalog."""
    body = report.to_json()
    services.store().put_bytes(f"reports/gates/{hex_of(report.digest)}.json", canonical_bytes(body))
    services.catalog().measurements.record_gate_report(
        report.digest,
        subject,
        body,
        verdict="pass" if report.passed else "fail",
        gate_code=report.gate_code,
        policies_digest=policies_digest,
        purpose=purpose,
        as_of=as_of,
    )


def released_model(deployment_digest: str) -> tuple[ModelRef, dict[str, Any]]:
    """The weights of a registered deployment, and its body with `digest`."""
    body = dict(services.catalog().releases.deployment(deployment_digest))
    ref = ModelRef("model", body["weights"], body["tokenizer"], body["chat_template"])
    return ref, {**body, "digest": deployment_digest}


def anchor_of(name: str) -> str | None:
    """The fixed anchor of a registered name: the first recipe's SFT deployment, once it has been set."""
    entries = services.catalog().ledger.entries(name=name, kind="anchor_set")
    return str(entries[0].payload["deployment"]) if entries else None


def register(run: Json, ref: ModelRef) -> str:
    """Registers `ref`, deployed as the recipe says; returns the deployment's digest."""
    wanted = recipe(run["recipe"])
    body = {k: v for k, v in deployment(wanted, ref).items() if k != "digest"}
    return str(services.catalog().releases.register_deployment(wanted.release.registered_name, body))


def wanted(run: Json, base: Json, sft: Json, policy: Json, reward: Json, datasets: Json) -> dict[str, Any]:
    """What the evaluation job measures: candidate, base, SFT model, the champion once there is one, and the anchor.

    Raises:
        DataError: an item of a suite was trained on.
    """
    found = recipe(run["recipe"])
    name = found.release.registered_name
    models = {"candidate": model(policy, "policy"), "base": model(base, "base"), "sft": model(sft, "policy")}
    digests = {role: register(run, ref) for role, ref in models.items()}
    released: dict[str, Any] = {}
    champion = services.catalog().ledger.champion(name)
    if champion is not None:
        models["champion"], released["champion"] = released_model(champion)
    anchor = anchor_of(name) or digests["sft"]
    models["anchor"], released["anchor"] = released_model(anchor)
    suite_file = versioned("suites", found.evaluation.suites)["suites"]
    suites = {suite: datasets[item["dataset"]] for suite, item in suite_file.items()}
    require_gates_fit(found, datasets)
    learnt = learnt_from(sft, reward, policy)
    require_suites_apart(run, suites, together(datasets, learnt))
    return {
        "status": "already released" if champion == digests["candidate"] else "new",
        "deployment": digests["candidate"],
        "champion": champion,
        "anchor": anchor,
        "deployments": digests,
        "base_key": base["key"],
        "models": {role: ref.to_json() for role, ref in models.items()},
        "released": released,
        "learnt_from": learnt,
        "reward": model(reward, "reward_model").to_json(),
        "reward_members": [ref.to_json() for ref in StageResult.from_json(reward).further("reward_model")],
        "suites": suites,
        "suite_settings": {suite: {k: v for k, v in item.items() if k != "dataset"} for suite, item in suite_file.items()},
    }


@dataclass(frozen=True)
class Asked:
    """What was asked of others about the answers: of people (what the panel's task returned) and of a model judge; {} where nobody was."""

    people: Json = field(default_factory=dict)
    judge: Json = field(default_factory=dict)
    writer: str = "pipeline"


NOBODY = Asked()


def judge_candidate(run: Json, wanted_now: Json, result: Json, asked: Asked = NOBODY) -> dict[str, Any]:
    """The verdict, on what was measured and what others were asked. The specification is built anew, so a stale or foreign measurement cannot pass; the first complete verdict binds.

    Raises:
        Rejected: a gate fails or is inconclusive; the table stands in the message.
    """
    from include.gates.named import named
    from include.gates.render import markdown, table

    spec: RunSpec = evaluation(bench_of(run), wanted_now).spec
    gates = gate_set(run)
    report, grounds = _report(run, spec, (wanted_now, result), asked)
    print(table(report))
    keep_report(report, wanted_now["deployment"], policies_digest=gates.digest, purpose="release")
    services.catalog().lineage.edges(report.digest, grounds, asked.writer)
    first = services.catalog().measurements.first_verdict(wanted_now["deployment"], gates.digest, "release")
    if first is not None and first.digest != report.digest:
        print(f"An earlier complete verdict on this deployment binds: {first.digest} ({first.verdict})")
        if first.verdict != "pass":
            words = f"the first complete verdict on {wanted_now['deployment']} was {first.verdict}: {first.digest}"
            raise Rejected(words, f"{NotDone.REJECTED}: {words}")
    if not report.passed:
        raise Rejected(f"the gates do not let this candidate through\n{table(report)}", named(report))
    return {
        "digest": report.digest,
        "policies": gates.digest,
        "gates": gates.reference,
        "passed": True,
        "known_risks": list(report.known_risks),
        "table": table(report),
        "markdown": markdown(report),
    }


def _report(run: Json, spec: RunSpec, of: tuple[Json, Json], asked: Asked) -> "tuple[GateReport, list[tuple[str, str]]]":
    """All gates on what was measured (`of`: what was wanted, and the result) and on what others said; every measurement is on record. And
    what the report rests on, with its role."""
    from include.gates.expected import expected_from
    from include.gates.judge import judge
    from include.gates.tables import table_from

    wanted_now, result = of
    measured, expected = measurements_of(result), expected_from(spec)
    _record(spec, result, measured["rows"], (f"{outputs_of(spec.key)['measurements'].path}/measurements.json", _digest_of(result)))
    people = panel_of(run, asked.people, expected.scorers, result)
    others = [people, judge_of(run, wanted_now, (result, people.body), asked.judge, asked.writer)]
    rows, scorers = list(measured["rows"]), dict(expected.scorers)
    for one in others:
        if one.digest is not None:
            _record(spec, result, one.body["rows"], (one.path, one.digest))
        rows += one.body["rows"]
        scorers |= one.scorers
    report = judge(gate_set(run), table_from({**measured, "rows": rows}), replace(expected, scorers=scorers))
    notes = [note for one in others for note in one.notes]
    grounds = [(one.digest, one.role) for one in others if one.digest is not None]
    return replace(report, notes=(*report.notes, *notes)), grounds


def _digest_of(result: Json) -> str:
    return str(result["outputs"]["measurements"]["digest"])


def _record(spec: RunSpec, result: Json, rows: Sequence[Json], items: tuple[str, str]) -> None:
    """Measurements in the catalog, by identity; repeats are counted there. items: path and digest of the file with their values."""
    from include.stores.catalog.measurements import Measurement

    catalog, (path, digest_) = services.catalog(), items
    for row in rows:
        values = [item["value"] for item in row["items"]]
        catalog.measurements.record(
            Measurement(
                deployment=row["deployment"],
                suite_digest=row["suite_digest"],
                metric=row["metric"],
                scorer=row["scorer"],
                generation=row["generation"],
                backend=row["backend"],
                run_key=spec.key,
                attempt=result["attempt"],
                items_uri=f"{services.store().uri}/{path}",
                items_digest=digest_,
                n=len(values),
                summary=_summary(row, values),
            )
        )


def _summary(row: Json, values: Sequence[float]) -> dict[str, Any]:
    found = {"mean": sum(values) / len(values) if values else None, "suite": row["suite"], "role": row["role"]}
    return {**found, **({"against": row["against"]} if row.get("against") else {})}
