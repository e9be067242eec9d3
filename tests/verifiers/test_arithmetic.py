"""The arithmetic verifier: what counts as the number stated, and when it is the expected one."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.verifiers.arithmetic import check, expected_number
from include.verifiers.errors import VerifierError
from include.verifiers.numbers import numbers_in, parse_number

NUMBERS = st.decimals(min_value=Decimal("-1e9"), max_value=Decimal("1e9"), places=3, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", "1234"),
        ("1,234,567.5 dollars", "1234567.5"),
        ("$1,234.50.", "1234.5"),
        ("1\u202f234", "1234"),
        ("-5", "-5"),
        ("\u22125 degrees", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("+7", "7"),
        ("15.", "15"),
        (".5", "0.5"),
        ("1.5e3", "1500"),
        ("2E-2", "0.02"),
        ("3/4", "3/4"),
        ("1 1/2 cups", "3/2"),
        ("12km", "12"),
        ("50%", "50"),
        ("0.50", "1/2"),
    ],
)
def test_a_number_is_read_exactly(text: str, value: str) -> None:
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize("text", ["1,5", "1,234,56", "3.14.15", "1e999999999", "5/0", "1/2/3", "3:4", "9" * 60])
def test_a_number_that_needs_guessing_has_no_value(text: str) -> None:
    assert [stated.value for stated in numbers_in(text)] == [None]


@pytest.mark.parametrize("text", ["9-6", "9 - 6", "9 -6", "(9)-6"])
def test_a_minus_between_operands_is_no_sign(text: str) -> None:
    assert [stated.value for stated in numbers_in(text)] == [9, 6]


@given(NUMBERS)
def test_every_decimal_is_right_against_itself_however_it_is_written(value: Decimal) -> None:
    for written in (f"{value}", f"{value:,}", f"{value:f} apples", f"{value}."):
        assert check(str(value), f"So the result is {written}").right is True


@given(NUMBERS, NUMBERS)
def test_right_means_equal_and_nothing_else(expected: Decimal, stated: Decimal) -> None:
    assert check(str(expected), f"Answer: {stated}").right is (expected == stated)


@given(st.text())
def test_any_text_gets_a_result_and_never_an_exception(text: str) -> None:
    assert check(15, text).right in (True, False, None)


@given(st.integers(-10_000, 10_000), st.integers(-10_000, 10_000))
def test_what_comes_before_the_marker_does_not_count(expected: int, other: int) -> None:
    assert check(expected, f"{other} + 1 = {other + 1}\nAnswer: {expected}").right is True


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("6 + 9 = 15\nAnswer: 15", True),
        ("6 + 9 = 15\nSo the result is 15.", True),
        ("The answer is 15 apples out of 20.", True),
        ("Answer: 6 + 9 = 15", True),
        ("Answer: **15**", True),
        ("Answer:\n15", True),
        ("Answer: 5\nAnswer: 15", True),
        ("Answer: 15\nIs the answer: good?", True),
        ("15 - 9 = 6\nAnswer: 6", False),
        ("Answer: 15.01", False),
        ("I do not know.", False),
        ("", False),
        ("So the result is fifteen.", None),
        ("Answer: 1,5", None),
        ("Answer: \u0661\u0665", None),
    ],
)
def test_the_final_number_decides(text: str, right: bool | None) -> None:
    assert check("15", text).right is right


@pytest.mark.parametrize("expected", ["3; 4", "2:1", "red", ""])
def test_a_reference_that_is_not_one_number_decides_nothing(expected: str) -> None:
    result = check(expected, "Answer: 3")
    assert (result.right, result.detail) == (None, "reference_is_not_one_number")


@pytest.mark.parametrize("expected", ["15", "15.0", 15, 15.0, "15 apples", "30/2"])
def test_references_of_one_value_are_one_value(expected: object) -> None:
    assert expected_number(expected) == 15


@pytest.mark.parametrize("expected", [None, True, [15], float("nan"), float("inf")])
def test_a_reference_of_another_type_is_an_error(expected: object) -> None:
    with pytest.raises(VerifierError, match="arithmetic@1"):
        check(expected, "Answer: 15")
