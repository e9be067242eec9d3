"""The reward model's own report: by slice, on matched pairs, how far its confidence is earned, and length alone beside it."""

import math
from collections.abc import Sequence
from typing import Any

from include.training.pairs.rows import TokenPair
from include.training.reward.pair_scores import MemberScores, credit, together, validation_accuracy

OVERFIT_ACCURACY = 0.80
SLICES = ("language", "topic", "safety_class", "length", "format", "origin", "annotator_kind")
MOST_VALUES = 40
BINS = 10


def overfit(validated: float, held: float | None) -> str | None:
    """The warning that an accuracy too good to be true deserves; None where there is none."""
    highest = max(validated, held or 0.0)
    if highest <= OVERFIT_ACCURACY:
        return None
    return f"pair accuracy {highest:.2f} is above {OVERFIT_ACCURACY:.2f}: a sign of over-fitting; see that the policy's answers do not turn odd"


def validation_figures(members: Sequence[MemberScores]) -> dict[str, float]:
    """Figures of the validation pairs, of all members together and of each."""
    whole = members[0].validated if len(members) == 1 else together(members, "validated", "mean")
    figures = {f"validation_{name}": value for name, value in validation_accuracy(whole).items()}
    return figures | _of_members(members, "validated", "validation")


def holdout_figures(pairs: Sequence[TokenPair], members: Sequence[MemberScores]) -> dict[str, float]:
    """Flat figures of the hold-out pairs; {} without any."""
    if not pairs:
        return {}
    right, longer = together(members, "held", "mean"), longer_wins(pairs)
    matched = [i for i, pair in enumerate(pairs) if pair.all_slices["length"] == "matched"]
    formed = [i for i, pair in enumerate(pairs) if pair.slices.get("format") == "matched"]
    figures = {
        "accuracy": _mean(right.credit),
        "longer_wins": _mean(longer),
        "shorter_wins": 1 - _mean(longer),
        "margin": _mean(right.margins),
        "calibration_error": calibration(probabilities(members))["error"],
        "length_matched_pairs": float(len(matched)),
        "format_matched_pairs": float(len(formed)),
    }
    for name, chosen in (("length_matched", matched), ("format_matched", formed)):
        if chosen:
            figures[f"accuracy_{name}"] = _mean([right.credit[i] for i in chosen])
    for dimension in ("length", "origin"):
        for value, row in by_slice(pairs, right.credit, longer, dimension).items():
            figures[f"accuracy_{value.split(':')[0]}"] = row["accuracy"]
    return {f"holdout_{name}": value for name, value in figures.items()} | _of_members(members, "held", "holdout")


def holdout_report(pairs: Sequence[TokenPair], members: Sequence[MemberScores]) -> dict[str, Any]:
    """What report.json and the report artifact say of the hold-out pairs; every accuracy with its number of pairs and, beside it, the
    accuracy of a judge that only looks at length."""
    if not pairs:
        return {"pairs": 0}
    right, longer = together(members, "held", "mean"), longer_wins(pairs)
    return {
        "pairs": len(pairs),
        "slices": {dimension: by_slice(pairs, right.credit, longer, dimension) for dimension in SLICES},
        "calibration": calibration(probabilities(members)),
        "length_only": {"longer_wins": _mean(longer), "shorter_wins": 1 - _mean(longer)},
        "disagreement": _disagreement(members) if len(members) > 1 else None,
    }


def longer_wins(pairs: Sequence[TokenPair]) -> list[float]:
    """What 'the longer answer is better' gets of each pair."""
    return credit([float(p.chosen_tokens) for p in pairs], [float(p.rejected_tokens) for p in pairs])


def by_slice(pairs: Sequence[TokenPair], right: Sequence[float], longer: Sequence[float], dimension: str) -> dict[str, dict[str, float]]:
    """value → {n, accuracy, length_only}: the larger of 'longer wins' and 'shorter wins' in the slice. Rare values are put together."""
    found: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        found.setdefault(str(pair.all_slices.get(dimension)), []).append(index)
    kept = sorted(found, key=lambda value: (-len(found[value]), value))[:MOST_VALUES]
    if rest := [i for value in found if value not in kept for i in found[value]]:
        found["(others)"] = rest
        kept.append("(others)")
    rows = {}
    for value in sorted(kept):
        chosen = found[value]
        by_length = _mean([longer[i] for i in chosen])
        rows[value] = {
            "n": float(len(chosen)),
            "accuracy": _mean([right[i] for i in chosen]),
            "length_only": max(by_length, 1 - by_length),
        }
    return rows


def probabilities(members: Sequence[MemberScores], side: str = "held") -> list[float]:
    """The Bradley-Terry probability of each pair's chosen answer, σ(r_chosen − r_rejected) of raw scores; the mean over members."""
    margins = [getattr(member, side).margins for member in members]
    return [_mean([_sigmoid(margin) for margin in row]) for row in zip(*margins, strict=True)]


def calibration(probability: Sequence[float]) -> dict[str, Any]:
    """How far confidence is earned: expected calibration error over ten bins of confidence in [½, 1] (Guo et al. 2017), and the Brier score.

    The side a model prefers gets confidence max(p, 1 − p); it is right where p > ½, half right where p = ½.
    """
    bins: list[list[tuple[float, float]]] = [[] for _ in range(BINS)]
    for p in probability:
        confidence = max(p, 1 - p)
        at = min(int((confidence - 0.5) * 2 * BINS), BINS - 1)
        bins[at].append((confidence, 1.0 if p > 0.5 else 0.5 if p == 0.5 else 0.0))
    rows = [
        {
            "from": 0.5 + at / (2 * BINS),
            "n": len(inside),
            "confidence": _mean([c for c, _ in inside]),
            "accuracy": _mean([r for _, r in inside]),
        }
        for at, inside in enumerate(bins)
        if inside
    ]
    total = max(len(probability), 1)
    error = math.fsum(row["n"] / total * abs(row["confidence"] - row["accuracy"]) for row in rows)
    return {"error": error, "brier": _mean([(1 - p) ** 2 for p in probability]), "bins": rows}


def _of_members(members: Sequence[MemberScores], side: str, name: str) -> dict[str, float]:
    """Each member's own accuracy and that of their minimum; nothing where there is one."""
    if len(members) == 1 or not members[0].validated.chosen or not getattr(members[0], side).chosen:
        return {}
    own = {f"{name}_accuracy_member_{i}": _mean(getattr(m, side).credit) for i, m in enumerate(members, 1)}
    return {**own, f"{name}_accuracy_minimum": _mean(together(members, side, "minimum").credit)}


def _disagreement(members: Sequence[MemberScores]) -> dict[str, float]:
    """On how many pairs not all members prefer the same side, and the mean deviation between members' normalised scores of an answer."""
    credits = list(zip(*(member.held.credit for member in members), strict=True))
    spread = []
    for which in ("chosen", "rejected"):
        for row in zip(*(getattr(member.held, which) for member in members), strict=True):
            own = [member.normaliser.normalise(value) for member, value in zip(members, row, strict=True)]
            middle = _mean(own)
            spread.append(math.sqrt(_mean([(value - middle) ** 2 for value in own])))
    return {"pairs_share": _mean([len(set(row)) > 1 for row in credits]), "score_deviation": _mean(spread)}


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
