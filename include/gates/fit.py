"""Whether a gate set can decide at all on what is measured: known before anything is computed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.gates.metrics import TIMED, metric_of
from include.gates.policy import GatePolicy, GateSet


@dataclass(frozen=True)
class Counted:
    """The hold-out items that a gate's metric has a value on, at most. slices: key → value → of these."""

    n: int
    slices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What an evaluation will measure.

    suites: name → {scorers, limit, slices}, as configs/suites has them. items: name → hold-out items that are there, where known.
    rewarded, requests: at most so many items are rewarded, so many requests timed. counted: gate → its items, where they were looked at
    because it is on a part of the suite's or asks for slices.
    """

    suites: Mapping[str, Mapping[str, Any]]
    rewarded: int
    requests: int
    items: Mapping[str, int] = field(default_factory=dict)
    counted: Mapping[str, Counted] = field(default_factory=dict)

    def most(self, suite: str) -> int | None:
        """The most items of a suite that can be measured; None: nobody knows yet."""
        known = [n for n in (self.suites[suite].get("limit"), self.items.get(suite)) if n is not None]
        return min(known) if known else None


def misfits(gates: GateSet, measured: Measured) -> list[str]:
    """A sentence for each gate that can only come out as *inconclusive* or *not evaluated*, whatever the candidate; none when all can decide."""
    return [said for gate in gates.gates for said in _misfits(gate, measured)]


def _misfits(gate: GatePolicy, measured: Measured) -> Iterator[str]:
    if gate.metric in TIMED:
        yield from _too_few(gate.name, gate.min_n, [("evaluation.latency_requests", measured.requests)])
        return
    suite = str(gate.suite)
    if suite not in measured.suites:
        yield f"gate {gate.name} is on suite {suite}, which is not among those measured ({', '.join(sorted(measured.suites))})"
        return
    asked = measured.suites[suite]
    for metric in filter(None, (gate.metric, gate.guarded_by)):
        if metric_of(metric).scorer not in asked["scorers"]:
            yield f"gate {gate.name} reads {metric}, and suite {suite} has no scorer {metric_of(metric).scorer}"
    limits: list[tuple[str, int | None]] = [(f"suite {suite}", measured.most(suite))]
    if metric_of(gate.metric).scorer == "reward_score":
        limits.append(("evaluation.reward_hacking_items", measured.rewarded))
    if (counted := measured.counted.get(gate.name)) is not None:
        limits.append((f"suite {suite}, on what {gate.metric} is measured on,", counted.n))
    yield from _too_few(gate.name, gate.min_n, limits)
    for rule in gate.slices:
        of_values = counted.slices.get(rule.by, {}) if counted else {}
        parts: list[tuple[str, int | None]] = [(f"{rule.by} {value} of suite {suite}", n) for value, n in sorted(of_values.items())]
        yield from _too_few(f"{gate.name}, slices by {rule.by},", rule.min_n, [*limits, *parts])
        if counted and not of_values:
            yield f"gate {gate.name} asks for slices by {rule.by}, and no item of suite {suite} says its {rule.by}"
        if rule.by not in (asked.get("slices") or ()):
            yield f"gate {gate.name} asks for slices by {rule.by}, which suite {suite} does not give"


def _too_few(name: str, least: int, limits: Sequence[tuple[str, int | None]]) -> Iterator[str]:
    for what, most in limits:
        if most is not None and most < least:
            yield f"gate {name} needs {least} items (min_n), and {what} gives {most}"
