"""Sides: a function of the group alone, stable, with the shares asked for."""

from collections import Counter

import pytest

from include.domain.errors import RecordError
from include.domain.split import normalise_prompt, side_of, unit_interval, use_of

GROUPS = [f"group-{i}" for i in range(20_000)]


def test_shares_are_met() -> None:
    sides = Counter(side_of("salt", group) for group in GROUPS)
    assert abs(sides["train"] / 20_000 - 0.80) < 0.01
    assert abs(sides["validation"] / 20_000 - 0.05) < 0.006
    assert abs(sides["holdout"] / 20_000 - 0.15) < 0.01


def test_the_side_is_pinned() -> None:
    """Literals: a group must stay on its side for ever."""
    assert unit_interval("salt", "group-0") == pytest.approx(0.7329421750510876, abs=1e-15)
    assert [g for g in GROUPS[:12] if side_of("salt", g) == "holdout"] == ["group-1", "group-10"]
    assert [g for g in GROUPS[:12] if side_of("salt", g) == "validation"] == ["group-8"]


def test_a_safety_row_of_the_holdout_goes_to_the_safety_holdout() -> None:
    for group in GROUPS[:500]:
        plain, safety = side_of("salt", group), side_of("salt", group, "bias")
        assert safety == ("safety_holdout" if plain == "holdout" else plain)


def test_use_is_independent_of_the_side() -> None:
    shares = {"demonstration": 0.5, "preference": 0.3, "rl": 0.2}
    for side in ("train", "holdout"):
        uses = Counter(use_of("salt", g, shares) for g in GROUPS if side_of("salt", g) == side)
        assert abs(uses["demonstration"] / sum(uses.values()) - 0.5) < 0.03


def test_another_salt_is_another_split() -> None:
    assert [side_of("a", g) for g in GROUPS[:200]] != [side_of("b", g) for g in GROUPS[:200]]


def test_an_empty_salt_is_refused() -> None:
    with pytest.raises(RecordError, match="salt"):
        side_of("", "group")


def test_shares_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(RecordError, match="sum to 1"):
        side_of("salt", "g", shares={"train": 0.8, "validation": 0.1, "holdout": 0.2})


@pytest.mark.parametrize("text", ["What is  2 + 3?", "what is 2 + 3?\n", " WHAT IS 2 + 3?"])
def test_prompts_that_differ_in_case_and_space_are_one_group(text: str) -> None:
    assert normalise_prompt(text) == normalise_prompt("What is 2 + 3?")
