"""Verifiers of single answers: a letter, a text, a quantity. What is right, what is not, and what no answer can talk them into."""

from typing import Any

import pytest

from include.domain.records import Reference
from include.verifiers.errors import VerifierError
from include.verifiers.registry import VERIFIERS, verify
from include.verifiers.result import VerifierResult


def said(verifier: str, expected: Any, text: str) -> VerifierResult:
    return verify(Reference(verifier, "1", expected), text)


@pytest.mark.parametrize(
    ("text", "right", "in_form"),
    [
        ("B", True, True),
        ("(b)", True, True),
        ("B.", True, True),
        ("Answer: B", True, True),
        ("Because it floats.\n**Answer:** B", True, True),
        ("Because it floats.\nAnswer: B) Cork", True, False),
        ("So the answer is (B).", True, False),
        ("The answer is B, because A sinks.", True, False),
        ("A sinks and B floats.\nB", True, False),
        ("Answer: C", False, True),
        ("Answer: A or B", False, False),
        ("Answer: A, B", False, False),
        ("Answer: B/C", False, False),
        ("Answer: E", False, False),
        ("Answer: Because it floats", False, False),
        ("A B C D", False, False),
        ("Apples float. Bananas too.", False, False),
        ("", False, False),
        ("Answer: B\nNo wait.\nAnswer: C", False, True),
    ],
)
def test_the_one_letter_stated_last_is_the_choice(text: str, right: bool, in_form: bool) -> None:
    found = said("multiple_choice", {"answer": "B", "options": 4}, text)
    assert (found.right, found.in_form) == (right, in_form)


@pytest.mark.parametrize(
    ("text", "exact", "normalised"),
    [
        ("The Eiffel Tower", True, True),
        ("Answer: The Eiffel Tower", True, True),
        ("  the eiffel tower. ", False, True),
        ("Eiffel-Tower", False, True),
        ("ＴＨＥ ＥＩＦＦＥＬ ＴＯＷＥＲ", False, True),
        ("La tour Eiffel", True, True),
        ("The Eiffel Tower, or La tour Eiffel", False, False),
        ("Not the Eiffel Tower", False, False),
        ("", False, False),
        ("the", False, False),
    ],
)
def test_a_text_is_one_of_the_accepted_ones(text: str, exact: bool, normalised: bool) -> None:
    accepted = ["The Eiffel Tower", "La tour Eiffel"]
    assert said("exact_text", accepted, text).right is exact
    assert said("normalised_text", accepted, text).right is normalised


@pytest.mark.parametrize(
    ("expected", "text", "right"),
    [
        ("3/4", "0.75", True),
        ("3/4", r"The result is \boxed{\frac{3}{4}}.", True),
        ("3/4", r"First \boxed{\frac{1}{4}}, then \boxed{\dfrac{6}{8}}", True),
        ("3/4", "Answer: 75%", True),
        ("0.75", "Answer: 75", False),
        ("3/4", "0.7499999", False),
        ("1/3", "0.333", False),
        ({"value": "1/3", "absolute": 0.001}, "0.333", True),
        ({"value": 200, "relative": "0.01"}, "201.9", True),
        ({"value": 200, "relative": "0.01"}, "202.1", False),
        ("150 cm", "It is 1.5 m long", True),
        ("150 cm", "150", True),
        ("150 cm", "Answer: 150 m", False),
        ("150 cm", "Answer: 150 kg", False),
        ("2 h", "Answer: 120 minutes", True),
        ("12 apples", "Answer: 12 pears", True),
        ("5", "x = 2 + 3 = 5", True),
        ("5", "The answer is $5$.", True),
        ("1,250", r"\boxed{1250\text{ dollars}}", True),
        ("5", r"\boxed{5, 6}", False),
        ("5", r"\boxed{5", True),
        ("5", "none", False),
        ("5", "", False),
        ("5", "9" * 10_000, False),
        ("5", "1e999999999", False),
    ],
)
def test_a_quantity_is_equal_as_a_fraction_in_its_unit_or_within_the_tolerance(expected: Any, text: str, right: bool) -> None:
    assert said("math_answer", expected, text).right is right


@pytest.mark.parametrize(
    ("verifier", "expected", "why"),
    [
        ("multiple_choice", "AB", "none of 26 options"),
        ("multiple_choice", {"answer": "E", "options": 4}, "none of 4 options"),
        ("multiple_choice", {"answer": "A", "options": True}, "wrong type"),
        ("multiple_choice", {"letter": "A"}, "expected.letter is not known"),
        ("exact_text", [], "something is left"),
        ("exact_text", "  ", "something is left"),
        ("normalised_text", ["yes", "the"], "something is left"),
        ("normalised_text", 3, "wrong type"),
        ("math_answer", "pi", "not one number"),
        ("math_answer", "3 4", "not one number"),
        ("math_answer", True, "wrong type"),
        ("math_answer", {"value": 3, "absolute": -1}, "0 or above"),
        ("math_answer", {"absolute": 1}, "expected.value is missing"),
    ],
)
def test_a_reference_that_cannot_be_read_is_refused_whatever_the_answer(verifier: str, expected: Any, why: str) -> None:
    for text in ("", "A", "x" * 60_000):
        with pytest.raises(VerifierError, match=why):
            said(verifier, expected, text)


def test_of_another_version_nothing_is_guessed_and_the_message_lists_what_there_is() -> None:
    with pytest.raises(VerifierError, match=r"no verifier multiple_choice@2; there are: arithmetic@1, exact_text@1, instructions@1"):
        verify(Reference("multiple_choice", "2", "A"), "A")


REFERENCES: dict[str, Any] = {
    "arithmetic": "7",
    "multiple_choice": "A",
    "exact_text": "yes",
    "normalised_text": "yes",
    "math_answer": "7",
    "json_schema": {"type": "object"},
    "pattern": "[a-z]+ [a-z]*",
    "instructions": [{"id": "punctuation:no_comma"}, {"id": "detectable_format:title"}],
}


def test_every_verifier_is_tried_below() -> None:
    assert {name for name, _ in VERIFIERS} == set(REFERENCES)


@pytest.mark.parametrize("verifier", REFERENCES)
def test_an_empty_answer_is_wrong_and_never_undecided(verifier: str) -> None:
    """Undecided at an empty answer is how a reward finds out that a reference can't be read."""
    assert said(verifier, REFERENCES[verifier], "").right is False
