"""Synthetic pairs: the right working against a wrong one that length and form do not give away."""

from fractions import Fraction

import pytest

from include.domain.records import Message
from include.transforms.draft import Draft
from include.transforms.problems import Problem, Working
from include.transforms.synthetic import SyntheticSettings, limited, pairs_of


def _problem(left: int, operation: str, right: int, result: int) -> Problem:
    draft = Draft("made", 1, (Message("user", f"What is {left} {operation} {right}?"),), "CC0", "licence")
    return Problem(draft, Working(Fraction(left), operation, Fraction(right), Fraction(result)))


PROBLEMS = [_problem(a, "+", b, a + b) for a in range(12) for b in range(12)] + [
    _problem(a * b, "/", b, a) for a in range(9) for b in range(2, 9)
]


def _claims(text: str) -> tuple[Fraction, bool]:
    """The result a side states, and whether its line is right; the closing line must say the same."""
    line, close = text.split("\n")
    left, operation, right, _, result = line.split()
    assert close in (f"Answer: {result}", f"So the result is {result}.")
    worked = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}
    return Fraction(result), worked[operation](Fraction(left), Fraction(right)) == Fraction(result)


def test_the_chosen_side_is_right_and_the_rejected_one_states_another_result() -> None:
    for problem in PROBLEMS:
        for pair in pairs_of(problem, SyntheticSettings()):
            assert pair.chosen and pair.rejected and problem.working  # noqa: PT018 - for the type checker
            assert _claims(pair.chosen.content) == (problem.working.result, True)
            assert _claims(pair.rejected.content)[0] != problem.working.result


def test_both_sides_close_in_the_same_style() -> None:
    pairs = [pair for problem in PROBLEMS for pair in pairs_of(problem, SyntheticSettings())]
    styles = [(p.chosen.content.split("\n")[1][:6], p.rejected.content.split("\n")[1][:6]) for p in pairs if p.chosen and p.rejected]
    assert all(chosen == rejected for chosen, rejected in styles)
    assert {chosen for chosen, _ in styles} == {"Answer", "So the"}


def test_length_tells_little() -> None:
    pairs = [pair for problem in PROBLEMS for pair in pairs_of(problem, SyntheticSettings())]
    lengths = [(len(p.chosen.content), len(p.rejected.content)) for p in pairs if p.chosen and p.rejected]
    shorter_wins = sum(0.5 if a == b else float(a < b) for a, b in lengths) / len(lengths)
    assert 0.4 < shorter_wins < 0.6


@pytest.mark.parametrize(("kind", "line_is_right"), [("operand", True), ("operation", True), ("result", False)])
def test_each_perturbation_does_what_it_says(kind: str, line_is_right: bool) -> None:
    pairs = [pair for problem in PROBLEMS for pair in pairs_of(problem, SyntheticSettings(perturbations=(kind,)))]
    assert len(pairs) > 100
    assert {_claims(p.rejected.content)[1] for p in pairs if p.rejected} == {line_is_right}


def test_the_origin_names_the_procedure_and_its_settings() -> None:
    (pair, *_) = pairs_of(PROBLEMS[20], SyntheticSettings())
    made = pair.pair("g")
    assert made.origin.startswith("synthetic:perturbed-working@sha256:")
    assert (made.chosen.policy_checkpoint, made.rejected.policy_checkpoint) == (None, None)
    assert SyntheticSettings(seed=1).origin != SyntheticSettings().origin == SyntheticSettings(limit=5).origin


def test_the_same_seed_gives_the_same_pairs_and_another_seed_others() -> None:
    def made(seed: int) -> list[str]:
        return [p.rejected.content for problem in PROBLEMS for p in pairs_of(problem, SyntheticSettings(seed=seed)) if p.rejected]

    assert made(0) == made(0)
    assert made(0) != made(1)


def test_a_limit_keeps_the_same_pairs_whatever_their_order() -> None:
    settings = SyntheticSettings(limit=10)
    pairs = [pair for problem in PROBLEMS for pair in pairs_of(problem, settings)]
    kept = limited(pairs, settings)
    assert len(kept) == 10
    assert {id(pair) for pair in kept} == {id(pair) for pair in limited(pairs[::-1], settings)}
