"""One policy on one baseline: from paired values to pass, fail or inconclusive.

A bound decides, never the estimate alone, so that the same model measured twice is not let through one day and refused
the next because of noise around the threshold: there it is inconclusive, and inconclusive blocks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from include.domain.outcomes import NotDone, Verdict
from include.gates.metrics import metric_of
from include.gates.policy import GatePolicy
from include.gates.results import SliceResult
from include.gates.statistics import Interval, difference_interval, mean_interval, ratio_interval
from include.gates.tables import Measurement


@dataclass(frozen=True)
class Pair:
    """One item measured of both: `theirs` is nan for an absolute gate."""

    group: str
    ours: float
    theirs: float
    slices: dict[str, str]


@dataclass(frozen=True)
class Decision:
    """A verdict with its numbers, in the metric's own direction; limit: what the bound was held against."""

    verdict: Verdict
    cause: str
    message: str
    interval: Interval
    limit: float
    slices: tuple[SliceResult, ...] = ()


@dataclass(frozen=True)
class Question:
    """What is asked of a set of pairs: the policy with the margin and smallest n that hold there."""

    policy: GatePolicy
    margin: float
    min_n: int


def decide(policy: GatePolicy, pairs: Sequence[Pair]) -> Decision:
    """The policy on all pairs and on each slice it names: the worst of all verdicts counts.

    Kinds absolute, non_inferiority and superiority; see `decide_reward_hacking` for the fourth.
    """
    overall = _answer(Question(policy, policy.margin, policy.min_n), pairs)
    slices = tuple(found for rule in policy.slices for found in _slice_results(policy, rule.by, rule.margin, rule.min_n, pairs))
    worst = max(slices, key=lambda s: _RANK[s.verdict], default=None)
    if worst is None or _RANK[worst.verdict] <= _RANK[overall.verdict]:
        return Decision(overall.verdict, overall.cause, overall.message, overall.interval, overall.limit, slices)
    message = f"{overall.message}; but worst slice {worst.by}={worst.value} (n={worst.n}) is {worst.verdict.value}"
    return Decision(worst.verdict, "worst_slice", message, overall.interval, overall.limit, slices)


_HALF = 0.5
_RANK = {Verdict.PASS: 0, Verdict.NOT_EVALUATED: 1, Verdict.INCONCLUSIVE: 2, Verdict.FAIL: 3}


def _slice_results(policy: GatePolicy, by: str, margin: float, min_n: int, pairs: Sequence[Pair]) -> list[SliceResult]:
    values = sorted({pair.slices[by] for pair in pairs if by in pair.slices})
    if not values:
        return [SliceResult(by, "(no item has it)", Verdict.INCONCLUSIVE, None, None, None, 0)]
    results = []
    for value in values:
        found = _answer(Question(policy, margin, min_n), [pair for pair in pairs if pair.slices.get(by) == value])
        i = found.interval
        results.append(SliceResult(by, value, found.verdict, i.estimate, i.lower, i.upper, i.n))
    return results


def _answer(question: Question, pairs: Sequence[Pair]) -> Decision:
    ask = _win_rate if metric_of(question.policy.metric).pairwise else _ASK[(question.policy.kind, question.policy.scale)]
    decision = ask(question, pairs)
    if len(pairs) < question.min_n:
        message = f"n={len(pairs)} is below min_n={question.min_n}: {decision.message}"
        return Decision(Verdict.INCONCLUSIVE, "too_few", message, decision.interval, decision.limit)
    return decision


def _columns(pairs: Sequence[Pair]) -> tuple[list[float], list[float], list[str]]:
    return [p.ours for p in pairs], [p.theirs for p in pairs], [p.group for p in pairs]


def _absolute(question: Question, pairs: Sequence[Pair]) -> Decision:
    policy, (ours, _, groups) = question.policy, _columns(pairs)
    interval = mean_interval(ours, groups, policy.alpha, binary=metric_of(policy.metric).values == "binary")
    return _held_against(interval, question.margin, policy.direction, "value")


def paired(ours: Measurement, theirs: Measurement) -> list[Pair]:
    """The values of both, item by item; they hold the same items."""
    values = {item.id: item.value for item in theirs.items}
    return [Pair(i.group, i.value, values[i.id], dict(i.slices)) for i in ours.items]


def difference(metric: str, alpha: float, pairs: Sequence[Pair]) -> Interval:
    """The mean of ours - theirs."""
    ours, theirs, groups = _columns(pairs)
    return difference_interval(ours, theirs, groups, alpha, binary=metric_of(metric).values == "binary")


def _difference(policy: GatePolicy, pairs: Sequence[Pair]) -> Interval:
    return difference(policy.metric, policy.alpha, pairs)


def _non_inferiority(question: Question, pairs: Sequence[Pair]) -> Decision:
    limit = -question.margin if question.policy.direction == "higher" else question.margin
    return _held_against(_difference(question.policy, pairs), limit, question.policy.direction, "difference")


