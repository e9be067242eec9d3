"""Agreement against figures worked out by hand or published, and *not applicable* where there is nothing to compare."""

import pytest

from include.data.agreement import agreement_of
from include.domain.agreement import cohen_kappa, krippendorff_alpha, raw_agreement

from .labels import candidate, label, prompt


def _table(**cells: int) -> list[tuple[str, str]]:
    """Pairs from counts: ab=3 is three items that one rater calls a, the other b."""
    return [(name[0], name[1]) for name, n in cells.items() for _ in range(n)]


def test_kappa_of_a_table_worked_out_by_hand() -> None:
    """50 items, 20 + 15 agree: p_o 0.7; margins 25/25 and 30/20: p_e 0.5; kappa 0.4."""
    assert cohen_kappa(_table(yy=20, yn=5, ny=10, nn=15)) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("cells", "kappa"),
    [
        ({"yy": 45, "yn": 15, "ny": 25, "nn": 15}, 0.1304),
        ({"yy": 25, "yn": 35, "ny": 5, "nn": 35}, 0.2593),
        ({"aa": 10, "bb": 10, "cc": 10}, 1.0),
        ({"ab": 10, "ba": 10}, -1.0),
    ],
)
def test_kappa_of_known_tables(cells: dict[str, int], kappa: float) -> None:
    assert cohen_kappa(_table(**cells)) == pytest.approx(kappa, abs=5e-5)


def test_kappa_is_not_defined_without_items_or_without_variation() -> None:
    assert cohen_kappa([]) is None
    assert cohen_kappa([("a", "a")] * 10) is None
    assert raw_agreement([("a", "a")] * 10) == 1.0
    assert raw_agreement([]) is None


def test_alpha_of_the_example_of_its_author() -> None:
    """Krippendorff's own nominal example: 4 observers, 12 units, gaps; alpha 0.743."""
    units = ["111", "2232", "3333", "3333", "2222", "1234", "4444", "1121", "2222", "555", "11", "3"]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)


def test_alpha_of_two_observers_worked_out_by_hand() -> None:
    """10 units of two ratings, 4 disagree; coincidences of 14 zeros and 6 ones: 1 - 19 * 8 / (2 * 14 * 6) = 0.095."""
    units = ["01", "10", "00", "00", "00", "01", "00", "00", "01", "11"]
    assert krippendorff_alpha(units) == pytest.approx(0.095, abs=5e-4)


def test_alpha_is_not_defined_where_nothing_is_compared_or_all_say_the_same() -> None:
    assert krippendorff_alpha(["1", "2", ""]) is None
    assert krippendorff_alpha(["11", "11"]) is None


ITEMS = [(candidate(p, "first"), candidate(p, "second")) for p in map(prompt, range(50))]


def _labels(annotator: str, verdicts: str, kind: str = "human") -> list:  # type: ignore[type-arg]
    names = {"A": "A", "B": "B", "t": "tie", "?": "cannot_judge"}
    return [label(a, b, names[v], annotator_id=annotator, annotator_kind=kind) for (a, b), v in zip(ITEMS, verdicts, strict=False)]


def test_one_annotator_is_not_applicable_and_never_perfect() -> None:
    found = agreement_of(_labels("one", "AABBAt"))
    assert (found.applicable, found.raw, found.kappa, found.alpha) == (False, None, None, None)
    assert found.text == "agreement: not applicable (1 annotator, no comparison judged twice)"


def test_two_annotators_of_different_items_are_not_applicable() -> None:
    labels = [*_labels("one", "AAA"), *_labels("two", "AAAAAA")[3:]]
    assert not agreement_of(labels).applicable


def test_two_annotators_are_compared_by_what_they_said_of_each_item() -> None:
    a, b = ITEMS[0][0].candidate_id, ITEMS[0][1].candidate_id
    assert a != b
    found = agreement_of([*_labels("one", "AABBt?"), *_labels("two", "ABBBtA")])
    assert (found.applicable, found.annotators, found.tasks, found.comparisons) == (True, 2, 5, 5)
    assert found.raw == pytest.approx(0.8)


def test_an_annotator_who_saw_the_sides_swapped_agrees_all_the_same() -> None:
    one = _labels("one", "ABAB")
    turned = [label(b, a, {"A": "B", "B": "A"}[v], annotator_id="two") for (a, b), v in zip(ITEMS, "ABAB", strict=False)]
    assert agreement_of([*one, *turned]).raw == 1.0


def test_kappa_over_annotators_is_weighted_by_what_they_share() -> None:
    one, two = _labels("one", "ABABABAB"), _labels("two", "ABABABAB")
    three = _labels("three", "BABA")
    found = agreement_of([*one, *two, *three])
    assert found.kappas.keys() == {("one", "three"), ("one", "two"), ("three", "two")}
    weighted = sum(found.kappas[who] * n for who, n in ((("one", "two"), 8), (("one", "three"), 4), (("three", "two"), 4))) / 16
    assert found.kappa == pytest.approx(weighted)


def test_left_wins_and_ties_are_reported() -> None:
    labels = [label(a, b, "A", swap_flag=i < 3) for i, (a, b) in enumerate(ITEMS[:4])] + [label(*ITEMS[5], "tie")]
    found = agreement_of(labels)
    assert found.left_win_share == pytest.approx(0.25)
    assert found.tie_share == pytest.approx(0.2)
