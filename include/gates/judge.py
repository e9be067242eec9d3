"""All gates of a set on one table of measurements."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from include.domain.outcomes import NotDone, Verdict
from include.gates.decide import Decision, Pair, decide, decide_reward_hacking, paired
from include.gates.expected import Expected
from include.gates.metrics import metric_of
from include.gates.policy import GROUPS, GatePolicy, GateSet
from include.gates.results import GateReport, GateResult
from include.gates.statistics import ratio_is_defined
from include.gates.steps import step_notes
from include.gates.tables import Measurement, MeasurementTable

GATE_CODE = "gates@1"
"""The version of how verdicts come about; raise it when the same measurements could get another one."""

CANDIDATE = "candidate"
_STAND_INS = ("base", "sft")


class _NotEvaluable(Exception):
    """Inside this module: there is nothing to decide on, and why."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class _Bench:
    """What every policy is judged on."""

    table: MeasurementTable
    expected: Expected


def judge(gates: GateSet, table: MeasurementTable, expected: Expected) -> GateReport:
    """The report on the candidate: a result for each gate and baseline, and all six groups.

    A measurement that is missing, stale or of something else is *not evaluated* and blocks; so does a group without a
    gate, unless the set waives it. Where `expected` names no champion, base and SFT model are the baseline, by that name.
    """
    bench = _Bench(table, expected)
    results = [result for policy in gates.gates for result in _results(policy, bench)]
    results += [_not_built(group, gates.not_built.get(group)) for group in GROUPS if group not in {g.group for g in gates.gates}]
    results.sort(key=lambda r: GROUPS.index(r.group))
    identity = {
        "models": dict(expected.models),
        "deployments": dict(expected.deployments),
        "suites": dict(expected.suites),
        "scorers": dict(expected.scorers),
        "generation": dict(expected.generation),
    }
    notes = [] if "champion" in expected.models else [f"{NotDone.NO_CHAMPION}: base and SFT model are the baseline"]
    return GateReport(GATE_CODE, gates.reference, gates.digest, identity, tuple(results), (*notes, *step_notes(gates, table)))


def _not_built(group: str, reason: str | None) -> GateResult:
    message = "nothing measures this yet" if reason else "no gate of this group, and no waiver"
    return GateResult(group, group, None, None, "not_built", None, Verdict.NOT_EVALUATED, "not_built", message, waived=reason)


def _results(policy: GatePolicy, bench: _Bench) -> Iterator[GateResult]:
    for role in baselines(policy, bench.expected.models):
        try:
            decision, used = _decision(policy, bench, role)
        except _NotEvaluable as reason:
            yield _result(policy, role, Verdict.NOT_EVALUATED, reason.cause, str(reason))
        else:
            yield _decided(policy, role, decision, used)


def baselines(policy: GatePolicy, models: Collection[str]) -> list[str | None]:
    """The roles to compare with, each once; a champion absent from `models` is stood in for by base and SFT model."""
    roles: list[str | None] = []
    for role in policy.against or (None,):
        stands_in = role == "champion" and "champion" not in models
        roles.extend(name for name in (_STAND_INS if stands_in else (role,)) if name not in roles)
    return roles


def _decision(policy: GatePolicy, bench: _Bench, role: str | None) -> tuple[Decision, tuple[str, ...]]:
    pairs, used = _pairs(policy.metric, policy.suite, role, bench)
    if policy.kind == "reward_hacking":
        guarded, also_used = _pairs(str(policy.guarded_by), policy.suite, role, bench)
        return decide_reward_hacking(policy, pairs, guarded), used + also_used
    if policy.scale == "ratio" and not ratio_is_defined([pair.theirs for pair in pairs]):
        raise _NotEvaluable("no_ratio", f"{policy.metric} of {role} holds a value that is not above 0: no ratio to it")
    return decide(policy, pairs), used


def _pairs(metric: str, suite: str | None, role: str | None, bench: _Bench) -> tuple[list[Pair], tuple[str, ...]]:
    """The candidate's values beside the baseline's, item by item."""
    if role is not None and metric_of(metric).pairwise:
        won = _usable(CANDIDATE, metric, suite, bench, against=role)
        return [Pair(i.group, i.value, 1 - i.value, dict(i.slices)) for i in won.items], (won.identity,)
    ours = _usable(CANDIDATE, metric, suite, bench)
    if role is None:
        return [Pair(i.group, i.value, float("nan"), dict(i.slices)) for i in ours.items], (ours.identity,)
    theirs = _usable(role, metric, suite, bench)
    if not ours.same_backend(theirs):
        message = f"{metric}: the candidate was measured on backend {ours.backend[:19]}, {role} on {theirs.backend[:19]}"
        raise _NotEvaluable("other_backend", message)
    if ours.generation != theirs.generation:
        raise _NotEvaluable("other_generation", f"{metric}: candidate and {role} were measured under different generation settings")
    if unpaired := sorted({item.id for item in theirs.items} ^ {item.id for item in ours.items}):
        raise _NotEvaluable(
            "unpaired", f"{metric}: {len(unpaired)} items were measured of only one of candidate and {role}, as {unpaired[0]}"
        )
    return paired(ours, theirs), (ours.identity, theirs.identity)


def _usable(role: str, metric: str, suite: str | None, bench: _Bench, against: str = "") -> Measurement:
    row = bench.table.find(role, metric, suite, against)
    if row is None:
        beside = f" beside {against}" if against else ""
        raise _NotEvaluable("missing", f"{metric} of {role}{beside} was not measured" + (f" on suite {suite}" if suite else ""))
    if refused := bench.expected.refusal(row):
        raise _NotEvaluable(*refused)
    if row.refused:
        raise _NotEvaluable(*row.refused)
    if not row.items:
        raise _NotEvaluable("empty", f"{metric} of {role} holds 0 items: nothing was evaluated")
    return row


def _decided(policy: GatePolicy, role: str | None, decision: Decision, used: tuple[str, ...]) -> GateResult:
    i = decision.interval
    plain = _result(policy, role, decision.verdict, decision.cause, decision.message)
    numbers = {"estimate": i.estimate, "lower": i.lower, "upper": i.upper, "limit": decision.limit, "n": i.n, "groups": i.groups}
    return GateResult(**{**vars(plain), **numbers, "slices": decision.slices, "measured": used})


def _result(policy: GatePolicy, role: str | None, verdict: Verdict, cause: str, message: str) -> GateResult:
    return GateResult(
        policy.name,
        policy.group,
        policy.metric,
        policy.suite,
        policy.kind,
        role,
        verdict,
        cause,
        message,
        waived=policy.waiver if verdict is Verdict.NOT_EVALUATED else None,
        policy=policy.digest,
    )
