"""An answer to an arithmetic problem against its reference: is the final number stated the expected one, exactly?"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from include.verifiers.errors import VerifierError
from include.verifiers.form import check_form
from include.verifiers.numbers import Stated, has_unread_number, numbers_in, parse_number
from include.verifiers.result import VerifierResult

NAME = "arithmetic"
VERSION = "1"

_MARKER = re.compile(r"answer\s*(?:is|:|=)", re.IGNORECASE)


def check(expected: Any, text: str) -> VerifierResult:
    """right: the number stated last equals `expected` as an exact fraction; None where one of the two cannot be read.

    The number stated last is the one after the last ``Answer:`` (of an equation there, its right side); without such a
    marker the last number of the text. An answer without any number is wrong, one with a number in words or other digits undecided.

    Raises:
        VerifierError: `expected` is neither a number nor a text.
    """
    wanted = expected_number(expected)
    form = check_form(text)
    if wanted is None:
        return VerifierResult(None, form.in_form, "reference_is_not_one_number")
    stated = final_number(text)
    if stated is None:
        undecided = has_unread_number(text)
        return VerifierResult(None if undecided else False, form.in_form, "number_not_in_digits" if undecided else "no_number")
    if stated.value is None:
        return VerifierResult(None, form.in_form, "number_is_ambiguous")
    right = stated.value == wanted
    return VerifierResult(right, form.in_form, "right" if right else "wrong_number")


def expected_number(expected: Any) -> Fraction | None:
    """The reference as an exact fraction; None where it holds no number or several (``3; 4``, ``2:1``)."""
    if isinstance(expected, bool) or not isinstance(expected, (str, int, float)):
        raise VerifierError(f"arithmetic@{VERSION}: the expected answer is {expected!r}; it must be a number or a text")
    if isinstance(expected, str):
        return None if ";" in expected else parse_number(expected)
    try:
        return Fraction(Decimal(repr(expected)))
    except (ValueError, OverflowError) as error:
        raise VerifierError(f"arithmetic@{VERSION}: the expected answer is {expected!r}, which is no finite number") from error


def final_number(text: str) -> Stated | None:
    """The number the answer ends with (see `check`), or None where it states none."""
    for marker in reversed(list(_MARKER.finditer(text))):
        line = text[marker.end() :].lstrip(" \t*\n").split("\n", 1)[0]
        stated = _last(line.rpartition("=")[2]) if "=" in line else next(numbers_in(line), None)
        if stated is not None:
            return stated
    return _last(text)


def _last(text: str) -> Stated | None:
    found = list(numbers_in(text))
    return found[-1] if found else None
