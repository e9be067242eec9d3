"""How far annotators agree. With one annotator there is nothing to compare: *not applicable*, never 1.0."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from include.domain.agreement import cohen_kappa, krippendorff_alpha, one_sided, raw_agreement, wilson
from include.domain.records import Label

RUBRIC_KAPPA = 0.6
"""Cohen's kappa below which the rubric is reviewed."""
_FLIPPED = {"A": "B", "B": "A"}
Unit = tuple[str, str, str]


@dataclass(frozen=True)
class Agreement:
    """What a set of labels says about its annotators.

    applicable: at least two annotators judged one comparison. comparisons: pairs of judgements compared. kappa: mean of Cohen's kappa
    over pairs of annotators, weighted by the items they share; kappas: each pair of annotators. left_win_share: of decided labels,
    those that chose the side shown on the left, with its Wilson interval at 99 %. tie_share: of all labels, those that say tie.
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
    left_win_interval: tuple[float, float] | None = None

    @property
    def one_sided(self) -> bool:
        """One side of the screen wins more often than chance: a habit, as sides are drawn at random."""
        return one_sided(self.left_win_interval)

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
    units = {unit: {who: category(label) for who, label in said.items()} for unit, said in judged(labels).items()}
    return _figures(units, labels)


def judged(labels: Sequence[Label]) -> dict[Unit, dict[str, Label]]:
    """Of each comparison (the prompt, and its two candidates by id) what each annotator judged last; `cannot_judge` is no judgement."""
    units: dict[Unit, dict[str, Label]] = defaultdict(dict)
    for label in sorted(labels, key=lambda label: (label.created_at, label.label_id)):
        if label.verdict != "cannot_judge":
            first, second = sorted((label.candidate_a_id, label.candidate_b_id))
            units[label.prompt_id, first, second][label.annotator_id] = label
    return dict(units)


def category(label: Label) -> str:
    """The verdict, where A and B mean the first and second candidate by id, whichever way round the task had them."""
    return label.verdict if label.candidate_a_id <= label.candidate_b_id else _FLIPPED.get(label.verdict, label.verdict)


def _figures(units: Mapping[Unit, Mapping[str, str]], labels: Sequence[Label]) -> Agreement:
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
        left_win_interval=wilson(sides.count(0), len(sides)) if sides else None,
        tie_share=sum(label.verdict == "tie" for label in labels) / len(labels) if labels else None,
    )
