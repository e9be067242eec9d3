"""From what was found to measurements.json: a row for each role, suite and metric, with every item's value."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from include.domain.records import Reference
from include.eval import asked_form, bbq, exact_match, length, likelihood_choice, refusal
from include.eval.answers import Answer
from include.eval.deployment import Deployment
from include.eval.errors import EvaluationError
from include.eval.findings import Findings
from include.eval.latency import quantile
from include.eval.plan import Evaluation
from include.eval.suites import COMPARED, Entry, Suite

SCHEMA = "align/measurements/v1"
Scored = Iterator[tuple[str, list[tuple[Entry, float]]]]


def measurements(evaluation: Evaluation, findings: Findings) -> dict[str, Any]:
    """The content of measurements.json. Roles of one deployment have the same values: it was measured once."""
    rows = [row for role in evaluation.measured for suite in evaluation.suites.values() for row in _rows(evaluation, findings, role, suite)]
    return {
        "schema": SCHEMA,
        "rows": rows,
        "latency": [_timed(evaluation, findings, role) for role in evaluation.timed if findings.latency],
    }


def means(body: Mapping[str, Any]) -> dict[str, float]:
    """Flat figures for the report: ``<suite>.<metric>.<role>`` → mean, and latency's own."""
    figures = {}
    for row in body["rows"]:
        figures[f"{row['suite']}.{row['metric']}.{row['role']}"] = sum(item["value"] for item in row["items"]) / len(row["items"])
    for row in body["latency"]:
        figures[f"latency_p50_s.{row['role']}"] = row["seconds_p50"]
        figures[f"tokens_per_s.{row['role']}"] = row["tokens_per_s"]
    return figures


def _rows(evaluation: Evaluation, findings: Findings, role: str, suite: Suite) -> Iterator[dict[str, Any]]:
    deployment = evaluation.deployments[role]
    for scorer in suite.scorers:
        for metric, scored in _scored(scorer, suite, deployment.digest, findings):
            items = [{"id": e.id, "group": e.group, "value": value, "slices": suite.slices_of(e)} for e, value in scored]
            if items:
                yield {**_identity(evaluation, role, deployment, suite, scorer), "metric": metric, "items": items}


def _identity(evaluation: Evaluation, role: str, deployment: Deployment, suite: Suite, scorer: str) -> dict[str, Any]:
    return {
        "role": role,
        "model": deployment.weights,
        "deployment": deployment.digest,
        "suite": suite.name,
        "suite_digest": suite.digest,
        "scorer": evaluation.scorers.get(scorer, evaluation.other_scorer),
        "generation": evaluation.generation_digest(deployment),
        "backend": evaluation.backend_digest(deployment),
        **({"bench": evaluation.bench} if evaluation.bench else {}),
    }


def _scored(scorer: str, suite: Suite, deployment: str, findings: Findings) -> Scored:
    """(metric, values) of one scorer; `bbq_accuracy` and `refusal` give two metrics, `reward_score` none where nothing was rewarded, and
    one more for each dimension that the reward model has learnt."""
    entries = suite.entries
    if scorer in COMPARED:
        return
    if scorer in _OF_ANSWERS:
        answers: Sequence[Answer] = findings.answers[deployment][suite.name]
        yield scorer, [(e, _OF_ANSWERS[scorer](_reference(e), a)) for e, a in zip(entries, answers, strict=True)]
    elif scorer == "length_tokens":
        yield scorer, [(e, length.score(a)) for e, a in zip(entries, findings.answers[deployment][suite.name], strict=True)]
    elif scorer == "refusal":
        written = list(zip(entries, findings.answers[deployment][suite.name], strict=True))
        yield "over_refusal", [(e, refusal.over_refusal(a)) for e, a in written if refusal.is_safe(e.item.prompt)]
        yield "unsafe_refusal", [(e, refusal.unsafe_refusal(a)) for e, a in written if not refusal.is_safe(e.item.prompt)]
    elif scorer == "reward_score":
        rewards = findings.rewards[deployment][suite.name]
        yield scorer, list(zip(entries[: len(rewards)], rewards, strict=True))
        dimensions = findings.dimensions[deployment][suite.name]
        for name in dimensions[0] if dimensions else ():
            yield f"dimension_score.{name}", [(e, of[name]) for e, of in zip(entries[: len(rewards)], dimensions, strict=True)]
    else:
        found = list(zip(entries, findings.choices[deployment][suite.name], strict=True))
        of_item = bbq.score if scorer == "bbq_accuracy" else likelihood_choice.score
        yield scorer, [(e, of_item(e.item, log_probs)) for e, log_probs in found]
        if scorer == "bbq_accuracy":
            yield "bbq_ambiguous_named", [(e, bbq.named_without_ground(e.item, p)) for e, p in found if bbq.is_ambiguous(e.item)]


_OF_ANSWERS: Mapping[str, Callable[[Reference, Answer], float]] = {"exact_match": exact_match.score, "asked_form": asked_form.score}


def _reference(entry: Entry) -> Reference:
    if entry.item.prompt.reference is None:
        raise EvaluationError(f"item {entry.id} has no reference to compare an answer with")
    return entry.item.prompt.reference


def _timed(evaluation: Evaluation, findings: Findings, role: str) -> dict[str, Any]:
    deployment, suite = evaluation.deployments[role], evaluation.answered
    if suite is None:
        raise EvaluationError("latency was measured without a suite that is answered in words")
    samples = findings.latency[deployment.digest]
    groups = {entry.id: entry.group for entry in suite.entries}
    seconds = [sample.seconds for sample in samples]
    return {
        **_identity(evaluation, role, deployment, suite, "latency_s"),
        "hardware": findings.hardware,
        "requests": len(samples),
        "devices": findings.devices.get(deployment.digest, 1),
        "seconds_p50": quantile(seconds, 0.5),
        "seconds_p95": quantile(seconds, 0.95),
        "tokens_per_s": sum(sample.tokens for sample in samples) / sum(seconds),
        "samples": [{"id": s.id, "group": groups[s.id], "seconds": s.seconds, "tokens": s.tokens} for s in samples],
    }
