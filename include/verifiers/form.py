"""The asked form: the calculation in one line, then a last line ``Answer: N``. Says nothing of whether N is right."""

import re
from dataclasses import dataclass

from include.verifiers.numbers import numbers_in, parse_number

FORM_VERSION = "calculation-then-answer@1"

_ANSWER_LINE = re.compile(r"Answer: (?P<stated>\S.*)\Z")
_OPERATOR = re.compile(r"\d\D*[-+*/×÷x\u2212%^]\D*\d")


@dataclass(frozen=True)
class FormResult:
    """Whether the form was kept, and one word for the first thing that was not."""

    in_form: bool
    detail: str


def check_form(text: str) -> FormResult:
    """Two lines: a calculation with ``=``, an operator and at least two numbers, then ``Answer: N`` with one number."""
    lines = text.strip().split("\n")
    if not text.strip():
        return FormResult(False, "empty")
    answer = _ANSWER_LINE.match(lines[-1].rstrip())
    if not answer:
        return FormResult(False, "no_answer_line")
    if parse_number(answer.group("stated")) is None:
        return FormResult(False, "answer_line_holds_no_number")
    if len(lines) != 2:
        return FormResult(False, "no_calculation" if len(lines) == 1 else "more_than_two_lines")
    return FormResult(True, "asked_form") if _is_calculation(lines[0]) else FormResult(False, "no_calculation")


def _is_calculation(line: str) -> bool:
    left, equals, right = line.partition("=")
    return bool(equals and _OPERATOR.search(left) and any(numbers_in(right)))
