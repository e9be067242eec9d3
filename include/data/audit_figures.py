"""What the labels of an interval say of the people who gave them, and of the rubrics they were given by. Counts and shares; nothing is judged here.

Gold items count in gold accuracy alone: everybody sees them, and they are easier than work. A program's labels are not a person's habit, and
are only counted.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any

from include.data.agreement import category, judged
from include.data.short_wins import short_by_length
from include.domain.agreement import Z_95, cohen_kappa, strict_majority, wilson
from include.gates.kappa_bounds import kappa_bounds

if TYPE_CHECKING:
    from include.data.annotation_client import CollectedLabel

PEOPLE = ("human", "demo")
UNDECIDED = ("tie", "both_bad", "cannot_judge")
_TAIL = 0.025
_DIGITS = 6
"""So many digits of a figure are kept, so that another release of a library gives the same report."""


@dataclass(frozen=True)
class Share:
    """`part` of `of`, with Wilson's 95 % interval; of nothing there is no share."""

    part: int
    of: int

    @property
    def share(self) -> float | None:
        return self.part / self.of if self.of else None

    def to_json(self) -> dict[str, Any]:
        interval = wilson(self.part, self.of, Z_95) if self.of else None
        return {"part": self.part, "of": self.of, "share": rounded(self.share), "interval": interval and [rounded(x) for x in interval]}


@dataclass(frozen=True)
class OfAnnotator:
    """Of one annotator.

    gold: gold items judged right. majority: judgements that are also what more than half of the others said of that comparison (of two
    people: what the other said). left, longer: of decided comparisons, those won by the answer on the left, or by the one with more
    characters (equal ones left out). short: of those where one answer is at most two thirds as long, won by it. undecided: the work's
    verdicts that name no answer. median_seconds: from being shown to being labelled, corrections left out.
    """

    annotator: str
    kind: str
    labels: int
    gold: Share
    majority: Share
    left: Share
    longer: Share
    short: Share
    undecided: Mapping[str, int]
    median_seconds: float | None


@dataclass(frozen=True)
class OfRubric:
    """Of one rubric version, over work that two people or more have judged.

    items: such comparisons. agreeing: pairs of judgements that say the same, of all pairs. kappa: Cohen's, of all pairs together, the two
    in the order of their pseudonyms (of two people it is theirs); bounds: its 95 % interval over other prompts. same_sides, swapped:
    `agreeing` where both saw the answers on the same sides, and where not. left: decided judgements of the left answer.
    """

    rubric: str
    labels: int
    annotators: int
    items: int
    agreeing: Share
    kappa: float | None
    bounds: tuple[float, float] | None
    same_sides: Share
    swapped: Share
    left: Share


@dataclass(frozen=True)
class Figures:
    """people, gold: labels of people, and those of them on gold items; programs: labels that nobody is audited for."""

    people: int
    gold: int
    programs: int
    annotators: Mapping[str, OfAnnotator]
    rubrics: Mapping[str, OfRubric]


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def figures_of(collected: "Sequence[CollectedLabel]", rubric: str | None = None) -> Figures:
    """Figures of the labels that stood; `rubric`: of that version's alone."""
    wanted = [one for one in collected if rubric is None or one.label.rubric_version == rubric]
    people = [one for one in wanted if one.label.annotator_kind in PEOPLE]
    work = [one for one in people if one.gold is None]
    rubrics = _grouped(work, lambda one: one.label.rubric_version)
    agreed = Counter[tuple[str, bool]]()
    for name in rubrics:
        agreed.update(_with_the_others([one.label for one in rubrics[name]]))
    return Figures(
        people=len(people),
        gold=len(people) - len(work),
        programs=len(wanted) - len(people),
        annotators={
            who: _of_annotator(who, of, Share(agreed[who, True], agreed[who, True] + agreed[who, False]))
            for who, of in _grouped(people, lambda one: one.label.annotator_id).items()
        },
        rubrics={name: _of_rubric(name, of) for name, of in rubrics.items()},
    )


def _grouped(collected: "Sequence[CollectedLabel]", key: Any) -> "dict[str, list[CollectedLabel]]":
    found: dict[str, list[CollectedLabel]] = defaultdict(list)
    for one in collected:
        found[key(one)].append(one)
    return dict(sorted(found.items()))


def _with_the_others(labels: Sequence[Any]) -> Iterator[tuple[str, bool]]:
    """(annotator, whether they say what most of the others say), for each judgement of a comparison on which the others have a majority."""
    for said in judged(labels).values():
        words = {who: category(label) for who, label in said.items()}
        for who, word in words.items():
            others = strict_majority([other for name, other in words.items() if name != who])
            if others is not None:
                yield who, word == others


def _of_annotator(who: str, collected: "Sequence[CollectedLabel]", majority: Share) -> OfAnnotator:
    known = [one for one in collected if one.gold is not None]
    work = [one for one in collected if one.gold is None]
    lengths = [(_chosen_length(one), one.characters) for one in work if one.label.chosen_candidate_id]
    unequal = [(chosen, both) for chosen, both in lengths if both[0] != both[1]]
    contrasts = [(chosen, both) for chosen, both in unequal if short_by_length(*both)]
    return OfAnnotator(
        annotator=who,
        kind=collected[0].label.annotator_kind,
        labels=len(collected),
        gold=Share(sum(one.label.verdict == one.gold for one in known), len(known)),
        majority=majority,
        left=_left(work),
        longer=Share(sum(chosen == max(both) for chosen, both in unequal), len(unequal)),
        short=Share(sum(chosen == min(both) for chosen, both in contrasts), len(contrasts)),
        undecided={verdict: sum(one.label.verdict == verdict for one in work) for verdict in UNDECIDED},
        median_seconds=_median_seconds(collected),
    )


def _chosen_length(one: "CollectedLabel") -> int:
    return one.characters[0] if one.label.verdict == "A" else one.characters[1]


def _left(collected: "Collection[CollectedLabel]") -> Share:
    sides = [one.label.display_order.index(one.label.chosen_candidate_id) for one in collected if one.label.chosen_candidate_id]
    return Share(sides.count(0), len(sides))


def _median_seconds(collected: "Sequence[CollectedLabel]") -> float | None:
    first = [one for one in collected if one.label.supersedes is None]
    took = [(datetime.fromisoformat(one.label.created_at) - datetime.fromisoformat(one.shown_at)).total_seconds() for one in first]
    return round(median(took), 1) if took else None


def _of_rubric(name: str, collected: "Sequence[CollectedLabel]") -> OfRubric:
    labels = [one.label for one in collected]
    units = {unit: said for unit, said in judged(labels).items() if len(said) > 1}
    pairs = [(unit[0], said[one], said[other]) for unit, said in units.items() for one, other in combinations(sorted(said), 2)]
    words = [(category(one), category(other)) for _, one, other in pairs]
    same = [one.display_order == other.display_order for _, one, other in pairs]
    kappa = cohen_kappa(words)
    return OfRubric(
        rubric=name,
        labels=len(labels),
        annotators=len({label.annotator_id for label in labels}),
        items=len(units),
        agreeing=_agreeing(words),
        kappa=kappa,
        bounds=None if kappa is None else kappa_bounds(words, [prompt for prompt, _, _ in pairs], _TAIL),
        same_sides=_agreeing([word for word, alike in zip(words, same, strict=True) if alike]),
        swapped=_agreeing([word for word, alike in zip(words, same, strict=True) if not alike]),
        left=_left(collected),
    )


def _agreeing(words: Sequence[tuple[str, str]]) -> Share:
    return Share(sum(one == other for one, other in words), len(words))
