"""What a shadow run has seen, held against its limits."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.eval.errors import EvaluationError

LIMITS = ("error_share", "latency_ratio", "length_ratio")


@dataclass(frozen=True)
class Reply:
    """One model's reply to one prompt. problem: empty, or why it counts as an error."""

    id: str
    seconds: float
    tokens: int
    finish_reason: str
    problem: str


@dataclass(frozen=True)
class Observation:
    """verdict: passed or aborted; reasons: one sentence for each limit that was crossed. Ratios: candidate over other."""

    verdict: str
    reasons: tuple[str, ...]
    requests: int
    least_requests: int
    errors: Mapping[str, int]
    limits: Mapping[str, float]
    error_share: float
    latency_ratio: float | None
    length_ratio: float | None

    @property
    def figures(self) -> dict[str, float]:
        """What is known, flat."""
        ratios = {"latency_ratio": self.latency_ratio, "length_ratio": self.length_ratio}
        known = {name: value for name, value in ratios.items() if value is not None}
        return {"requests": float(self.requests), "error_share": self.error_share, **known}

    def to_json(self) -> dict[str, Any]:
        body = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return body | {"reasons": list(self.reasons), "errors": dict(self.errors), "limits": dict(self.limits)}


def observe(replies: Sequence[Mapping[str, Reply]], roles: tuple[str, str], least: int, limits: Mapping[str, float]) -> Observation:
    """Candidate (`roles[0]`) beside the other, over the prompts that both replied to without a problem.

    Args:
        limits: error_share (of the candidate), latency_ratio (of medians), length_ratio (of means); all three.

    Raises:
        EvaluationError: a limit is missing or not known.
    """
    if set(limits) != set(LIMITS):
        raise EvaluationError(
            f"limits are {', '.join(sorted(limits)) or 'none'}; a shadow run needs {', '.join(LIMITS)}, no more and no less"
        )
    errors = {role: sum(bool(pair[role].problem) for pair in replies) for role in roles}
    whole = [pair for pair in replies if not any(pair[role].problem for role in roles)]
    ours, theirs = ([pair[role] for pair in whole] for role in roles)
    seen: dict[str, float | None] = {
        "latency_ratio": _ratio(statistics.median, [r.seconds for r in ours], [r.seconds for r in theirs]),
        "length_ratio": _ratio(statistics.fmean, [float(r.tokens) for r in ours], [float(r.tokens) for r in theirs]),
    }
    error_share = errors[roles[0]] / len(replies) if replies else 1.0
    reasons = [] if len(replies) >= least else [f"{len(replies)} requests were observed, at least {least} are asked for"]
    reasons += [reason for name in LIMITS if (reason := _crossed(name, error_share if name == "error_share" else seen[name], limits[name]))]
    return Observation(
        "aborted" if reasons else "passed",
        tuple(reasons),
        len(replies),
        least,
        errors,
        limits,
        error_share,
        seen["latency_ratio"],
        seen["length_ratio"],
    )


def _ratio(middle: Any, ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    return float(middle(ours) / middle(theirs)) if ours and middle(theirs) > 0 else None


def _crossed(name: str, value: float | None, limit: float) -> str:
    if value is None:
        return f"{name} could not be observed: no prompt was answered by both"
    return f"{name} is {value:.3g}, above its limit {limit:.3g}" if value > limit else ""
