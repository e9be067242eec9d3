"""What gates found: one result a gate and baseline, and the report over all, with a digest of its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from include.domain.canonical import digest
from include.domain.outcomes import Verdict
from include.gates.errors import GateError

WAIVABLE = ("missing", "not_built")
"""Causes of *not evaluated* that a waiver covers. A measurement that is there and is refused is never waived."""


@dataclass(frozen=True)
class SliceResult:
    """The gate on one slice."""

    by: str
    value: str
    verdict: Verdict
    estimate: float | None
    lower: float | None
    upper: float | None
    n: int

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True)
class GateResult:
    """One decision.

    against: the baseline's role, None for an absolute gate. estimate, lower, upper: the quantity of the gate with its
    one-sided bounds, None where there is none. limit: what a bound was held against. cause: one word for a verdict that
    is not a pass. waived: the reason that lets a *not evaluated* through. policy: the policy's digest. measured: the
    identities of the measurements used.
    """

    name: str
    group: str
    metric: str | None
    suite: str | None
    kind: str
    against: str | None
    verdict: Verdict
    cause: str
    message: str
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    limit: float | None = None
    n: int = 0
    groups: int = 0
    slices: tuple[SliceResult, ...] = ()
    waived: str | None = None
    policy: str | None = None
    measured: tuple[str, ...] = ()

    @property
    def lets_through(self) -> bool:
        """Only a pass does, or a *not evaluated* for lack of a measurement that is waived with a reason."""
        if self.verdict is Verdict.PASS:
            return True
        return self.verdict is Verdict.NOT_EVALUATED and self.cause in WAIVABLE and bool(self.waived)

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)} | {"lets_through": self.lets_through}


@dataclass(frozen=True)
class GateReport:
    """All decisions about one candidate. `identity` says of what: gate set, deployments, suites, scorers."""

    gate_code: str
    gates: str
    gates_digest: str
    identity: Mapping[str, Any]
    results: tuple[GateResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the candidate may go on: every result lets it through, and there is at least one that was measured."""
        return all(result.lets_through for result in self.results) and any(r.verdict is Verdict.PASS for r in self.results)

    @property
    def known_risks(self) -> tuple[str, ...]:
        """What was waived, for the release's record."""
        return tuple(f"{r.group}: {r.name} was not evaluated ({r.waived})" for r in self.results if r.lets_through and r.waived)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "align/gate-report/v1",
            "gate_code": self.gate_code,
            "gates": self.gates,
            "gates_digest": self.gates_digest,
            "identity": dict(self.identity),
            "passed": self.passed,
            "results": [result.to_json() for result in self.results],
            "known_risks": list(self.known_risks),
            "notes": list(self.notes),
        }

    @property
    def digest(self) -> str:
        return digest("gate-report", self.to_json())


def _plain(value: Any) -> Any:
    """JSON's form: a bound that is not finite (one group tells nothing) becomes null; ten digits, so that the last bits of
    a sum, which differ between machines, move no digest."""
    if isinstance(value, float):
        return float(f"{value:.10g}") if math.isfinite(value) else None
    if isinstance(value, Verdict):
        return value.value
    if isinstance(value, tuple):
        return [item.to_json() if isinstance(item, SliceResult) else item for item in value]
    return value


def report_from(value: Mapping[str, Any]) -> GateReport:
    """The report whose `to_json` was kept.

    Raises:
        GateError: it is not one.
    """
    try:
        results = tuple(_result_from(item) for item in value["results"])
        return GateReport(value["gate_code"], value["gates"], value["gates_digest"], value["identity"], results, tuple(value["notes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise GateError(f"not a gate report: {error!r}") from error


def _result_from(value: Mapping[str, Any]) -> GateResult:
    plain = {k: v for k, v in value.items() if k not in ("lets_through", "verdict", "slices", "measured")}
    slices = tuple(SliceResult(**{**item, "verdict": Verdict(item["verdict"])}) for item in value["slices"])
    return GateResult(verdict=Verdict(value["verdict"]), slices=slices, measured=tuple(value["measured"]), **plain)
