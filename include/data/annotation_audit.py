"""The verdict on an interval's labels: whose work and which rubric is to be reviewed. What too few items speak for is *not enough*, never *fine*.

The report is a plain JSON object without a time or host of the run, so that the same labels and thresholds are the same report.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from scipy.stats import binomtest

from include.data.agreement import RUBRIC_KAPPA
from include.data.audit_figures import Figures, OfAnnotator, OfRubric, Share, rounded
from include.domain.agreement import falls_short

SCHEMA = "align/annotation-audit/v1"
FINE, NOT_ENOUGH, NOT_DEFINED, REVIEW = "fine", "not enough", "not defined", "to be reviewed"
NOTHING, NOTHING_CROSSED = "nothing to audit", "no threshold crossed"
Json = dict[str, Any]


@dataclass(frozen=True)
class Thresholds:
    """min_gold_labels: of gold items; min_items: of everything else that a share or kappa is judged by.

    min_majority_agreement: with what most of the others said. side_alpha: how improbable a share of left choices must be with sides drawn at
    random, over all annotators of the report together. min_short_win_share: of comparisons with a short answer, won by it.
    """

    min_gold_accuracy: float = 0.8
    min_gold_labels: int = 5
    min_kappa: float = RUBRIC_KAPPA
    min_majority_agreement: float = 0.6
    side_alpha: float = 0.01
    min_short_win_share: float = 0.2
    min_items: int = 20


@dataclass(frozen=True)
class Interval:
    """[since, until), in UTC, to the second."""

    since: datetime
    until: datetime

    @property
    def before(self) -> "Interval":
        """The one of the same length that ends where this one begins."""
        return Interval(self.since - (self.until - self.since), self.since)

    def to_json(self) -> dict[str, str]:
        return {name: f"{getattr(self, name):%Y-%m-%dT%H:%M:%SZ}" for name in ("since", "until")}


def audit(interval: Interval, now: Figures, before: Figures, asked: Thresholds, rubric: str | None = None) -> Json:
    """The report of `interval`, with what the interval before said beside it."""
    tested = sum(one.left.of >= asked.min_items for one in now.annotators.values())
    annotators = [_annotator(one, before.annotators.get(who), asked, tested) for who, one in now.annotators.items()]
    rubrics = [_rubric(one, before.rubrics.get(name), asked) for name, one in now.rubrics.items()]
    review = [*_to_review("annotator", annotators), *_to_review("rubric", rubrics)]
    return {
        "schema": SCHEMA,
        **interval.to_json(),
        "rubric": rubric,
        "thresholds": asdict(asked),
        "status": _status(now, review, [*annotators, *rubrics]),
        "review": review,
        "labels": {"people": now.people, "gold": now.gold, "programs": now.programs},
        "annotators": annotators,
        "rubrics": rubrics,
        "before": {**interval.before.to_json(), "labels": {"people": before.people, "gold": before.gold, "programs": before.programs}},
    }


def _status(now: Figures, review: list[Json], of: Iterable[Json]) -> str:
    if not now.people:
        return NOTHING
    if review:
        return REVIEW
    states = [measure["state"] for one in of for measure in one["measures"].values()]
    return NOTHING_CROSSED if FINE in states else NOT_ENOUGH


def _to_review(kind: str, of: Iterable[Json]) -> Iterable[Json]:
    return [
        {"kind": kind, "name": one["name"], "measure": name, "why": measure["why"]}
        for one in of
        for name, measure in one["measures"].items()
        if measure["state"] == REVIEW
    ]


def _annotator(one: OfAnnotator, before: OfAnnotator | None, asked: Thresholds, tested: int) -> Json:
    past: dict[str, Share] = {name: getattr(before, name) for name in ("gold", "majority", "left", "short")} if before else {}
    return {
        "name": one.annotator,
        "kind": one.kind,
        "labels": one.labels,
        "undecided": dict(one.undecided),
        "median_seconds": one.median_seconds,
        "longer": one.longer.to_json(),
        "measures": {
            "gold": _least("gold items right", one.gold, past.get("gold"), asked.min_gold_accuracy, asked.min_gold_labels),
            "majority": _least("as most others", one.majority, past.get("majority"), asked.min_majority_agreement, asked.min_items),
            "left": _left(one.left, past.get("left"), asked, tested),
            "short": _least("short answers win", one.short, past.get("short"), asked.min_short_win_share, asked.min_items),
        },
    }


def _least(what: str, seen: Share, before: Share | None, least: float, least_of: int) -> Json:
    state = NOT_ENOUGH if seen.of < least_of else REVIEW if falls_short(seen.part, seen.of, least, least_of) else FINE
    why = f"{what}: {_words(seen)}, " + (f"judged from {least_of} on" if state == NOT_ENOUGH else f"at least {least:g} is asked for")
    return _measure(seen, before, state, why)


def _left(seen: Share, before: Share | None, asked: Thresholds, tested: int) -> Json:
    """Two-sided, exact; several annotators are several tries, so that each is held to its part of `side_alpha` (Bonferroni)."""
    p = float(binomtest(seen.part, seen.of, 0.5).pvalue) if seen.of else None
    if p is None or seen.of < asked.min_items:
        return {**_measure(seen, before, NOT_ENOUGH, f"left chosen: {_words(seen)}, judged from {asked.min_items} on"), "p": rounded(p)}
    state = REVIEW if p * tested < asked.side_alpha else FINE
    least = f"{asked.side_alpha:g}" + (f" / {tested}" if tested > 1 else "")
    why = f"left chosen: {_words(seen)}, p {p:.2g} with sides drawn at random; below {least} it is a habit"
    return {**_measure(seen, before, state, why), "p": rounded(p)}


def _measure(seen: Share, before: Share | None, state: str, why: str) -> Json:
    return {**seen.to_json(), "state": state, "why": why, "before": before.to_json() if before else None}


def _words(seen: Share) -> str:
    return "none" if seen.share is None else f"{seen.part} of {seen.of} ({seen.share:.2f})"


def _rubric(one: OfRubric, before: OfRubric | None, asked: Thresholds) -> Json:
    return {
        "name": one.rubric,
        "labels": one.labels,
        "annotators": one.annotators,
        "agreeing": one.agreeing.to_json(),
        "same_sides": one.same_sides.to_json(),
        "swapped": one.swapped.to_json(),
        "left": one.left.to_json(),
        "measures": {"kappa": {**_seen(one), **_judged(one, asked), "before": before and _seen(before)}},
    }


def _seen(one: OfRubric) -> Json:
    return {"kappa": rounded(one.kappa), "interval": one.bounds and [rounded(bound) for bound in one.bounds], "items": one.items}


def _judged(one: OfRubric, asked: Thresholds) -> Json:
    shown = "not defined" if one.kappa is None else f"{one.kappa:.2f}"
    what = f"Cohen's kappa {shown} on {one.items} doubly labelled items"
    if one.items < asked.min_items:
        state, why = NOT_ENOUGH, f"{what}, judged from {asked.min_items} on"
    elif one.kappa is None:
        state, why = NOT_DEFINED, f"{what}: everybody said one and the same"
    else:
        state, why = REVIEW if one.kappa < asked.min_kappa else FINE, f"{what}, at least {asked.min_kappa:g} is asked for"
    return {"state": state, "why": why}
