"""Near-duplicates are found exactly: what comparing all with all finds, and nothing else."""

import itertools

import pytest

from include.domain.split import unit_interval
from include.transforms.near import NearIndex, NearSettings, similarity

LONG = "The library of the town lent its old maps to the school on Monday, and the children drew the rivers in blue and the roads in red before Friday came"


@pytest.mark.parametrize(
    "changed",
    [LONG.upper(), LONG.replace(" ", "  ") + "!", LONG.replace("children", "pupils"), LONG.replace(" old", "")],
)
def test_a_small_change_is_a_near_duplicate(changed: str) -> None:
    assert NearIndex(NearSettings(0.8), [("a", LONG)]).match(changed) == "a"


def test_another_text_is_not() -> None:
    assert (
        NearIndex(NearSettings(0.8), [("a", LONG)]).match("A wholly different text about cooking rice and lentils for six people") is None
    )


def test_other_numbers_in_a_short_text_make_another_question() -> None:
    index = NearIndex(NearSettings(0.5), [("a", "Tom has 3 pens and gets 4 more. How many pens?")])
    assert index.match("Tom has 3 pens and gets 5 more. How many pens?") is None
    assert index.match("tom has 3 pens, and gets 4 more. How many pens??") == "a"


def test_numbers_are_words_in_a_long_text() -> None:
    text = f"{LONG} in 1999. " * 5
    assert NearIndex(NearSettings(0.8), [("a", text)]).match(text.replace("1999", "2001", 1)) == "a"
    assert similarity(text, text.replace("1999", "2001", 1), NearSettings(0.8, numbers_exact_below_words=10_000)) == 0.0


def test_texts_without_spaces_are_compared_by_character() -> None:
    text = "珍妮特的鸭子每天下蛋她每天早上早餐时吃剩下的鸭蛋她每天拿去农贸市场卖"
    assert NearIndex(NearSettings(0.8), [("zh", text)]).match(text + "了") == "zh"


def test_the_most_similar_one_is_named() -> None:
    index = NearIndex(NearSettings(0.5), [("far", LONG.replace("children", "pupils").replace("old", "new")), ("near", LONG + " again")])
    assert index.match(LONG) == "near"


def test_nothing_that_comparing_all_with_all_finds_is_missed() -> None:
    """Property: the prefix filter is exact, over many thresholds and random texts of a small vocabulary."""
    words = ["red", "blue", "green", "map", "river", "road"]
    texts = [" ".join(words[int(unit_interval("texts", f"{i}-{j}") * 6)] for j in range(3 + i % 9)) for i in range(120)]
    for threshold in (0.3, 0.5, 0.7, 0.8, 1.0):
        settings = NearSettings(threshold)
        index = NearIndex(settings, [(str(i), text) for i, text in enumerate(texts[:60])])
        for text in texts[60:]:
            best = max(similarity(text, other, settings) for other in texts[:60])
            match = index.match(text)
            assert (match is not None) == (best >= threshold)
            if match is not None:
                assert similarity(text, texts[int(match)], settings) == best


def test_similarity_is_symmetric_and_one_for_equal_texts() -> None:
    settings = NearSettings()
    for a, b in itertools.combinations([LONG, LONG + " x", "", "one", "3 and 4"], 2):
        assert similarity(a, b, settings) == similarity(b, a, settings) < 1
        assert similarity(a, a, settings) == 1


@pytest.mark.parametrize("threshold", [0, -1, 1.1])
def test_a_threshold_outside_its_range_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        NearIndex(NearSettings(threshold))
