"""Numbers as people and models write them, read exactly: no floating point anywhere.

Read: signs (also U+2212), thousands in groups of three (``1,234``, no-break or thin space), decimals, ``.5``, exponents
(``1.5e3``), fractions (``3/4``), mixed numbers (``1 1/2``); a currency or unit beside them, and a full stop after them,
are left alone. Not read, and said so: numbers in words, a comma that is no thousands separator (``1,5``).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

MAX_DIGITS = 40
MAX_EXPONENT = 100
"""Beyond these a number is *unreadable*, not big: an exact 1e999999999 would take the machine's memory."""

_THOUSANDS = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:[\u00a0\u202f\u2009]\d{3})+"
_DECIMAL = rf"(?:(?:{_THOUSANDS}|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?![\w]))?"
_NUMBER = re.compile(
    rf"(?<![\w.,/])(?P<sign>[-+\u2212](?:[ \t]?[$€£])?|[$€£][-\u2212]|)[$€£]?"
    rf"(?:(?P<whole>\d{{1,6}})[ \t](?=\d+/\d))?(?P<number>{_DECIMAL})(?:[ \t]?/[ \t]?(?P<under>{_DECIMAL}))?"
    r"(?P<tail>(?:[,/:]\d[\d,./:]*|\.\d[\d.,]*)?)",
    re.ASCII,
)
_WORDS = re.compile(
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    r"eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|half)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Stated:
    """A number as it stands in a text: its exact value, or None where it cannot be read without guessing."""

    value: Fraction | None
    start: int
    end: int


def numbers_in(text: str) -> Iterator[Stated]:
    """Every number of `text`, in order. A minus between two operands (``9-6``, ``9 - 6``) is an operator, not a sign."""
    for match in _NUMBER.finditer(text):
        sign = match.group("sign")
        negative = ("-" in sign or "\u2212" in sign) and not _is_operator(text, match)
        value = None if match.group("tail") else _value(match.group("whole"), match.group("number"), match.group("under"))
        yield Stated(-value if value is not None and negative else value, match.start(), match.end())


def _is_operator(text: str, match: re.Match[str]) -> bool:
    before = text[: match.start()].rstrip(" \t")
    return bool(before) and (before[-1].isdigit() or before[-1] in ")%")


def _value(whole: str | None, number: str, under: str | None) -> Fraction | None:
    top = _exact(number)
    if top is None or under is None:
        return top
    bottom = _exact(under)
    if not bottom:
        return None
    return top / bottom + (int(whole) if whole else 0)


def _exact(written: str) -> Fraction | None:
    plain = re.sub(r"[,\u00a0\u202f\u2009]", "", written)
    mantissa, _, exponent = plain.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or (exponent and (len(exponent) > 4 or abs(int(exponent)) > MAX_EXPONENT)):
        return None
    return Fraction(Decimal(plain))


def parse_number(text: str) -> Fraction | None:
    """The one number that `text` is, a unit beside it allowed; None for none, several, or one that is ambiguous."""
    found = list(numbers_in(text))
    return found[0].value if len(found) == 1 else None


def has_unread_number(text: str) -> bool:
    """Whether a number stands there in English words or in other digits than 0 to 9, which this version does not read."""
    return bool(_WORDS.search(text)) or any(c.isdecimal() and not c.isascii() for c in text)
