"""Gate policies: what is asked of a candidate, fixed and digested before anything is measured."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from include.domain.canonical import digest
from include.gates.errors import GateError
from include.gates.metrics import DIMENSION_SCORE, HUMAN_WIN_RATE, JUDGE_WIN_RATE, METRICS, TIMED, is_metric, metric_of

GROUPS = (
    "capability_format",
    "human_pairwise",
    "safety_privacy_refusal",
    "multilingual_longtail",
    "cost_latency",
    "reward_hacking",
)
"""Every report shows all six; one without a gate is *not evaluated* and blocks, unless waived with a reason."""

KINDS = ("absolute", "non_inferiority", "superiority", "reward_hacking")
BASELINES = ("champion", "sft", "anchor", "base")
SCALES = ("difference", "ratio")
STATISTICS = ("mean", "median")


@dataclass(frozen=True)
class SliceRule:
    """The same gate on every slice of one key, with a margin and smallest n of its own; the worst slice decides."""

    by: str
    margin: float
    min_n: int


@dataclass(frozen=True)
class GatePolicy:
    """One gate.

    kind: absolute (against `margin` itself), non_inferiority, superiority, or reward_hacking (reward up while
        `guarded_by` falls).
    against: the baselines; each gives a result of its own. Without a champion, base and SFT model stand in for it.
    margin: absolute: the threshold. Difference: how much worse is still allowed (non_inferiority), or how much better is
        asked for (superiority); ≥ 0, in the metric's unit. Ratio: the bound on candidate / baseline. Of a share of wins: how far below
        or above a half.
    scale, statistic: difference of means, or ratio of means or medians.
    alpha: of each one-sided bound. min_n: fewest paired items.
    waiver: a reason for which a *missing* measurement lets through; a measured one is never waived.
    """

    name: str
    group: str
    metric: str
    kind: str
    suite: str | None = None
    against: tuple[str, ...] = ()
    margin: float = 0.0
    scale: str = "difference"
    statistic: str = "mean"
    alpha: float = 0.05
    min_n: int = 1
    slices: tuple[SliceRule, ...] = ()
    guarded_by: str | None = None
    on_missing: str = "block"
    waiver: str | None = None

    def __post_init__(self) -> None:
        where = f"gate {self.name}"
        _one_of(where, "group", self.group, GROUPS)
        _metric(where, "metric", self.metric)
        _one_of(where, "kind", self.kind, KINDS)
        _one_of(where, "scale", self.scale, SCALES)
        _one_of(where, "statistic", self.statistic, STATISTICS)
        _one_of(where, "on_missing", self.on_missing, ("block",))
        for role in self.against:
            _one_of(where, "against", role, BASELINES)
        if not 0 < self.alpha < 0.5:
            raise GateError(f"{where}.alpha: {self.alpha} is not between 0 and 0.5")
        if self.min_n < 1:
            raise GateError(f"{where}.min_n: {self.min_n} is not at least 1")
        _check_fit(where, self)

    @property
    def direction(self) -> str:
        return metric_of(self.metric).direction

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "against": list(self.against),
            "slices": [asdict(rule) for rule in self.slices],
            "direction": self.direction,
        }

    @property
    def digest(self) -> str:
        return digest("gate-policy", self.to_json())


def _one_of(where: str, name: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise GateError(f"{where}.{name}: {value!r} is none of {', '.join(sorted(allowed))}")


def _metric(where: str, name: str, value: str) -> None:
    if not is_metric(value):
        _one_of(where, name, value, (*METRICS, f"{DIMENSION_SCORE}<dimension>"))


def _check_fit(where: str, policy: GatePolicy) -> None:
    """Fields that only make sense together."""
    if (policy.kind == "absolute") == bool(policy.against):
        raise GateError(f"{where}.against: {'an absolute gate has no baseline' if policy.against else 'name at least one baseline'}")
    if policy.scale == "ratio" and policy.kind != "non_inferiority":
        raise GateError(f"{where}.scale: a ratio is for non_inferiority gates, this one is {policy.kind}")
    if policy.statistic == "median" and policy.scale != "ratio":
        raise GateError(f"{where}.statistic: a median is for ratios, this gate is of scale {policy.scale}")
    if policy.kind != "absolute" and policy.margin < 0:
        raise GateError(f"{where}.margin: {policy.margin} is below 0")
    if policy.scale == "ratio" and policy.margin <= 0:
        raise GateError(f"{where}.margin: the bound of a ratio is above 0, this is {policy.margin}")
    if policy.kind == "non_inferiority" and policy.scale == "difference" and policy.margin == 0:
        raise GateError(f"{where}.margin: without a margin nothing can be shown to be no worse; name one above 0")
    if (policy.kind == "reward_hacking") != (policy.guarded_by is not None):
        raise GateError(f"{where}.guarded_by: belongs to reward_hacking gates, and to all of them")
    if policy.slices and policy.kind == "reward_hacking":
        raise GateError(f"{where}.slices: a reward_hacking gate looks at all items together")
    if policy.guarded_by is not None:
        _metric(where, "guarded_by", policy.guarded_by)
    if policy.suite is None and policy.metric not in TIMED:
        raise GateError(f"{where}.suite is missing")
    if policy.waiver is not None and not policy.waiver.strip():
        raise GateError(f"{where}.waiver: a waiver needs a reason")
    _check_pairwise(where, policy)


def _check_pairwise(where: str, policy: GatePolicy) -> None:
    """A metric of two answers side by side is a share of wins: it has a baseline, a half, and nobody's own value."""
    if policy.group == "human_pairwise" and policy.metric != HUMAN_WIN_RATE:
        raise GateError(f"{where}.metric: {policy.metric} is nothing that people compared blindly; human_pairwise takes {HUMAN_WIN_RATE}")
    if policy.guarded_by is not None and metric_of(policy.guarded_by).pairwise:
        raise GateError(f"{where}.guarded_by: {policy.guarded_by} is measured of two answers together, not of each")
    if not metric_of(policy.metric).pairwise:
        return
    if policy.kind not in ("superiority", "non_inferiority") or policy.scale != "difference":
        raise GateError(f"{where}.kind: {policy.metric} is for superiority and non_inferiority gates of scale difference")
    if policy.margin >= 0.5:
        raise GateError(f"{where}.margin: {policy.margin} is no distance from a half that a share of wins can have; name one below 0.5")


