"""How often the shorter answer won: where it hardly ever does, a reward model learns that long is good."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CONTRAST = 2 / 3
"""An answer at most so long, of the other's characters, is *short* beside it."""


def short_beside(first: str, second: str) -> bool:
    """Whether one of two answers is short beside the other; two empty ones are not."""
    return short_by_length(len(first), len(second))


def short_by_length(first: int, second: int) -> bool:
    """The same of two answers of so many characters."""
    return min(first, second) <= CONTRAST * max(first, second) and first != second


@dataclass(frozen=True)
class ShortWins:
    """Of traced pairs: how many have a short side, and in how many of these it won."""

    pairs: int
    contrasts: int
    won: int

    @property
    def share(self) -> float | None:
        return self.won / self.contrasts if self.contrasts else None

    @property
    def text(self) -> str:
        if self.share is None:
            return f"in none of {self.pairs} pairs is one answer at most two thirds as long as the other"
        return f"the short answer won {self.won} of {self.contrasts} pairs in which it is at most two thirds as long ({self.share:.0%})"


def short_wins(records: Iterable[Mapping[str, Any]]) -> ShortWins:
    """Over preference pairs as JSON; imported and synthetic ones do not count."""
    pairs = contrasts = won = 0
    for record in records:
        if any(record[side]["origin"] != "policy" for side in ("chosen", "rejected")):
            continue
        chosen, rejected = (record[side]["response_text"] for side in ("chosen", "rejected"))
        pairs += 1
        if short_beside(chosen, rejected):
            contrasts += 1
            won += len(chosen) < len(rejected)
    return ShortWins(pairs, contrasts, won)
