"""Which answers are compared, and how many of the comparisons people get."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from include.data.short_wins import short_beside, short_wins
from include.flows.comparisons import added, compared, pairs_of, shared_out
from include.flows.errors import FlowError
from include.settings.annotation import AnnotationSettings
from tests.data.labels import candidate, prompt

PROMPTS = {p.prompt_id: p for p in (prompt(n) for n in range(60))}


def wanted(**changed: Any) -> AnnotationSettings:
    return AnnotationSettings.model_validate({"rubric": "r@1", "min_labels": 1, "verifier": False, **changed})


def answers(*texts: str) -> list[Any]:
    return [candidate(p, text, random_seed=n) for p in PROMPTS.values() for n, text in enumerate(texts)]


def test_answers_that_are_equal_are_not_compared_and_the_others_of_their_prompt_are() -> None:
    found = compared(answers("same", "same", "other"), PROMPTS)
    assert [{t.candidate_a.response_text, t.candidate_b.response_text} for t in found] == [{"same", "other"}] * 60
    assert compared(answers("same", "same"), PROMPTS) == []


@pytest.mark.parametrize(("most", "pairs"), [(1, 1), (2, 2), (3, 3), (6, 6), (9, 6)])
def test_of_four_answers_so_many_pairs_are_compared_and_each_answer_about_as_often(most: int, pairs: int) -> None:
    found = pairs_of(answers("a", "b", "c", "d")[:4], most)
    assert len(found) == len({frozenset((a.candidate_id, b.candidate_id)) for a, b in found}) == pairs
    uses = Counter(c.candidate_id for pair in found for c in pair)
    assert max(uses.values()) - (min(uses.values()) if len(uses) == 4 else 0) <= 1
    assert [c.response_text for c in found[0]] == ["a", "b"]


def test_without_a_verifier_people_get_as_many_as_the_recipe_says_drawn_by_hash() -> None:
    tasks = compared(answers("a", "b"), PROMPTS)
    chosen, people = shared_out(tasks, wanted(human_tasks=20), unattended=False)
    assert (len(chosen), people) == (20, 20)
    assert [t.prompt.prompt_id for t in chosen] == sorted(t.prompt.prompt_id for t in chosen)
    assert shared_out(tasks[::-1], wanted(human_tasks=20), unattended=False)[0] == chosen[::-1]
    assert shared_out(tasks, wanted(), unattended=False) == (tasks, 60)
    assert shared_out(tasks, wanted(human_tasks=20, verifier=True), unattended=False) == (tasks, 20)
    assert shared_out(tasks, wanted(human_tasks=20, verifier=True), unattended=True) == (tasks, 0)


def test_more_labels_than_can_come_are_refused_and_a_second_opinion_is_a_label_too() -> None:
    tasks = compared(answers("a", "b"), PROMPTS)
    with pytest.raises(FlowError, match="20 labels can come of 20 comparisons, annotation.min_labels asks for 21"):
        shared_out(tasks, wanted(human_tasks=20, min_labels=21), unattended=False)
    assert shared_out(tasks, wanted(human_tasks=20, min_labels=21, overlap_share=0.1), unattended=False)[1] == 20


def test_comparisons_with_a_short_answer_have_their_share_of_what_is_drawn() -> None:
    each = list(PROMPTS.values())
    made = [
        candidate(p, text) for n, p in enumerate(each) for text in (("short", "one that is long") if n < 15 else ("long one", "long too"))
    ]
    tasks = compared(made, PROMPTS)

    def short(**changed: Any) -> int:
        chosen, _ = shared_out(tasks, wanted(human_tasks=20, **changed), unattended=False)
        assert len(chosen) == 20
        return sum(short_beside(t.candidate_a.response_text, t.candidate_b.response_text) for t in chosen)

    assert short() < 10
    assert short(short_answer_share=0.5) >= 10
    assert short(short_answer_share=1.0) == 15, "as far as there are any"


def test_a_batch_of_an_earlier_release_keeps_its_key() -> None:
    assert added(wanted()) == {}
    assert added(wanted(comparisons_per_prompt=2)) == {"comparisons": 2}


def test_wins_of_short_answers_are_counted_where_there_is_a_short_one() -> None:
    def record(chosen: str, rejected: str, origin: str = "policy") -> dict[str, Any]:
        return {"chosen": {"response_text": chosen, "origin": origin}, "rejected": {"response_text": rejected, "origin": "policy"}}

    rows = [record("yes", "yes, and more"), record("a long answer", "no"), record("equal", "long"), record("s", "imported", "external:x@y")]
    found = short_wins(rows)
    assert (found.pairs, found.contrasts, found.won, found.share) == (3, 2, 1, 0.5)
    assert short_wins(rows[2:3]).share is None
