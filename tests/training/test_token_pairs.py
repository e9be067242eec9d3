"""Pairs as tokens: cut, dropped where both sides became the same, counted, and refused when too many are."""

import pytest

torch = pytest.importorskip("torch")

from include.training.pairs.rows import PairCounts, PairsError, TokenPair, distinct_pairs, length_slice  # noqa: E402

ROWS = [
    ("p1", "a b c d e f g", "yes because x", "yes because y"),
    ("p2", "a b", "red", "blue"),
    ("p3", "q", "same text", "same text"),
    ("p4", "a b c d e f g h i", "left", "right"),
    ("p5", "a", "one two three four five six seven A", "one two three four five six seven B"),
    ("p6", "a b c", "good answer", "bad answer"),
]


def _pair(name: str, prompt: str, chosen: str, rejected: str) -> TokenPair:
    ids = {word: at for at, word in enumerate(sorted({w for row in ROWS for part in row[1:] for w in part.split()}))}
    start = tuple(ids[word] for word in prompt.split())
    sides = [start + tuple(ids[word] for word in text.split()) for text in (chosen, rejected)]
    return TokenPair(name, name, len(start), sides[0], sides[1], 1.0, {}, ((None, "", ""), (None, "", "")))


def test_pairs_that_truncation_made_identical_are_dropped_and_counted_apart() -> None:
    kept, counts = distinct_pairs([_pair(*row) for row in ROWS], 8)
    assert [pair.pair_id for pair in kept] == ["p2", "p6"]
    assert counts == PairCounts(read=6, kept=2, identical_at_start=1, identical_after_truncation=3, truncated=0)


def test_a_pair_that_still_differs_after_the_cut_is_kept_cut() -> None:
    kept, counts = distinct_pairs([_pair("p1", "a b c d e f g", "yes because x", "left because y")], 8)
    assert (len(kept[0].chosen), kept[0].chosen_tokens, counts.truncated) == (8, 1, 1)


def test_too_many_identical_pairs_are_refused_with_both_counts() -> None:
    _, counts = distinct_pairs([_pair(*row) for row in ROWS], 8)
    with pytest.raises(PairsError, match="1 pairs are identical from the start and 3 after truncation, of 6"):
        counts.check("train", 0.2)
    counts.check("train", 0.7)


def test_a_side_of_which_nothing_is_left_is_refused_whatever_the_limit() -> None:
    with pytest.raises(PairsError, match="none of 2 pairs"):
        PairCounts(read=2, identical_at_start=2).check("train", 1.0)


def test_a_prompt_that_is_no_common_prefix_is_refused() -> None:
    with pytest.raises(PairsError, match="not the same token prefix"):
        TokenPair("x", "x", 2, (1, 2, 3), (1, 9, 3), 1.0, {}, ())


def test_only_the_answers_positions_are_marked() -> None:
    chosen, rejected = _pair("p2", "a b", "red", "blue").sides
    assert chosen.loss_mask == rejected.loss_mask == (False, False, True)


@pytest.mark.parametrize(
    ("chosen", "rejected", "name"),
    [(10, 12, "matched"), (100, 91, "matched"), (10, 13, "chosen_shorter"), (30, 20, "chosen_longer")],
)
def test_lengths_within_a_tenth_or_two_tokens_are_matched(chosen: int, rejected: int, name: str) -> None:
    assert length_slice(chosen, rejected) == name
