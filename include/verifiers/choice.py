"""Multiple choice: is the one letter that the answer states the expected one?"""

import re
from typing import Any

from include.verifiers.errors import VerifierError
from include.verifiers.result import VerifierResult
from include.verifiers.stated import fields_of, statement_of

NAME = "multiple_choice"
VERSION = "1"

_BARE = re.compile(r"[(\[]?([A-Za-z])[)\].:]{0,2}\Z")
_LED = re.compile(r"(?:option |choice )?[(\[]?([A-Za-z])(?:[)\].:]+|\b(?!['’]))", re.IGNORECASE)
_MORE = re.compile(r"[ \t]*(?:,|/|&|\bor\b|\band\b)[ \t]*(?:option |choice )?[(\[]?([A-Za-z])\b", re.IGNORECASE)


def check(expected: Any, text: str) -> VerifierResult:
    """right: the letter after ``Answer:`` (or *the answer is*), or the whole answer, or its last line, is `expected`.

    Several letters (*A or B*) are wrong, and so is a letter that is no option. in_form: nothing but the letter is stated.

    Args:
        expected: the letter, or {answer: letter, options: how many there are, 26 without}.

    Raises:
        VerifierError: `expected` is neither, or its letter is none of the options.
    """
    given = fields_of(f"{NAME}@{VERSION}", expected, {"answer": str, "options": int}, "answer")
    letter, options = given["answer"].strip().upper(), given.get("options", 26)
    allowed = [chr(ord("A") + at) for at in range(min(max(options, 0), 26))]
    if letter not in allowed or not 2 <= options <= 26:
        raise VerifierError(f"{NAME}@{VERSION}: the expected answer {given['answer']!r:.40} is none of {options} options (2 to 26)")
    stated = statement_of(text)
    bare = _BARE.match(stated.text)
    found = bare.group(1) if bare else _led(stated.text) if stated.text != text.strip() else _last_line(text)
    if found is None:
        return VerifierResult(False, False, "no_letter")
    if len(found) > 1:
        return VerifierResult(False, False, "several_letters")
    if found.upper() not in allowed:
        return VerifierResult(False, False, "no_option")
    right = found.upper() == letter
    return VerifierResult(right, bool(bare) and stated.alone, "right" if right else "wrong_letter")


def _led(stated: str) -> str | None:
    """The letter that a statement begins with; all letters where it names several."""
    led = _LED.match(stated)
    if not led:
        return None
    more = _MORE.match(stated, led.end())
    return led.group(1) + (more.group(1) if more else "")


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    bare = _BARE.match(lines[-1].strip("*_ ")) if lines else None
    return bare.group(1) if bare else None
