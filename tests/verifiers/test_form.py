"""The asked form: one line of calculation, then ``Answer: N``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.verifiers.form import check_form


@pytest.mark.parametrize(
    "text",
    [
        "6 + 9 = 15\nAnswer: 15",
        "6 + 9 = 15\nAnswer: 15 apples.\n",
        "$2.50 x 4 = $10\nAnswer: $10",
        "7x8 = 56\nAnswer: 1",
        "10 \u2212 4 = 6\nAnswer: 6",
    ],
)
def test_the_asked_form_is_seen_whether_right_or_not(text: str) -> None:
    assert check_form(text).in_form is True


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("6 + 9 = 15\nSo the result is 15.", "no_answer_line"),
        ("Answer: 15\nbecause 6 + 9 = 15", "no_answer_line"),
        ("6 + 9 = 15\nanswer: 15", "no_answer_line"),
        ("6 + 9 = 15\nAnswer: N", "answer_line_holds_no_number"),
        ("6 + 9 = 15\nAnswer: 6 or 9", "answer_line_holds_no_number"),
        ("Answer: 15", "no_calculation"),
        ("I think so.\nAnswer: 15", "no_calculation"),
        ("15 = 15\nAnswer: 15", "no_calculation"),
        ("6 + 9 = 15\n\nAnswer: 15", "more_than_two_lines"),
        ("Let us see.\n6 + 9 = 15\nAnswer: 15", "more_than_two_lines"),
    ],
)
def test_what_is_missing_is_named(text: str, detail: str) -> None:
    result = check_form(text)
    assert (result.in_form, result.detail) == (False, detail)


@given(st.integers(0, 99_999), st.integers(0, 99_999), st.sampled_from("+-*/"))
def test_every_calculation_of_two_numbers_is_in_form(a: int, b: int, operator: str) -> None:
    assert check_form(f"{a} {operator} {b} = {a + b}\nAnswer: {a + b}").in_form


@given(st.text())
def test_any_text_gets_a_result(text: str) -> None:
    assert check_form(text).detail
