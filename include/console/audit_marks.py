"""The figures of an annotation audit as marks on a line from 0 to 1 (kappa from -1), each with its interval and what is asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WIDTH = 260
"""Of a line, in pixels."""


@dataclass(frozen=True)
class Mark:
    """One figure on its line. at, low, high, asked: pixels from its left end; of a habit of side, `asked` is a half."""

    name: str
    measure: str
    state: str
    why: str
    at: float
    low: float
    high: float
    asked: float


_MEASURES = {
    "gold": ("gold items right", "min_gold_accuracy"),
    "majority": ("as most others", "min_majority_agreement"),
    "left": ("left chosen", None),
    "short": ("short answers win", "min_short_win_share"),
    "kappa": ("kappa", "min_kappa"),
}


def audit_marks(report: Mapping[str, Any]) -> list[Mark]:
    """Every figure that there is, of rubrics first."""
    return [mark for one in (*report["rubrics"], *report["annotators"]) for mark in _marks(one, report["thresholds"])]


def _marks(one: Mapping[str, Any], thresholds: Mapping[str, Any]) -> Iterator[Mark]:
    for name, measure in one["measures"].items():
        value, (words, threshold) = measure["kappa" if name == "kappa" else "share"], _MEASURES[name]
        if value is None:
            continue
        lowest = -1 if name == "kappa" else 0
        at, low, high = (_pixel(x, lowest) for x in (value, *(measure["interval"] or (value, value))))
        asked = _pixel(0.5 if threshold is None else thresholds[threshold], lowest)
        yield Mark(one["name"], words, measure["state"], measure["why"], at, low, high, asked)


def _pixel(value: float, lowest: float) -> float:
    return round(WIDTH * (value - lowest) / (1 - lowest), 1)
