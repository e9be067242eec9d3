"""From labels to one verdict a comparison."""

from dataclasses import replace

import pytest

from include.data.aggregate import aggregate, standing
from include.data.errors import DataError

from .labels import candidate, label, prompt

P = prompt(1)
A, B = candidate(P, "first"), candidate(P, "second")


def _said(*verdicts: str) -> list:  # type: ignore[type-arg]
    return [label(A, B, verdict, annotator_id=f"annotator-{n}", label_id=f"label-{n}") for n, verdict in enumerate(verdicts)]


def test_the_side_shown_is_resolved_to_the_answer_that_stood_there() -> None:
    swapped = label(A, B, "B", swap_flag=True)
    (decision,) = aggregate([swapped]).decisions
    assert (decision.chosen_id, decision.rejected_id) == (B.candidate_id, A.candidate_id)
    assert aggregate([swapped]).left_win_share == 1.0
    assert aggregate([label(A, B, "B")]).left_win_share == 0.0


@pytest.mark.parametrize("verdict", ["tie", "both_bad", "cannot_judge"])
def test_what_is_not_decided_is_counted_and_never_a_pair(verdict: str) -> None:
    found = aggregate(_said(verdict))
    assert found.decisions == ()
    assert found.counts == {verdict: 1}
    assert found.left_win_share is None


@pytest.mark.parametrize(
    ("verdicts", "winner"),
    [
        (("A", "A", "B"), "A"),
        (("B", "B", "tie"), "B"),
        (("A", "cannot_judge"), "A"),
        (("A", "B"), None),
        (("A", "tie"), None),
        (("A", "A", "B", "tie"), None),
        (("tie", "tie", "A"), None),
    ],
)
def test_more_than_half_of_those_who_judged_decide(verdicts: tuple[str, ...], winner: str | None) -> None:
    chosen = [decision.chosen_id for decision in aggregate(_said(*verdicts)).decisions]
    assert chosen == ([] if winner is None else [{"A": A, "B": B}[winner].candidate_id])


def test_an_even_split_is_counted_apart_from_a_tie() -> None:
    assert aggregate(_said("A", "B")).counts == {"no_majority": 1}
    assert aggregate(_said("tie", "tie", "A")).counts == {"tie": 1}


def test_the_same_candidates_in_two_tasks_the_other_way_round_are_one_comparison() -> None:
    found = aggregate([label(A, B, "A"), label(B, A, "B", annotator_id="annotator-2", task_id="other")])
    assert len(found.decisions) == 1
    assert len(found.decisions[0].labels) == 2


def test_people_decide_before_programs() -> None:
    machine = label(A, B, "B", annotator_kind="verifier", label_id="v")
    person = label(A, B, "A", annotator_kind="human", label_id="h")
    (decision,) = aggregate([machine, person]).decisions
    assert decision.chosen_id == A.candidate_id
    assert set(decision.members) == {"h"}


def test_a_decision_names_every_label_that_counted() -> None:
    (decision,) = aggregate(_said("A", "B", "A")).decisions
    assert set(decision.members) == {"label-0", "label-1", "label-2"}
    assert decision.deciding.label_id == "label-0"


def test_superseded_and_withdrawn_labels_do_not_stand() -> None:
    first, second, third = _said("A", "A", "A")
    correction = replace(second, label_id="correction", supersedes=second.label_id)
    labels, counts = standing([first, second, third, correction], {third.label_id})
    assert [each.label_id for each in labels] == ["correction", "label-0"]
    assert counts == {"repeated": 0, "superseded": 1, "withdrawn": 1}


def test_an_export_that_repeats_labels_changes_nothing() -> None:
    labels = _said("A", "B", "A")
    once, _ = standing(labels, ())
    twice, counts = standing([*labels, *labels[::-1]], ())
    assert once == twice
    assert counts["repeated"] == 3


def test_one_id_with_two_contents_is_refused() -> None:
    (first,) = _said("A")
    with pytest.raises(DataError, match="label label-0 stands twice with different content"):
        standing([first, replace(first, reason_codes=("changed",))], ())