@dataclass(frozen=True)
class GateSet:
    """All gates of a recipe.

    demonstration: whether waivers are allowed at all.
    not_built: group → why nothing measures it, which becomes a known risk of the release.
    judge_rules: what a model judge must show before a gate hears it, by the recipe; part of the digest, so that it too is fixed before
        anything is measured. Empty where no judge is asked.
    """

    name: str
    version: int
    demonstration: bool
    gates: tuple[GatePolicy, ...]
    not_built: Mapping[str, str] = field(default_factory=dict)
    judge_rules: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"gates {self.name}@{self.version}"
        names = [gate.name for gate in self.gates]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise GateError(f"{where}: two gates are called {twice[0]!r}")
        if not any(gate.kind == "superiority" for gate in self.gates):
            raise GateError(f"{where}: no gate of kind superiority; name at least one thing that must get better, or a mere copy passes")
        if all(gate.metric == JUDGE_WIN_RATE for gate in self.gates if gate.kind == "superiority"):
            raise GateError(
                f"{where}: a model judge's {JUDGE_WIN_RATE} is the only thing that must get better; a judge is never alone at the gate: "
                "name a superiority gate on something that is measured, or that people say"
            )
        if not any("anchor" in gate.against for gate in self.gates):
            raise GateError(f"{where}: no gate against the anchor; compare something with it, or a little is lost with each release")
        self._check_groups(where)

    def _check_groups(self, where: str) -> None:
        gated = {gate.group for gate in self.gates}
        for group, reason in self.not_built.items():
            _one_of(where, "not_built", group, GROUPS)
            if not reason.strip():
                raise GateError(f"{where}.not_built.{group}: a waiver needs a reason")
            if group in gated:
                raise GateError(f"{where}.not_built.{group}: gates of this group are there; it cannot be waived as not built")
        waivers = [*self.not_built, *(gate.name for gate in self.gates if gate.waiver is not None)]
        if waivers and not self.demonstration:
            raise GateError(f"{where}: {waivers[0]} is waived, which only a set marked `demonstration: true` may do")

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        body = {
            "name": self.name,
            "version": self.version,
            "demonstration": self.demonstration,
            "gates": [gate.digest for gate in self.gates],
            "not_built": dict(self.not_built),
            **({"judge_rules": dict(self.judge_rules)} if self.judge_rules else {}),
        }
        return digest("gate-set", body)
