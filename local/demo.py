"""The demonstration."""

from __future__ import annotations
from dataclasses import dataclass
from local.stack import Stack


@dataclass(frozen=True)
class Wish:
    recipe: str
    method: str
    auto: bool


def run(stack: Stack, wish: Wish) -> int:
    stack.up()
    return 0
