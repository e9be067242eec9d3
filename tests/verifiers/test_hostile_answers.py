"""Answers made to hurt: every verifier but the oldest gives a verdict on each within two seconds, and none of them is right."""

import time

import pytest

from include.domain.records import Reference
from include.verifiers import instructions
from include.verifiers.registry import verify
from include.verifiers.stated import MAX_CHARACTERS
from tests.verifiers.test_answers import REFERENCES

LONG = MAX_CHARACTERS - 10
HOSTILE = {
    "brackets": "[" * LONG,
    "braces": '{"a":' * (LONG // 5),
    "open boxes": "\\boxed{" * (LONG // 7),
    "open fractions": "\\frac{1}{" * (LONG // 9),
    "stars": "*" * LONG,
    "starred": "*a" * (LONG // 2),
    "quotes": '"' * LONG,
    "backslashes": "\\" * LONG,
    "fences": "```json\n" * (LONG // 8),
    "a fence of blanks": "```\n" + " " * (LONG - 10),
    "a fence of lines": "```json\n" + "\n" * (LONG - 10),
    "digits": "1" * LONG,
    "groups of thousands": "1" + ",111" * (LONG // 4),
    "fractions": "1/" * (LONG // 2),
    "mixed numbers": "1 " * (LONG // 4) + "1" * (LONG // 2),
    "open stars": "*" + "a" * (LONG - 1),
    "open bracket": "[" + "a" * (LONG - 1),
    "expanding letters": "\ufdfa" * (LONG // 4),
    "thousands": "1,234" * (LONG // 5),
    "points": "1." * (LONG // 2),
    "blanks": " " * LONG + "x",
    "ends of sentences": "!" * LONG + "x",
    "rows of ends": "?!.x" * (LONG // 4),
    "lines": "\n" * LONG + "x",
    "markers": "answer is " * (LONG // 10),
    "angles": "<<" * (LONG // 2),
    "letters": "a" * LONG + "!",
    "words": "a " * (LONG // 2) + "!",
    "nul and controls": "\x00\x1b[2J\u202e" * 1000,
    "far too long": "a" * (40 * MAX_CHARACTERS),
    "null": "null",
    "a lone surrogate": "\ud800",
    "turkish and ligatures": "İıſﬃ" * 1000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("verifier", [name for name in REFERENCES if name != "arithmetic"])
def test_a_verdict_comes_soon_and_is_not_right(verifier: str, text: str) -> None:
    before = time.process_time()
    found = verify(Reference(verifier, "1", REFERENCES[verifier]), text)
    assert time.process_time() - before < 2.0
    assert found.right is False


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_every_instruction_is_looked_for_soon(text: str) -> None:
    asked = [{"id": name, **{key: _ARGUMENTS[kind] for key, kind in one.arguments.items()}} for name, one in instructions._KINDS.items()]
    before = time.process_time()
    for instruction in asked:
        verify(Reference("instructions", "1", [instruction]), text)
    assert time.process_time() - before < 4.0


_ARGUMENTS = {"a count": 3, "a relation": "at least", "texts": ["abc"], "a text": "ab", "a letter": "a"}
