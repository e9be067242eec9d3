"""From labels to one verdict a comparison. The policy has a version: the same labels under another policy are another dataset.

majority@1: of each task count the labels that stand (neither superseded nor withdrawn). People's labels decide where there are any,
else demonstration accounts', else programs'. An answer is chosen when more than half of the labels that judged say so; ties, both_bad,
cannot_judge and an even split never become a pair.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from include.data.errors import DataError
from include.domain.agreement import strict_majority
from include.domain.records import Label, record_digest

POLICY = "majority@1"
_PRECEDENCE = ("human", "demo", "judge", "verifier", "imported")


@dataclass(frozen=True)
class Decision:
    """One comparison that was decided. `labels`: all that counted, of either opinion, by label id."""

    prompt_id: str
    chosen_id: str
    rejected_id: str
    labels: tuple[Label, ...]

    @property
    def deciding(self) -> Label:
        """The first of the labels that agree with the decision."""
        return next(label for label in self.labels if label.chosen_candidate_id == self.chosen_id)

    @property
    def members(self) -> dict[str, str]:
        """label_id → digest of every label that counted."""
        return {label.label_id: record_digest("label", label) for label in self.labels}


@dataclass(frozen=True)
class Aggregated:
    """decisions, and what did not become one, by reason; left_wins and right_wins count decided labels by the side shown."""

    decisions: tuple[Decision, ...]
    counts: Mapping[str, int]
    left_wins: int
    right_wins: int

    @property
    def left_win_share(self) -> float | None:
        """None where no label decided anything."""
        decided = self.left_wins + self.right_wins
        return self.left_wins / decided if decided else None


def standing(labels: Iterable[Label], withdrawn: Collection[str]) -> tuple[list[Label], dict[str, int]]:
    """The labels that count, by id; a label given twice counts once, what another supersedes or a withdrawal names does not.

    Raises:
        DataError: one label id with two contents.
    """
    by_id: dict[str, Label] = {}
    repeated = 0
    for label in labels:
        if label.label_id in by_id:
            if by_id[label.label_id] != label:
                raise DataError(f"label {label.label_id} stands twice with different content: labels are append-only")
            repeated += 1
        by_id[label.label_id] = label
    superseded = {label.supersedes for label in by_id.values() if label.supersedes}
    gone = set(withdrawn)
    out = [by_id[i] for i in sorted(by_id) if i not in superseded and i not in gone]
    counts = {"repeated": repeated, "superseded": len(superseded & set(by_id)), "withdrawn": len((gone & set(by_id)) - superseded)}
    return out, counts


def aggregate(labels: Sequence[Label]) -> Aggregated:
    """The decisions of standing labels, by prompt and candidates, sorted."""
    groups: dict[tuple[str, str, str], list[Label]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for label in labels:
        first, second = sorted((label.candidate_a_id, label.candidate_b_id))
        groups[label.prompt_id, first, second].append(label)
    decisions = []
    for key in sorted(groups):
        decided = _decide(key, groups[key])
        if isinstance(decided, Decision):
            decisions.append(decided)
        else:
            counts[decided] += 1
    left = sum(label.chosen_candidate_id == label.display_order[0] for label in labels)
    right = sum(label.chosen_candidate_id == label.display_order[1] for label in labels)
    return Aggregated(tuple(decisions), dict(sorted(counts.items())), left, right)


def _decide(key: tuple[str, str, str], labels: Sequence[Label]) -> Decision | str:
    """The decision, or the name of what there is instead."""
    best = min(_PRECEDENCE.index(label.annotator_kind) for label in labels)
    counted = tuple(sorted((x for x in labels if _PRECEDENCE.index(x.annotator_kind) == best), key=lambda x: x.label_id))
    judged = [label for label in counted if label.verdict != "cannot_judge"]
    if not judged:
        return "cannot_judge"
    winner = strict_majority([label.chosen_candidate_id or label.verdict for label in judged])
    if winner is None:
        return "no_majority"
    if winner in ("tie", "both_bad"):
        return winner
    loser = key[2] if winner == key[1] else key[1]
    return Decision(key[0], winner, loser, counted)
