"""A problem with one number as its answer, and the rows that are made of it: demonstration, prompt, suite item.

A working is one line, ``6 + 9 = 15``. Demonstrations end in one of two styles, half and half unless a source leans, chosen by the prompt's hash:
``Answer: 15`` (the asked form) and ``So the result is 15.``. What they leave open is for the policy stage to learn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from include.domain.records import Message, Reference
from include.domain.split import unit_interval
from include.transforms.draft import Draft

STYLES: Mapping[str, str] = {"asked": "Answer: {result}", "plain": "So the result is {result}."}
VERIFIER = "arithmetic"
_OPERATIONS: Mapping[str, Callable[[Fraction, Fraction], Fraction | None]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else None,
}
OPERATION_NAMES: Mapping[str, str] = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}


def shown(number: Fraction) -> str | None:
    """The number in decimals; None where it has no finite form."""
    denominator = number.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    if denominator != 1:
        return None
    return format((Decimal(number.numerator) / Decimal(number.denominator)).normalize(), "f")


def apply(operation: str, left: Fraction, right: Fraction) -> Fraction | None:
    """The result; None where there is none."""
    return _OPERATIONS[operation](left, right)


@dataclass(frozen=True)
class Working:
    """One line of calculation, as stated: it need not be right."""

    left: Fraction
    operation: str
    right: Fraction
    result: Fraction

    @property
    def line(self) -> str:
        return f"{shown(self.left)} {self.operation} {shown(self.right)} = {shown(self.result)}"

    def answer(self, style: str) -> str:
        """The working and the closing line of a style."""
        return f"{self.line}\n{STYLES[style].format(result=shown(self.result))}"


def derive(numbers: list[Fraction], answer: Fraction) -> Working | None:
    """The one operation that makes `answer` of exactly two numbers; None where none does, or several do."""
    if len(numbers) != 2:
        return None
    first, second = numbers
    found = {}
    for operation in _OPERATIONS:
        for left, right in ((first, second), (second, first)):
            if apply(operation, left, right) == answer and operation not in found:
                found[operation] = Working(left, operation, right, answer)
    if len(found) != 1:
        return None
    working = next(iter(found.values()))
    return working if all(shown(n) is not None for n in (working.left, working.right, working.result)) else None


@dataclass(frozen=True)
class Problem:
    """draft: the prompt with its reference. working: where one is known. asked_share: of demonstrations in the asked style."""

    draft: Draft
    working: Working | None
    asked_share: float = 0.5

    @property
    def style(self) -> str:
        """The style of this prompt's demonstration, by its hash."""
        return "asked" if unit_interval("demonstration-style", self.draft.prompt_text) < self.asked_share else "plain"

    def demonstration(self) -> Draft | None:
        if self.working is None:
            return None
        return replace(self.draft, response=(Message("assistant", self.working.answer(self.style)),))

    def suite_item(self) -> Draft:
        if self.working is None:
            return replace(self.draft, slices={"operation": "other"})
        return replace(self.draft, slices={"operation": OPERATION_NAMES[self.working.operation]})


def reference_to(expected: str, verifier_version: str) -> Reference:
    return Reference(VERIFIER, verifier_version, expected)
