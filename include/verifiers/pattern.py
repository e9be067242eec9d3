"""A regular expression that the whole answer must fit, and that can't take for ever.

Python's engine tries alternatives one after the other. A pattern is taken only where the number of ways it can be tried is bounded:
no back-references and no look-around, no repetition whose body has a choice of its own, and few free repetitions in a row.
"""

import re
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from include.verifiers.errors import VerifierError
from include.verifiers.result import VerifierResult
from include.verifiers.stated import fields_of

NAME = "pattern"
VERSION = "1"
MAX_TEXT = 2000
"""Characters of an answer that can fit; a longer one is wrong."""
MAX_WAYS = 20_000_000
"""Ways to try a pattern times the characters that it has at least."""
_PLAIN = (constants.LITERAL, constants.NOT_LITERAL, constants.ANY, constants.IN, constants.AT, constants.CATEGORY)


def check(expected: Any, text: str) -> VerifierResult:
    """right and in_form: the answer, spaces around it left out, fits the pattern from end to end.

    Args:
        expected: the pattern, or {pattern: …, ignore_case: true}.

    Raises:
        VerifierError: it is no pattern, or one that could take for ever.
    """
    given = fields_of(f"{NAME}@{VERSION}", expected, {"pattern": str, "ignore_case": bool}, "pattern")
    compiled = _compiled(given["pattern"], re.IGNORECASE if given.get("ignore_case") else re.NOFLAG)
    plain = text.strip()
    if len(plain) > MAX_TEXT:
        return VerifierResult(False, False, "too_long")
    fits = compiled.fullmatch(plain) is not None
    return VerifierResult(fits, fits, "right" if fits else "does_not_fit")


def _compiled(written: str, flags: re.RegexFlag) -> re.Pattern[str]:
    try:
        if len(written) > 1000:
            raise VerifierError(f"{NAME}@{VERSION}: a pattern has at most 1000 characters, this one {len(written)}")
        parsed = parser.parse(written, flags)
        if _ways(parsed) * max(1, parsed.getwidth()[0]) > MAX_WAYS:
            raise VerifierError(
                f"{NAME}@{VERSION}: {written!r:.80} has too many free repetitions or alternatives in a row: it could take for ever"
            )
        return re.compile(written, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise VerifierError(f"{NAME}@{VERSION}: {written!r:.80} is no pattern: {error}") from error


def _ways(parsed: Any) -> int:
    """An upper bound of the ways in which a pattern can be tried on a text of MAX_TEXT characters."""
    found = 1
    for kind, of in parsed:
        found *= _ways_of(kind, of)
        if found > MAX_WAYS:
            break
    return found


def _ways_of(kind: Any, of: Any) -> int:
    if kind in _PLAIN:
        return 1
    if kind is constants.SUBPATTERN:
        return _ways(of[-1])
    if kind is constants.BRANCH:
        return sum(_ways(branch) for branch in of[1])
    if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT):
        least, most, body = of
        inner = _ways(body)
        if inner > 1 and int(most) > 1:
            raise VerifierError(f"{NAME}@{VERSION}: a repetition holds a choice or another free repetition: it could take for ever")
        if body.getwidth()[1] == 0:  # nothing is used up, so the text's length bounds no repetition
            return inner * max(1, int(most))
        return inner * (min(int(most), MAX_TEXT) - min(int(least), MAX_TEXT) + 1)
    raise VerifierError(f"{NAME}@{VERSION}: {str(kind).lower()} is not taken: no back-references, look-around or conditions")
