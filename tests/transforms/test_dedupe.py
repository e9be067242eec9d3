"""What says the same twice goes, whatever the order of the rows."""

from dataclasses import replace

from include.domain.records import Message
from include.transforms.dedupe import Drop, Dropped, cap_per_prompt, contradictions, exact, identical_sides, one_per_prompt
from include.transforms.draft import Draft


def _row(line: int, prompt: str, response: str = "r") -> Draft:
    return Draft("made", line, (Message("user", prompt),), "CC0", "licence", response=(Message("assistant", response),))


def _pair(line: int, prompt: str, chosen: str, rejected: str) -> Draft:
    return replace(_row(line, prompt), response=(), chosen=Message("assistant", chosen), rejected=Message("assistant", rejected))


def test_the_same_prompt_and_answer_stand_once_and_the_drop_is_counted() -> None:
    dropped = Dropped()
    rows = [_row(1, "How do I bake bread?"), _row(2, "how do I  bake bread? "), _row(3, "How do I bake bread?", "other")]
    kept = exact(rows, dropped)
    assert len(kept) == 2
    assert dropped.counts == {"exact_duplicate": 1}


def test_which_row_stays_does_not_depend_on_the_order() -> None:
    rows = [_row(1, "A b"), _row(2, "a B"), _row(3, "a  b")]
    kept = [exact(order, Dropped())[0].messages for order in (rows, rows[::-1], [rows[1], rows[2], rows[0]])]
    assert kept[0] == kept[1] == kept[2]


def test_what_stays_keeps_the_order_of_the_rows() -> None:
    rows = [_row(n, f"prompt {n}") for n in range(20)]
    assert exact(rows, Dropped()) == rows


def test_a_set_of_prompts_has_each_prompt_once() -> None:
    dropped = Dropped()
    assert len(one_per_prompt([_row(1, "a", "x"), _row(2, "A", "y"), _row(3, "b")], dropped)) == 2
    assert dropped.counts == {"prompt_stands_twice": 1}


def test_identical_sides_are_no_pair() -> None:
    dropped = Dropped()
    assert [row.line for row in identical_sides([_pair(1, "q", "same", "same"), _pair(2, "q", "a", "b")], dropped)] == [2]
    assert dropped.drops == [Drop("made:1", "identical_candidates")]


def test_a_pair_that_recurs_the_other_way_round_is_not_believed() -> None:
    dropped = Dropped()
    rows = [_pair(1, "q", "a", "b"), _pair(2, "Q", "b", "a"), _pair(3, "q", "a", "c"), _pair(4, "other", "b", "a")]
    assert [row.line for row in contradictions(rows, dropped)] == [3, 4]
    assert dropped.counts == {"contradicted_by_another_row": 2}


def test_pairs_of_one_prompt_are_capped_by_hash_not_by_order() -> None:
    rows = [_pair(n, "q", f"a{n}", f"b{n}") for n in range(10)]
    dropped = Dropped()
    kept = {row.line for row in cap_per_prompt(rows, 3, dropped)}
    assert len(kept) == 3
    assert kept == {row.line for row in cap_per_prompt(rows[::-1], 3, Dropped())}
    assert dropped.counts == {"over_the_cap_of_its_prompt": 7}