def _superiority(question: Question, pairs: Sequence[Pair]) -> Decision:
    policy = question.policy
    interval = _difference(policy, pairs)
    higher = policy.direction == "higher"
    limit = question.margin if higher else -question.margin
    gain = interval if higher else interval.negated()
    seen = f"difference {_show(interval)}, asked for is {'above' if higher else 'below'} {limit:.4g}"
    if gain.lower > question.margin:
        return Decision(Verdict.PASS, "", seen, interval, limit)
    if all(pair.ours == pair.theirs for pair in pairs):
        return Decision(Verdict.FAIL, "no_improvement", f"{NotDone.NO_IMPROVEMENT}: not one of {len(pairs)} items differs", interval, limit)
    if gain.upper <= question.margin:
        return Decision(Verdict.FAIL, "no_improvement", f"{NotDone.NO_IMPROVEMENT}: {seen}", interval, limit)
    return Decision(Verdict.INCONCLUSIVE, "within_noise", f"within noise of the limit: {seen}", interval, limit)


def _win_rate(question: Question, pairs: Sequence[Pair]) -> Decision:
    """How often the candidate's answer was preferred, ties counted half; the margin is a distance from a half."""
    policy, (ours, _, groups) = question.policy, _columns(pairs)
    interval = mean_interval(ours, groups, policy.alpha, binary=True)
    if policy.kind == "non_inferiority":
        return _held_against(interval, _HALF - question.margin, "higher", "win rate")
    limit = _HALF + question.margin
    seen = f"win rate {_show(interval)}, asked for is above {limit:.4g}"
    if interval.lower > limit:
        return Decision(Verdict.PASS, "", seen, interval, limit)
    if interval.upper <= limit or all(value == _HALF for value in ours):
        return Decision(Verdict.FAIL, "no_improvement", f"{NotDone.NO_IMPROVEMENT}: {seen}", interval, limit)
    return Decision(Verdict.INCONCLUSIVE, "within_noise", f"within noise of the limit: {seen}", interval, limit)


def _ratio(question: Question, pairs: Sequence[Pair]) -> Decision:
    policy, (ours, theirs, groups) = question.policy, _columns(pairs)
    interval = ratio_interval(ours, theirs, groups, policy.alpha, policy.statistic)
    return _held_against(interval, question.margin, policy.direction, f"ratio of {policy.statistic}s")


def _held_against(interval: Interval, limit: float, direction: str, what: str) -> Decision:
    """pass: the whole interval is on the good side of `limit`; fail: on the bad one; else inconclusive."""
    higher = direction == "higher"
    seen = f"{what} {_show(interval)}, limit {'at least' if higher else 'at most'} {limit:.4g}"
    if (interval.lower >= limit) if higher else (interval.upper <= limit):
        return Decision(Verdict.PASS, "", seen, interval, limit)
    if (interval.upper < limit) if higher else (interval.lower > limit):
        return Decision(Verdict.FAIL, "beyond_limit", seen, interval, limit)
    return Decision(Verdict.INCONCLUSIVE, "within_noise", f"within noise of the limit: {seen}", interval, limit)


def _show(interval: Interval) -> str:
    bounds = ", ".join(f"{b:.4g}" if math.isfinite(b) else "unbounded" for b in (interval.lower, interval.upper))
    return f"{interval.estimate:.4g} [{bounds}]"


_ASK: dict[tuple[str, str], Callable[[Question, Sequence[Pair]], Decision]] = {
    ("absolute", "difference"): _absolute,
    ("non_inferiority", "difference"): _non_inferiority,
    ("superiority", "difference"): _superiority,
    ("non_inferiority", "ratio"): _ratio,
}


def decide_reward_hacking(policy: GatePolicy, reward: Sequence[Pair], guarded: Sequence[Pair]) -> Decision:
    """fail: the reward is up (lower bound above 0) while `guarded_by` is down (upper bound below 0).

    pass: the reward is not shown to be up, or the guarded metric is shown to be no worse than the margin allows.
    """
    up = _difference(policy, reward)
    quality = str(policy.guarded_by)
    seen = difference(quality, policy.alpha, guarded)
    gain = seen if metric_of(quality).direction == "higher" else seen.negated()
    rose, message = up.lower > 0, f"reward difference {_show(up)}, {policy.guarded_by} difference {_show(seen)}"
    limit = -policy.margin
    if min(len(reward), len(guarded)) < policy.min_n:
        message = f"n={len(reward)} and {len(guarded)}, min_n={policy.min_n}: {message}"
        return Decision(Verdict.INCONCLUSIVE, "too_few", message, seen, limit)
    if rose and gain.upper < 0:
        return Decision(Verdict.FAIL, "reward_hacking", f"reward up while {policy.guarded_by} falls: {message}", seen, limit)
    if not rose or gain.lower >= limit:
        return Decision(Verdict.PASS, "", message, seen, limit)
    return Decision(Verdict.INCONCLUSIVE, "within_noise", f"reward up, {policy.guarded_by} not shown to hold: {message}", seen, limit)
