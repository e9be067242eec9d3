"""The final answer of a mathematical problem: fractions, decimals, LaTeX, percent and units, compared exactly or within a tolerance."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from include.verifiers.errors import VerifierError
from include.verifiers.numbers import numbers_in
from include.verifiers.result import VerifierResult
from include.verifiers.stated import fields_of, statement_of

NAME = "math_answer"
VERSION = "1"

_F = Fraction
UNITS: dict[str, tuple[str, Fraction]] = {
    **{name: ("length", value) for name, value in {"mm": _F(1, 1000), "cm": _F(1, 100), "m": _F(1), "km": _F(1000)}.items()},
    **{name: ("mass", value) for name, value in {"mg": _F(1, 1000), "g": _F(1), "kg": _F(1000)}.items()},
    **{name: ("time", value) for name, value in {"s": _F(1), "min": _F(60), "h": _F(3600)}.items()},
    **{name: ("volume", value) for name, value in {"ml": _F(1, 1000), "l": _F(1)}.items()},
    "%": ("share", _F(1, 100)),
}
"""Spelling → what it measures, and how many of the first unit it is."""
_SPELT = {
    "meter": "m",
    "meters": "m",
    "metre": "m",
    "metres": "m",
    "kilometers": "km",
    "kilometres": "km",
    "centimeters": "cm",
    "centimetres": "cm",
    "millimeters": "mm",
    "millimetres": "mm",
    "gram": "g",
    "grams": "g",
    "kilograms": "kg",
    "kilogram": "kg",
    "second": "s",
    "seconds": "s",
    "sec": "s",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
    "hr": "h",
    "hrs": "h",
    "liter": "l",
    "liters": "l",
    "litre": "l",
    "litres": "l",
    "milliliters": "ml",
    "millilitres": "ml",
    "percent": "%",
}
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]{1,60})\}\{([^{}]{1,60})\}")
_LATEX = re.compile(r"\\(?:text|mathrm|mbox|operatorname)\{([^{}]{0,60})\}|\\(?:left|right|,|;|!|quad|displaystyle)")
_UNIT = re.compile(r"[ \t]*(%|[A-Za-z]{1,12})")


@dataclass(frozen=True)
class Quantity:
    """An exact number and the unit after it; None: none, or one that is not in `UNITS`."""

    value: Fraction
    unit: str | None


def check(expected: Any, text: str) -> VerifierResult:
    """right: the number in the last ``\\boxed{…}``, else the one stated last (see `statement_of`), equals the expected one.

    Values are exact fractions: ``0.75``, ``3/4``, ``\\frac{3}{4}`` and ``75%`` are one. Where `expected` has a unit, an answer in another
    unit of the same kind is converted (``1.5 m`` is ``150 cm``), one in a unit of another kind is wrong, and one without any is read
    in the expected unit. in_form: boxed, or stated alone.

    Args:
        expected: a number or text (``3/4``, ``150 cm``), or {value, absolute: tolerance, relative: share of the value}.

    Raises:
        VerifierError: `expected` is not one number, or a tolerance is below 0.
    """
    wanted, tolerance = _wanted(expected)
    boxed = _boxed(text)
    stated = statement_of(text)
    found = _quantity(boxed if boxed is not None else stated.text, last=boxed is None)
    in_form = boxed is not None or stated.alone
    if found is None:
        return VerifierResult(False, in_form, "no_number")
    value = _in_unit(found, wanted)
    if value is None:
        return VerifierResult(False, in_form, "another_unit")
    right = abs(value - _plain(wanted)) <= tolerance
    return VerifierResult(right, in_form, "right" if right else "wrong_number")


def _wanted(expected: Any) -> tuple[Quantity, Fraction]:
    types = (str, int, float)
    given = fields_of(f"{NAME}@{VERSION}", expected, {"value": types, "absolute": types, "relative": types}, "value")
    read = {name: _quantity(repr(value) if isinstance(value, float) else str(value), last=False) for name, value in given.items()}
    for name, quantity in read.items():
        if quantity is None or (name != "value" and (quantity.value < 0 or quantity.unit)):
            raise VerifierError(
                f"{NAME}@{VERSION}: expected.{name} is {given[name]!r:.60}, which is not one number (tolerances: 0 or above)"
            )
    value = read["value"]
    assert value is not None
    found = [Fraction(0)]
    if (absolute := read.get("absolute")) is not None:
        found.append(absolute.value * (UNITS[value.unit][1] if value.unit else 1))
    if (relative := read.get("relative")) is not None:
        found.append(relative.value * abs(_plain(value)))
    return value, max(found)


def _plain(quantity: Quantity) -> Fraction:
    """In the first unit of its kind."""
    return quantity.value * UNITS[quantity.unit][1] if quantity.unit else quantity.value


def _in_unit(found: Quantity, wanted: Quantity) -> Fraction | None:
    """`found` in the first unit of the wanted kind; None where it is of another kind."""
    if found.unit is None:
        return found.value * UNITS[wanted.unit][1] if wanted.unit else found.value
    if wanted.unit is None:
        # A share may be written in percent; any other unit beside a bare number is decoration.
        return _plain(found) if found.unit == "%" else found.value
    return _plain(found) if UNITS[found.unit][0] == UNITS[wanted.unit][0] else None


def _boxed(text: str) -> str | None:
    """What the last ``\\boxed{…}`` holds, its braces counted; None without a whole one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 0, start + len("\\boxed")
    for at in range(first, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[first + 1 : at]
    return None


def _quantity(text: str, *, last: bool) -> Quantity | None:
    """The one number of `text`, or of several the last (of an equation its right side); None where it has none, or one needing a guess."""
    plain = _LATEX.sub(lambda match: f" {match.group(1) or ''}", _FRACTION.sub(r" \1/\2", text)).replace("\\%", "%").replace("$", " ")
    line = plain.rpartition("=")[2] if "=" in plain else plain
    found = list(numbers_in(line))
    if not found or (len(found) > 1 and not last):
        return None
    stated = found[-1]
    if stated.value is None:
        return None
    after = _UNIT.match(line, stated.end)
    unit = _unit(after.group(1)) if after else None
    return Quantity(stated.value, unit)


def _unit(written: str) -> str | None:
    spelt = _SPELT.get(written.lower(), written if written in UNITS else written.lower())
    return spelt if spelt in UNITS else None
