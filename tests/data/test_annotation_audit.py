"""The audit of annotation on labels whose figures are worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.data.annotation_audit import FINE, NOT_DEFINED, NOT_ENOUGH, NOTHING, NOTHING_CROSSED, REVIEW, Interval, Thresholds, audit
from include.data.annotation_client import CollectedLabel
from include.data.audit_figures import Figures, Share, figures_of
from include.data.audit_text import audit_text, review_lines
from include.domain.agreement import Z_95, falls_short, strict_majority, wilson
from include.domain.canonical import canonical_bytes, digest
from tests.data.labels import candidate, label, prompt

ITEMS = [sorted((candidate(p := prompt(n), "one"), candidate(p, "two")), key=lambda one: one.candidate_id) for n in range(60)]
"""A is the first by its id, so that the verdicts of a table worked out by hand are its categories."""
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
WEEK = Interval(MONDAY, MONDAY + timedelta(days=7))
NAMES = {"A": "A", "B": "B", "t": "tie", "b": "both_bad", "?": "cannot_judge"}
NOBODY = figures_of([])
FEW = Thresholds(min_items=4, min_gold_labels=4)


def said(who: str, verdicts: str, *, first: int = 0, gold: str = "", swap: str = "", lengths: Sequence[tuple[int, int]] = (), **changed: Any) -> list[CollectedLabel]:  # fmt: skip
    """What somebody said of items one after another. gold: the right verdicts; swap: x where B was on the left."""
    found = []
    for n, verdict in enumerate(verdicts):
        options = {"annotator_id": who, "swap_flag": swap[n : n + 1] == "x", "created_at": "2026-03-03T10:00:30Z", **changed}
        both = lengths[n] if lengths else (10, 10)
        right = NAMES[gold[n]] if gold else None
        found.append(
            CollectedLabel(
                label(*ITEMS[first + n], NAMES[verdict], **options), "gold" if gold else "train", right, both, "2026-03-03T10:00:00Z"
            )
        )
    return found


def report_of(*collected: CollectedLabel, before: Figures = NOBODY, asked: Thresholds = FEW) -> dict[str, Any]:
    return audit(WEEK, figures_of(collected), before, asked)


def measure(report: dict[str, Any], who: str, name: str) -> dict[str, Any]:
    (one,) = [one for one in (*report["annotators"], *report["rubrics"]) if one["name"] == who]
    found: dict[str, Any] = one["measures"][name]
    return found


def test_a_majority_is_more_than_half_and_a_share_is_judged_once_there_is_enough() -> None:
    assert [strict_majority(list(votes)) for votes in ("aab", "ab", "", "a", "aabb")] == ["a", None, None, "a", None]
    assert [falls_short(3, 5, 0.8, 5), falls_short(4, 5, 0.8, 5), falls_short(0, 4, 0.8, 5)] == [True, False, False]


def test_wilsons_interval_of_eight_of_ten_is_the_textbooks() -> None:
    """(0.8 + z²/20 ± z √(0.016 + z²/400)) / (1 + z²/10) with z 1.96: 0.490 to 0.943."""
    assert wilson(8, 10, Z_95) == pytest.approx((0.4902, 0.9433), abs=5e-5)
    assert Share(8, 10).to_json() == {"part": 8, "of": 10, "share": 0.8, "interval": [0.490162, 0.943318]}
    assert Share(0, 0).to_json() == {"part": 0, "of": 0, "share": None, "interval": None}


def test_gold_accuracy_is_of_gold_items_and_gold_items_are_nothing_else() -> None:
    report = report_of(*said("ann", "ABtA", gold="ABtB"), *said("bob", "AAAA", gold="ABtB"))
    good, bad = measure(report, "ann", "gold"), measure(report, "bob", "gold")
    assert (good["part"], good["of"], good["state"]) == (3, 4, REVIEW)
    assert (bad["part"], bad["of"], bad["state"]) == (1, 4, REVIEW)
    assert good["why"] == "gold items right: 3 of 4 (0.75), at least 0.8 is asked for"
    assert measure(report, "ann", "left")["of"] == measure(report, "ann", "majority")["of"] == 0
    assert report["rubrics"] == []
    assert report["labels"] == {"people": 8, "gold": 8, "programs": 0}


def test_few_gold_items_are_not_enough_and_never_fine() -> None:
    report = report_of(*said("ann", "AAA", gold="AAA"))
    assert measure(report, "ann", "gold")["state"] == NOT_ENOUGH
    assert report["status"] == NOT_ENOUGH
    assert report["review"] == []


def test_kappa_of_a_rubric_is_the_one_worked_out_by_hand() -> None:
    """50 items, 20 + 15 agree: p_o 0.7; margins 25/25 and 30/20: p_e 0.5; kappa 0.4."""
    collected = said("ann", "A" * 25 + "B" * 25) + said("bob", "A" * 20 + "B" * 5 + "A" * 10 + "B" * 15)
    report = audit(WEEK, figures_of(collected), NOBODY, Thresholds())
    kappa = measure(report, "made@1", "kappa")
    assert (kappa["kappa"], kappa["items"], kappa["state"]) == (0.4, 50, REVIEW)
    low, high = kappa["interval"]
    assert 0.1 < low < 0.4 < high < 0.7
    assert {"kind": "rubric", "name": "made@1", "measure": "kappa", "why": kappa["why"]} in report["review"]
    assert kappa["why"] == "Cohen's kappa 0.40 on 50 doubly labelled items, at least 0.6 is asked for"


def test_kappa_counts_each_side_of_a_swapped_task_as_the_same_answer() -> None:
    turned = [
        replace(one, label=label(b, a, {"A": "B", "B": "A"}[one.label.verdict], annotator_id="bob"))
        for one, (a, b) in zip(said("x", "ABAB"), ITEMS, strict=False)
    ]
    assert measure(report_of(*said("ann", "ABAB"), *turned), "made@1", "kappa")["kappa"] == 1.0


def test_kappa_of_people_who_rotate_is_not_lost_among_pairs_with_one_item_each() -> None:
    """Four people, each two of them share one item: of each pair alone kappa is nothing or 0, of all pairs together p_o 5/6."""
    pairs = ["ab", "ac", "ad", "bc", "bd", "cd"]
    words = [("A", "A"), ("B", "B"), ("A", "A"), ("B", "B"), ("A", "A"), ("A", "B")]
    collected = [
        one
        for n, (who, two) in enumerate(zip(pairs, words, strict=True))
        for name, word in zip(who, two, strict=True)
        for one in said(name, word, first=n)
    ]
    of = figures_of(collected).rubrics["made@1"]
    assert (of.items, of.agreeing.part, of.agreeing.of) == (6, 5, 6)
    # First sayers: 4 A, 2 B; second: 3 A, 3 B; p_e (4*3 + 2*3) / 36 = 0.5; kappa (5/6 - 1/2) / (1/2) = 2/3.
    assert of.kappa == pytest.approx(2 / 3)


def test_few_double_items_or_a_verdict_that_never_varies_say_nothing_good_of_a_rubric() -> None:
    few = report_of(*said("ann", "AB"), *said("bob", "AB"))
    assert measure(few, "made@1", "kappa")["state"] == NOT_ENOUGH
    same = report_of(*said("ann", "AAAAA"), *said("bob", "AAAAA"))
    assert measure(same, "made@1", "kappa")["state"] == NOT_DEFINED
    assert same["status"] != REVIEW


def test_agreement_is_told_apart_by_whether_both_saw_the_same_sides() -> None:
    """Sides differ on items 1 and 3. Both choose what is on the left of 0 and 1: the same answer of 0, another of 1; on 2 and 3 both say A."""
    of = figures_of(said("ann", "AAAA", swap="....") + said("bob", "ABAA", swap=".x.x")).rubrics["made@1"]
    assert (of.same_sides, of.swapped, of.agreeing) == (Share(2, 2), Share(1, 2), Share(3, 4))
    assert of.left == Share(7, 8)


def test_each_rubric_version_stands_for_itself() -> None:
    collected = said("ann", "ABAB") + said("bob", "ABAB") + said("ann", "ABAB", rubric_version="made@2") + said("bob", "BABA", rubric_version="made@2")  # fmt: skip
    report = report_of(*collected)
    assert [measure(report, name, "kappa")["state"] for name in ("made@1", "made@2")] == [FINE, REVIEW]
    assert figures_of(collected, "made@2").rubrics.keys() == {"made@2"}
    assert figures_of(collected, "made@2").people == 8


def test_the_majority_is_that_of_the_others() -> None:
    """Items 0–2 have three people, item 3 two: cy is alone against the others on 0–2, and says what ann says of 3."""
    collected = said("ann", "AABA") + said("bob", "AAB") + said("cy", "BBAA")
    report = report_of(*collected)
    # ann on 0–2: bob and cy differ, no majority; on 3 cy says the same. bob likewise on 0–2. cy: against two on 0–2.
    assert [(m["part"], m["of"]) for m in (measure(report, who, "majority") for who in ("ann", "bob", "cy"))] == [(1, 1), (0, 0), (1, 4)]
    assert measure(report, "cy", "majority")["state"] == REVIEW
    assert measure(report, "bob", "majority")["state"] == NOT_ENOUGH


def test_what_cannot_be_judged_is_no_judgement() -> None:
    report = report_of(*said("ann", "????"), *said("bob", "AAAA"))
    assert measure(report, "made@1", "kappa")["items"] == 0
    assert measure(report, "bob", "majority")["of"] == 0


def test_a_habit_of_side_is_an_exact_two_sided_test_shared_among_those_tested() -> None:
    """20 of 20 left: p = 2 / 2^20. 15 of 20: p = 2 * 21700 / 2^20 = 0.0414, which no 0.01 is crossed by."""
    habit = said("ann", "A" * 10 + "B" * 10, swap="." * 10 + "x" * 10)
    mild = said("bob", "A" * 15 + "B" * 5, swap="." * 20)
    report = report_of(*habit, *mild, asked=Thresholds())
    left, other = measure(report, "ann", "left"), measure(report, "bob", "left")
    assert (left["part"], left["of"], left["state"]) == (20, 20, REVIEW)
    assert left["p"] == round(2 / 2**20, 6)
    assert (other["part"], other["of"], other["state"]) == (15, 20, FINE)
    assert other["p"] == pytest.approx(0.0414, abs=5e-5)
    assert other["why"] == "left chosen: 15 of 20 (0.75), p 0.041 with sides drawn at random; below 0.01 / 2 it is a habit"
    assert report["status"] == REVIEW


def test_a_habit_must_be_less_probable_the_more_people_are_tested() -> None:
    """17 of 20: p = 0.0026. Alone below 0.01; of five who are tested it is not."""
    habit = said("ann", "A" * 17 + "B" * 3)
    others = [one for who in ("b", "c", "d", "e") for one in said(who, "AB" * 10, first=20)]
    assert measure(report_of(*habit, asked=Thresholds()), "ann", "left")["state"] == REVIEW
    assert measure(report_of(*habit, *others, asked=Thresholds()), "ann", "left")["state"] == FINE


def test_longer_answers_and_short_wins_are_counted_where_lengths_differ() -> None:
    """A longer, B a little longer, equal, A short and chosen, A short and B chosen, B undecided."""
    lengths = [(30, 10), (10, 12), (10, 10), (6, 10), (2, 10), (9, 1)]
    of = figures_of(said("ann", "ABAABt", lengths=lengths)).annotators["ann"]
    assert (of.longer.part, of.longer.of) == (3, 4)
    assert (of.short.part, of.short.of) == (1, 3)
    lover = report_of(*said("ann", "AAAAA", lengths=[(30, 10)] * 5))
    assert measure(lover, "ann", "short")["state"] == REVIEW


def test_ties_and_seconds_are_said_and_corrections_take_no_time() -> None:
    collected = said("ann", "ttb?A") + said("ann", "A", first=9, supersedes="label-0", created_at="2026-03-05T10:00:00Z")
    (one,) = report_of(*collected)["annotators"]
    assert one["undecided"] == {"tie": 2, "both_bad": 1, "cannot_judge": 1}
    assert one["median_seconds"] == 30.0


def test_one_annotator_who_says_nothing_but_tie_is_not_enough_for_anything() -> None:
    report = report_of(*said("ann", "t" * 50), asked=Thresholds())
    assert {name: m["state"] for name, m in report["annotators"][0]["measures"].items()} == dict.fromkeys(
        ("gold", "majority", "left", "short"), NOT_ENOUGH
    )
    assert measure(report, "made@1", "kappa")["state"] == NOT_ENOUGH
    assert (report["status"], report["review"]) == (NOT_ENOUGH, [])
    assert report["annotators"][0]["measures"]["left"]["p"] is None
    assert "50/0/0" in audit_text(report)


def test_an_empty_week_has_nothing_to_audit_and_programs_are_no_people() -> None:
    assert report_of()["status"] == NOTHING
    report = report_of(*said("judge", "AAAA", annotator_kind="verifier"))
    assert (report["status"], report["labels"], report["annotators"], report["rubrics"]) == (
        NOTHING,
        {"people": 0, "gold": 0, "programs": 4},
        [],
        [],
    )
    assert "nothing to audit" in audit_text(report).splitlines()[0]


def test_the_interval_before_stands_beside() -> None:
    before = figures_of(said("ann", "AAAA", gold="AAAB") + said("ann", "ABAB") + said("bob", "ABAB"))
    report = report_of(*said("ann", "AAAA", gold="AAAA"), *said("ann", "ABAB"), *said("cy", "ABBA"), before=before)
    assert measure(report, "ann", "gold")["before"] == Share(3, 4).to_json()
    assert measure(report, "cy", "gold")["before"] is None
    assert measure(report, "made@1", "kappa")["before"]["kappa"] == 1.0
    assert report["before"] == {"since": "2026-02-23T00:00:00Z", "until": "2026-03-02T00:00:00Z", "labels": {"people": 12, "gold": 4, "programs": 0}}  # fmt: skip
    assert "4/4 1.00 [0.51, 1.00] < 0.75" in audit_text(report)


def test_nothing_crossed_is_not_a_word_of_praise() -> None:
    report = report_of(*said("ann", "ABAB"), *said("bob", "ABAB"))
    assert (report["status"], report["review"]) == (NOTHING_CROSSED, [])
    assert measure(report, "ann", "gold")["state"] == NOT_ENOUGH


def test_the_same_labels_in_any_order_are_the_same_report() -> None:
    collected = said("ann", "ABttb", lengths=[(3, 9)] * 5) + said("bob", "BBtA") + said("cy", "AA", gold="AB")
    one, two = report_of(*collected), report_of(*collected[::-1])
    assert canonical_bytes(one) == canonical_bytes(two)
    assert digest("test", one) != digest("test", report_of(*collected, asked=Thresholds()))
    again = json.loads(canonical_bytes(one))
    assert again == one
    assert audit_text(again) == audit_text(one), "as the catalog gives it back"


@pytest.mark.parametrize("name", ["<script>x</script>", "two\nlines", "\x1b[31mred", "\u202eright to left", "a|b", "ü" * 200])
def test_names_that_mean_harm_stay_names(name: str) -> None:
    report = report_of(
        *said(name, "AAAA", gold="BBBB"), *said(name, "ABAB", rubric_version=name), *said("bob", "BABA", rubric_version=name)
    )
    assert {one["name"] for one in report["review"]} >= {name}
    text, lines = audit_text(report), review_lines(report)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert len(lines) == len(report["review"]) == len([line for line in text.splitlines() if line.startswith(("  annotator ", "  rubric "))])  # fmt: skip
