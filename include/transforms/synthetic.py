"""Preference pairs made from problems with a known working: the right one against a perturbed one, in the same style.

Three perturbations: an operand that is off, another operation, a slip in the result. The closing line follows the perturbed
working, and of several the one of equal length is taken: neither length nor form is to tell the two sides apart. No policy wrote
them: origin `synthetic:…`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from include.domain.canonical import digest
from include.domain.records import Message
from include.domain.split import unit_interval
from include.transforms.draft import Draft
from include.transforms.problems import OPERATION_NAMES, Problem, Working, apply, shown

Choice = TypeVar("Choice")

PROCEDURE = "perturbed-working"
VERSION = 1


@dataclass(frozen=True)
class SyntheticSettings:
    """perturbations: which, in this order. limit: at most so many pairs of all, chosen by hash; 0: all. seed: of the choices."""

    perturbations: tuple[str, ...] = ("operand", "operation", "result")
    limit: int = 0
    seed: int = 0

    @property
    def origin(self) -> str:
        """What stands in every candidate: the procedure, and the digest of its version and settings."""
        body = {"version": VERSION, "perturbations": list(self.perturbations), "seed": self.seed}
        return f"synthetic:{PROCEDURE}@{digest('procedure', body)}"


def pairs_of(problem: Problem, settings: SyntheticSettings) -> Iterator[Draft]:
    """A pair for each perturbation that gives another result than the right one."""
    if problem.working is None:
        return
    style = _pick(("asked", "plain"), "style", problem, settings)
    seen = {problem.working.line}
    for name in settings.perturbations:
        wrong = _chosen(name, problem.working, problem, settings)
        if wrong is None or wrong.line in seen:
            continue
        seen.add(wrong.line)
        yield replace(
            problem.draft,
            chosen=Message("assistant", problem.working.answer(style)),
            rejected=Message("assistant", wrong.answer(style)),
            origin=settings.origin,
        )


def _chosen(name: str, right: Working, problem: Problem, settings: SyntheticSettings) -> Working | None:
    """One of the perturbed workings by hash, of the right one's length where there are such."""
    usable = tuple(wrong for wrong in _PERTURBATIONS[name](right) if _plausible(wrong, right))
    same_length = tuple(wrong for wrong in usable if len(wrong.line) == len(right.line))
    return _pick(same_length or usable, name, problem, settings) if usable else None


def _plausible(wrong: Working, right: Working) -> bool:
    """Another result, none of its numbers below zero, and whole where the right one is."""
    least = min(wrong.left, wrong.right, wrong.result)
    whole = wrong.result.denominator == 1 or right.result.denominator != 1
    return wrong.result != right.result and least >= 0 and whole and shown(wrong.result) is not None


def limited(drafts: list[Draft], settings: SyntheticSettings) -> list[Draft]:
    """At most `settings.limit` of them, chosen by hash."""
    if not settings.limit or len(drafts) <= settings.limit:
        return drafts
    keep = sorted(drafts, key=lambda d: unit_interval(f"limit-{settings.seed}", "\n".join((d.prompt_text, *d.answers))))
    chosen = {id(draft) for draft in keep[: settings.limit]}
    return [draft for draft in drafts if id(draft) in chosen]


def _pick(choices: tuple[Choice, ...], label: str, problem: Problem, settings: SyntheticSettings) -> Choice:
    at = unit_interval(f"{PROCEDURE}-{settings.seed}-{label}", problem.draft.prompt_text)
    return choices[int(at * len(choices))]


def _operand(right: Working) -> Iterator[Working]:
    """One operand is off by one to three, and the result follows."""
    for by in _SHIFTS:
        yield from _worked_out(replace(right, left=right.left + by))
        yield from _worked_out(replace(right, right=right.right + by))


def _operation(right: Working) -> Iterator[Working]:
    """Another operation on the same operands, and the result follows."""
    for operation in OPERATION_NAMES:
        if operation != right.operation:
            yield from _worked_out(replace(right, operation=operation))
            yield from _worked_out(replace(right, operation=operation, left=right.right, right=right.left))


def _result(right: Working) -> Iterator[Working]:
    """The operands and the operation stay, the result slips by one to three, or by ten."""
    for by in (*_SHIFTS, -10, 10):
        yield replace(right, result=right.result + by)


def _worked_out(working: Working) -> Iterator[Working]:
    result = apply(working.operation, working.left, working.right)
    if result is not None:
        yield replace(working, result=result)


_SHIFTS = (-3, -2, -1, 1, 2, 3)
_PERTURBATIONS: Mapping[str, Callable[[Working], Iterator[Working]]] = {
    "operand": _operand,
    "operation": _operation,
    "result": _result,
}
