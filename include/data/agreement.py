"""How far annotators agree. With one annotator there is nothing to compare: *not applicable*, never 1.0."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from include.domain.records import Label

RUBRIC_KAPPA = 0.6
"""Cohen's kappa below which the rubric is reviewed."""
_FLIPPED = {"A": "B", "B": "A"}


def raw_agreement(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Share of items on which two raters say the same; None without items."""
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Agreement of two raters beyond chance, (p_o - p_e) / (1 - p_e) (Cohen 1960).

    None without items, and where both raters said one and the same throughout: chance alone would then agree on everything.
    """
    if not pairs:
        return None
    n = len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(first[category] * second[category] for category in first) / n**2
    observed = sum(a == b for a, b in pairs) / n
    return None if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(units: Iterable[Sequence[Hashable]]) -> float | None:
    """Agreement of any number of raters, nominal, with items that not all of them rated (Krippendorff 2011).

    Args:
        units: the ratings of each item; an item with fewer than two ratings tells nothing.

    Returns:
        None where no item has two ratings, or all ratings are of one category.
    """
    rated = [Counter(unit) for unit in units if len(unit) > 1]
    totals: Counter[Hashable] = Counter()
    disagreement = 0.0
    for counts in rated:
        size = counts.total()
        totals.update(counts)
        disagreement += (size**2 - sum(n**2 for n in counts.values())) / (size - 1)
    size = totals.total()
    chance = size**2 - sum(n**2 for n in totals.values())
    return 1 - (size - 1) * disagreement / chance if chance else None


@dataclass(frozen=True)
class Agreement:
    """What a set of labels says about its annotators.

    applicable: at least two annotators judged one comparison. comparisons: pairs of judgements compared. kappa: mean of Cohen's kappa
    over pairs of annotators, weighted by the items they share; kappas: each pair of annotators. left_win_share: of decided labels,
    those that chose the side shown on the left. tie_share: of all labels, those that say tie.
    """

    applicable: bool
    annotators: int
    tasks: int
    comparisons: int
    raw: float | None
    kappa: float | None
    alpha: float | None
    kappas: Mapping[tuple[str, str], float]
    left_win_share: float | None
    tie_share: float | None

    @property
    def rubric_in_doubt(self) -> bool:
        """Kappa is so low that the rubric, not the annotators, is to be looked at first."""
        return self.kappa is not None and self.kappa < RUBRIC_KAPPA

    def to_json(self) -> dict[str, Any]:
        """The figures without the pairs of annotators: who agrees with whom is no business of training data."""
        return {name: value for name, value in vars(self).items() if name != "kappas"}

    @property
    def text(self) -> str:
        if not self.applicable:
            return (
                f"agreement: not applicable ({self.annotators} annotator{'' if self.annotators == 1 else 's'}, no comparison judged twice)"
            )
        figures = {"raw": self.raw, "kappa": self.kappa, "alpha": self.alpha}
        shown = ", ".join(f"{name} {'not defined' if value is None else f'{value:.3f}'}" for name, value in figures.items())
        return f"agreement: {shown} over {self.tasks} comparisons of {self.annotators} annotators"


def agreement_of(labels: Sequence[Label]) -> Agreement:
    """Figures over standing labels (see `aggregate.standing`); `cannot_judge` is no judgement."""
    units: dict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
    for label in sorted(labels, key=lambda label: (label.created_at, label.label_id)):
        if label.verdict != "cannot_judge":
            first, second = sorted((label.candidate_a_id, label.candidate_b_id))
            units[label.prompt_id, first, second][label.annotator_id] = _category(label, first)
    return _figures(units, labels)


def _category(label: Label, first: str) -> str:
    """A and B mean the first and second candidate by id, whichever way round the task had them."""
    return label.verdict if label.candidate_a_id == first else _FLIPPED.get(label.verdict, label.verdict)


def _figures(units: Mapping[tuple[str, str, str], Mapping[str, str]], labels: Sequence[Label]) -> Agreement:
    shared: dict[tuple[str, str], list[tuple[Hashable, Hashable]]] = defaultdict(list)
    for said in units.values():
        for one, other in combinations(sorted(said), 2):
            shared[one, other].append((said[one], said[other]))
    together = [pair for pairs in shared.values() for pair in pairs]
    kappas = {who: kappa for who, pairs in sorted(shared.items()) if (kappa := cohen_kappa(pairs)) is not None}
    weight = sum(len(shared[who]) for who in kappas)
    sides = [label.display_order.index(label.chosen_candidate_id) for label in labels if label.chosen_candidate_id]
    return Agreement(
        applicable=bool(together),
        annotators=len({label.annotator_id for label in labels}),
        tasks=sum(len(said) > 1 for said in units.values()),
        comparisons=len(together),
        raw=raw_agreement(together),
        kappa=sum(kappa * len(shared[who]) for who, kappa in kappas.items()) / weight if weight else None,
        alpha=krippendorff_alpha([list(said.values()) for said in units.values()]),
        kappas=kappas,
        left_win_share=sides.count(0) / len(sides) if sides else None,
        tie_share=sum(label.verdict == "tie" for label in labels) / len(labels) if labels else None,
    )
