"""Texts: is what the answer states one of the accepted texts, to the letter, or after normalisation?"""

import re
import string
import unicodedata
from collections.abc import Callable
from typing import Any

from include.verifiers.errors import VerifierError
from include.verifiers.result import VerifierResult
from include.verifiers.stated import fields_of, statement_of

EXACT, NORMALISED = "exact_text", "normalised_text"
VERSION = "1"

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation + "“”‘’«»…–—"), " ")


def check_exact(expected: Any, text: str) -> VerifierResult:
    """right: the statement, spaces around it left out, is one of `expected` (a text, or several) to the letter."""
    return _check(EXACT, expected, text, str.strip)


def check_normalised(expected: Any, text: str) -> VerifierResult:
    """right: the same after `normalised`."""
    return _check(NORMALISED, expected, text, normalised)


def normalised(text: str) -> str:
    """NFKC, lower case, without punctuation and English articles, single spaces. Source: SQuAD's evaluation script, which has no NFKC."""
    lower = unicodedata.normalize("NFKC", text).casefold().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lower).split())


def _check(name: str, expected: Any, text: str, form: Callable[[str], str]) -> VerifierResult:
    """Raises VerifierError where `expected` is no text, or one of which nothing is left."""
    given = fields_of(f"{name}@{VERSION}", expected, {"accepted": (str, list)}, "accepted")["accepted"]
    texts = [given] if isinstance(given, str) else given
    if not texts or not all(isinstance(item, str) and form(item) for item in texts):
        raise VerifierError(f"{name}@{VERSION}: expected {given!r:.80} must be a text, or several, of which something is left to compare")
    stated = statement_of(text)
    wanted = {form(item) for item in texts}
    right = form(stated.text) in wanted or form(text) in wanted
    return VerifierResult(right, stated.alone, "right" if right else "empty" if not text.strip() else "another_text")
