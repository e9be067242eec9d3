"""The reward model's own gate, before anything uses it: better than chance and than judging by length."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from include.domain.canonical import digest
from include.gates.decide import Decision, Pair, decide
from include.gates.errors import GateError
from include.gates.judge import GATE_CODE
from include.gates.policy import GatePolicy
from include.gates.results import GateReport, GateResult
from include.gates.statistics import mean_interval
from include.gates.tables import Measurement, MeasurementTable, table_from

ROLE = "reward_model"
CHANCE = 0.5
LENGTH_MATCHED_WITHIN = 0.1
"""Two answers are length-matched when their lengths differ by at most this share of the longer one."""

WARN_ABOVE = 0.8
_SETTINGS = {"min_pairs": 100, "alpha": 0.05}


def reward_model_gate(measurements: Mapping[str, Any], settings: Mapping[str, Any]) -> GateReport:
    """Three gates over the hold-out pairs, in this order: chance, 'the longer answer wins', 'the shorter answer wins'.

    Args:
        measurements: measurements.json with pair_accuracy, chosen_tokens and rejected_tokens of role reward_model, same items.
        settings: min_pairs (100), alpha (0.05).

    Accuracy on length-matched pairs and by length is reported in the notes, and so are the errors of what it foretells of dimensions.

    Raises:
        GateError: a setting that is not known, or measurements that cannot be paired.
    """
    if unknown := sorted(set(settings) - set(_SETTINGS) - {"required"}):
        raise GateError(f"reward model gate: {unknown[0]!r} is not known; it may have {', '.join(_SETTINGS)}")
    min_pairs, alpha = int(settings.get("min_pairs", 100)), float(settings.get("alpha", 0.05))
    table = table_from(measurements)
    accuracy, chosen, rejected = (_row(table, metric) for metric in ("pair_accuracy", "chosen_tokens", "rejected_tokens"))
    rivals = _rivals(accuracy, chosen, rejected)
    results = tuple(_compare(name, rivals[name], accuracy, min_pairs, alpha) for name in ("chance", "longer_wins", "shorter_wins"))
    policy = digest("gate-policy", {"reward_model": {"min_pairs": min_pairs, "alpha": alpha, "matched": LENGTH_MATCHED_WITHIN}})
    identity = {"model": accuracy.model, "suite": accuracy.suite_digest, "scorer": accuracy.scorer}
    notes = (*_notes(accuracy, chosen, rejected, alpha), *_dimension_notes(table, alpha))
    return GateReport(GATE_CODE, "reward_model@1", policy, identity, results, notes)


def _row(table: MeasurementTable, metric: str) -> Measurement:
    row = table.find(ROLE, metric, None)
    if row is None or not row.items:
        raise GateError(f"reward model: {metric} was not measured, or holds 0 pairs")
    return row


def _rivals(accuracy: Measurement, chosen: Measurement, rejected: Measurement) -> dict[str, list[Pair]]:
    """Each pair's value beside what chance, the longer and the shorter answer would have got."""
    long, short = ({i.id: i.value for i in row.items} for row in (chosen, rejected))
    if set(long) != set(short) or set(long) != {item.id for item in accuracy.items}:
        raise GateError("reward model: pair_accuracy, chosen_tokens and rejected_tokens are not of the same pairs")
    rivals: dict[str, list[Pair]] = {"chance": [], "longer_wins": [], "shorter_wins": []}
    for item in accuracy.items:
        longer = 0.5 + 0.5 * math.copysign(1, long[item.id] - short[item.id]) if long[item.id] != short[item.id] else 0.5
        for name, theirs in (("chance", CHANCE), ("longer_wins", longer), ("shorter_wins", 1 - longer)):
            rivals[name].append(Pair(item.group, item.value, theirs, dict(item.slices)))
    return rivals


def _compare(name: str, pairs: Sequence[Pair], row: Measurement, min_pairs: int, alpha: float) -> GateResult:
    policy = GatePolicy(
        name=f"better_than_{name}",
        group="capability_format",
        metric="pair_accuracy",
        kind="superiority",
        suite=row.suite,
        against=("base",),
        alpha=alpha,
        min_n=min_pairs,
    )
    found: Decision = decide(policy, pairs)
    i = found.interval
    return GateResult(
        policy.name,
        policy.group,
        policy.metric,
        policy.suite,
        policy.kind,
        name,
        found.verdict,
        found.cause,
        found.message,
        i.estimate,
        i.lower,
        i.upper,
        found.limit,
        i.n,
        i.groups,
        policy=policy.digest,
        measured=(row.identity,),
    )


def _notes(accuracy: Measurement, chosen: Measurement, rejected: Measurement, alpha: float) -> list[str]:
    long, short = ({i.id: i.value for i in row.items} for row in (chosen, rejected))
    groups = {
        "all pairs": lambda i: True,
        "length-matched pairs": lambda i: abs(long[i] - short[i]) <= LENGTH_MATCHED_WITHIN * max(long[i], short[i]),
        "pairs whose longer answer was chosen": lambda i: long[i] > short[i],
        "pairs whose shorter answer was chosen": lambda i: long[i] < short[i],
    }
    notes = []
    for name, belongs in groups.items():
        items = [item for item in accuracy.items if belongs(item.id)]
        if not items:
            notes.append(f"{name}: none")
            continue
        found = mean_interval([i.value for i in items], [i.group for i in items], alpha, binary=True)
        bounds = f" [{found.lower:.3f}, {found.upper:.3f}]" if math.isfinite(found.lower) else ""
        notes.append(f"{name}: accuracy {found.estimate:.3f}{bounds}, n={found.n}")
    overall = sum(item.value for item in accuracy.items) / len(accuracy.items)
    if overall > WARN_ABOVE:
        notes.append(f"accuracy above {WARN_ABOVE:.0%} may be over-fitting: look at the policy's outputs")
    return notes


def _dimension_notes(table: MeasurementTable, alpha: float) -> list[str]:
    """How far each dimension's foretold score is from the labels', in points from 1 to 5, and always saying the training mean."""
    notes = []
    for row in table.rows:
        metric, _, name = row.metric.partition(".")
        if row.role != ROLE or metric != "dimension_error":
            continue
        usual = table.find(ROLE, f"dimension_baseline_error.{name}", row.suite)
        if not row.items or usual is None or [i.id for i in usual.items] != [i.id for i in row.items]:
            notes.append(f"{name}: no held-out pair has a score" if not row.items else f"{name}: its baseline is not of the same pairs")
            continue
        found = mean_interval([i.value for i in row.items], [i.group for i in row.items], alpha, binary=False)
        bounds = f" [{found.lower:.2f}, {found.upper:.2f}]" if math.isfinite(found.lower) else ""
        baseline = math.fsum(i.value for i in usual.items) / len(usual.items)
        notes.append(f"{name}: mean error {found.estimate:.2f}{bounds} points of 1 to 5, the training mean's {baseline:.2f}, n={found.n}")
    return notes
