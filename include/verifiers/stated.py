"""What an answer states as its result: what several verifiers read, in time linear in the text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from include.verifiers.errors import VerifierError

MAX_CHARACTERS = 50_000
"""Longer answers are wrong, unread: no check here takes longer than milliseconds on what is left."""

_MARKER = re.compile(r"^[ \t>*_#-]{0,8}(?:final |the )?(?:final )?answer(?: is)?[ \t]{0,8}[:=]?[ \t*]{0,8}", re.IGNORECASE)
_INLINE = re.compile(r"\banswer is:?[ \t]{0,8}", re.IGNORECASE)


@dataclass(frozen=True)
class Statement:
    """text: what is stated; alone: it is the whole answer, or the last line after ``Answer:``."""

    text: str
    alone: bool


def statement_of(answer: str) -> Statement:
    """The rest of the last line that begins with ``Answer:`` (or says *the answer is*); without one, the whole answer."""
    lines = [line for line in answer.strip().split("\n") if line.strip()]
    for back, line in enumerate(reversed(lines)):
        begun = _MARKER.match(line)
        if begun and (line[: begun.end()].rstrip(" \t*").endswith((":", "=")) or begun.group(0).rstrip().lower().endswith("is")):
            return Statement(_plain(line[begun.end() :]), back == 0)
        if said := list(_INLINE.finditer(line)):
            return Statement(_plain(line[said[-1].end() :]), alone=False)
    return Statement(answer.strip(), alone=len(lines) == 1)


def _plain(text: str) -> str:
    return text.strip().strip("*_").strip()


def fields_of(name: str, expected: Any, known: Mapping[str, Any], needed: str) -> dict[str, Any]:
    """`expected` as an object with these fields alone, each of its type (or types); a bare value is the field `needed`.

    Raises:
        VerifierError: it is something else; the message names the field.
    """
    given = expected if isinstance(expected, dict) else {needed: expected}
    if strange := sorted(set(given) - set(known)):
        raise VerifierError(f"{name}: expected.{strange[0]} is not known; there are {', '.join(known)}")
    if needed not in given:
        raise VerifierError(f"{name}: expected.{needed} is missing")
    for field, value in given.items():
        allowed = known[field] if isinstance(known[field], tuple) else (known[field],)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise VerifierError(f"{name}: expected.{field} is {value!r:.80}, which is of the wrong type")
    return given
