"""Votes from other annotation tools: the side that won is resolved to the answer that stood there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NO_PAIR = ("tie", "both_bad", "cannot_judge")


@dataclass(frozen=True)
class Resolved:
    """A vote that decided: the answer that won, and the other."""

    chosen: str
    rejected: str


@dataclass(frozen=True)
class Undecided:
    """A vote that never becomes a pair; reason: tie, both_bad, cannot_judge."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """A vote that cannot be read; reason says why."""

    reason: str


def resolve_vote(vote: Mapping[str, Any]) -> Resolved | Undecided | Refused:
    """{a, b, swapped, choice}: `swapped` tells that b was shown on the left; choice: left, right, tie, both_bad, cannot_judge."""
    first, second, choice = vote.get("a"), vote.get("b"), vote.get("choice")
    if not isinstance(first, str) or not isinstance(second, str):
        return Refused("a and b: expected two answers, by id or as texts")
    if first == second:
        return Refused(f"an answer is compared with itself: {first[:80]!r}")
    if choice in NO_PAIR:
        return Undecided(str(choice))
    if choice not in ("left", "right"):
        return Refused(f"choice {choice!r} is none of left, right, {', '.join(NO_PAIR)}")
    swapped = vote.get("swapped")
    if not isinstance(swapped, bool):
        return Refused("swapped: it is not known which answer was on the left")
    left, right = (second, first) if swapped else (first, second)
    won, lost = (left, right) if choice == "left" else (right, left)
    return Resolved(won, lost)
