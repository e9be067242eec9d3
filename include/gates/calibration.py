"""Whether a model judge says what people say: agreement beyond chance on the pairs that both judged, with an interval, by slice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.domain.agreement import cohen_kappa, raw_agreement
from include.gates.kappa_bounds import kappa_bounds

ALPHA = 0.05


@dataclass(frozen=True)
class Both:
    """One pair of answers that people and the judge have judged, as the candidate's share of wins (people's may be of several)."""

    group: str
    people: float
    judge: float
    slices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreement:
    """kappa: None where it is not defined; lower and upper: its one-sided 95 % bounds, by resampling prompt groups."""

    n: int
    share: float | None
    kappa: float | None
    lower: float | None
    upper: float | None

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Calibration:
    """Overall, and of each value of each slice."""

    overall: Agreement
    slices: Mapping[str, Mapping[str, Agreement]]

    def to_json(self) -> dict[str, Any]:
        slices = {by: {value: one.to_json() for value, one in of.items()} for by, of in self.slices.items()}
        return {"overall": self.overall.to_json(), "slices": slices}

    def shortfalls(self, floor: float, min_n: int) -> list[str]:
        """Why the judge is not to be believed, in words: its lower bound does not reach the floor, or a slice with `min_n` pairs lies
        below it; none where it is."""
        seen = self.overall
        if seen.n < min_n:
            return [f"people and the judge both judged {seen.n} pairs, {min_n} are asked for"]
        found = []
        if seen.kappa is None or seen.lower is None or seen.lower < floor:
            found.append(f"its kappa with people is {_words(seen)}, whose lower bound must reach {floor:g}")
        for by, of in sorted(self.slices.items()):
            for value, one in sorted(of.items()):
                if one.n >= min_n and (one.kappa is None or one.kappa < floor):
                    found.append(f"on {by}={value} its kappa with people is {_words(one)}, below {floor:g}")
        return found


def calibration_of(pairs: Sequence[Both]) -> Calibration:
    """Agreement on all pairs, and by every slice that they name. A share of wins counts as what it leans to."""
    keys = sorted({by for pair in pairs for by in pair.slices})
    slices = {by: {value: _agreement(of) for value, of in _by(pairs, by).items()} for by in keys}
    return Calibration(_agreement(pairs), slices)


def _by(pairs: Sequence[Both], by: str) -> dict[str, list[Both]]:
    found: dict[str, list[Both]] = {}
    for pair in pairs:
        if by in pair.slices:
            found.setdefault(pair.slices[by], []).append(pair)
    return found


def _lean(share: float) -> int:
    return int(share > 0.5) - int(share < 0.5)


def _agreement(pairs: Sequence[Both]) -> Agreement:
    said = [(_lean(pair.people), _lean(pair.judge)) for pair in pairs]
    kappa = cohen_kappa(said)
    bounds = None if kappa is None else kappa_bounds(said, [pair.group for pair in pairs], ALPHA)
    return Agreement(len(pairs), raw_agreement(said), kappa, *(bounds or (None, None)))


def _words(seen: Agreement) -> str:
    if seen.kappa is None or seen.lower is None or seen.upper is None:
        return f"not defined (n={seen.n})"
    return f"{seen.kappa:.2f} [{seen.lower:.2f}, {seen.upper:.2f}] (n={seen.n})"
