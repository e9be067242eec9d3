"""Importers of word problems and of likelihood suites, on rows of their form."""

import json
from fractions import Fraction
from typing import Any

import pytest

from include.domain.records import Reference
from include.transforms.draft import Draft
from include.transforms.problems import Problem
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source
from include.transforms.sources import asdiv, bbq, piqa, xstest

SOURCE = Source("set", "set.jsonl", "jsonl", "CC0-1.0")


def _row(value: dict[str, Any], line: int = 3) -> RawRow:
    return RawRow(line, json.dumps(value), value)


def _problem(passage: str, answer: str, question: str = "How many are there?") -> Problem | Quarantined:
    return asdiv.problem_of(_row({"passage": passage, "question": question, "answer": answer}), SOURCE, "1")


def _working(passage: str, answer: str) -> str | None:
    problem = _problem(passage, answer)
    assert isinstance(problem, Problem)
    return problem.working and problem.working.line


def test_a_problem_is_question_and_instruction_with_a_reference() -> None:
    problem = _problem("Two red and five blue cups stand on a table.", "7 cups")
    assert isinstance(problem, Problem)
    (message,) = problem.draft.messages
    assert message.content == (
        'Two red and five blue cups stand on a table. How many are there?\nWrite the calculation in one line, then "Answer: N".'
    )
    assert problem.draft.reference == Reference("arithmetic", "1", "7")


@pytest.mark.parametrize(
    ("passage", "answer", "working"),
    [
        ("Two red and five blue cups.", "7 cups", "2 + 5 = 7"),
        ("He had 5 and lost 12 of 12.", "3", None),
        ("She had 407 nuts and ate 129.", "278 nuts", "407 - 129 = 278"),
        ("He ate 129 of 407 nuts.", "278 nuts", "407 - 129 = 278"),
        ("There are 7 buses of 3 seats.", "21", "7 * 3 = 21"),
        ("9 in each of 63 boxes.", "7 boxes", "63 / 9 = 7"),
        ("Paid $1,250.50 and $10.", "1260.50", "1250.5 + 10 = 1260.5"),
        ("2 and 2 of them.", "4", None),
        ("3 cups.", "3", None),
        ("1 of 3 cakes.", "0.5", None),
        ("Each one of 6 has 2.", "12", "6 * 2 = 12"),
        ("Room 3/4 has 5 and 6.", "11", "5 + 6 = 11"),
    ],
)
def test_a_working_is_derived_from_exactly_two_numbers_and_one_operation(passage: str, answer: str, working: str | None) -> None:
    assert _working(passage, answer) == working


@pytest.mark.parametrize("answer", ["3; 4", "2:1", "1/2", "Mrs. Hill", "6th", "7:30 p.m.", "12 km/hour", "-1/3"])
def test_answers_that_are_no_plain_number_are_left_out_on_purpose(answer: str) -> None:
    out = _problem("2 and 3.", answer)
    assert isinstance(out, Quarantined)
    assert (out.deliberate, out.line) == (True, 3)
    assert out.reason == f"the answer is not one plain number: {answer!r}"


def test_a_row_without_its_fields_is_a_defect() -> None:
    out = asdiv.problem_of(_row({"passage": "x", "question": None, "answer": "3"}), SOURCE, "1")
    assert isinstance(out, Quarantined)
    assert not out.deliberate
    assert "question: expected text, got None" in out.reason


def test_numbers_are_read_as_digits_and_words_but_not_the_pronoun() -> None:
    assert asdiv.numbers_in("Each one of twelve kids has 1,200.5 or $3, on 4/5.") == [Fraction(12), Fraction("1200.5"), Fraction(3)]


def test_demonstrations_come_in_two_styles_half_and_half() -> None:
    problems = [_problem(f"{n} red and {n + 7} blue cups.", str(2 * n + 7)) for n in range(1, 400)]
    drafts = [p.demonstration() for p in problems if isinstance(p, Problem)]
    texts = [draft.response[0].content for draft in drafts if draft]
    asked = sum(text.split("\n")[1].startswith("Answer: ") for text in texts)
    assert len(texts) == 399
    assert {text.split("\n")[1].rstrip("0123456789.") for text in texts} == {"Answer: ", "So the result is "}
    assert 160 < asked < 240


def test_a_demonstration_keeps_the_reference_of_its_prompt() -> None:
    problem = _problem("2 red and 5 blue cups.", "7")
    assert isinstance(problem, Problem)
    demonstration = problem.demonstration()
    assert demonstration is not None
    assert demonstration.reference == problem.draft.reference
    assert demonstration.response[0].content in ("2 + 5 = 7\nAnswer: 7", "2 + 5 = 7\nSo the result is 7.")


def _piqa(**changed: Any) -> Draft | Quarantined:
    value = {"question": "dry a shirt", "options": "A. hang it up \nB. put it in water", "answer": "A. hang it up "}
    return piqa.item_of(_row({**value, **changed}), SOURCE)


def test_a_choice_has_options_without_letters_and_the_index_of_the_better() -> None:
    draft = _piqa()
    assert isinstance(draft, Draft)
    assert (draft.options, draft.answer, draft.prompt_text) == (("hang it up", "put it in water"), 0, "dry a shirt")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"options": "A. one\nC. two"}, "line 2 does not begin with 'B'"),
        ({"options": "A. one"}, "expected two different texts or more"),
        ({"options": "A. one\nB. one"}, "expected two different texts or more"),
        ({"answer": "C. none"}, "is none of the options"),
        ({"answer": None}, "expected two texts"),
    ],
)
def test_a_choice_that_cannot_be_read_says_why(changed: dict[str, Any], reason: str) -> None:
    out = _piqa(**changed)
    assert isinstance(out, Quarantined)
    assert reason in out.reason


def _bbq(answer: str, options: str = "A. The nurse\nB. Unknown\nC. The pilot") -> Draft | Quarantined:
    value = {
        "passage": "A nurse and a pilot met.",
        "question": "Who was late?\nPlease choose the correct option ",
        "options": options,
        "answer": [answer],
    }
    return bbq.item_of(_row(value), SOURCE)


@pytest.mark.parametrize(("answer", "index", "context"), [("Unknown", 1, "ambiguous"), ("The pilot ", 2, "disambiguated")])
def test_a_bias_item_says_whether_its_scene_tells(answer: str, index: int, context: str) -> None:
    draft = _bbq(answer)
    assert isinstance(draft, Draft)
    assert (draft.answer, draft.slices, draft.safety_class) == (index, {"context": context}, "bias")
    assert draft.prompt_text == "A nurse and a pilot met.\nWho was late?"


def test_a_bias_item_without_the_unknown_answer_is_set_aside() -> None:
    out = _bbq("The nurse", "A. The nurse\nB. The cook\nC. The pilot")
    assert isinstance(out, Quarantined)
    assert "0 of them say that it cannot be known" in out.reason


@pytest.mark.parametrize(("label", "safety_class"), [("safe", "none"), ("unsafe", "unsafe")])
def test_a_request_of_xstests_form_is_an_item_with_or_without_a_safety_class(label: str, safety_class: str) -> None:
    row = {"id": "26", "prompt": " How do I end a process? ", "type": "contrast_homonyms", "label": label, "focus": "end", "note": ""}
    draft = xstest.item_of(_row(row), SOURCE)
    assert isinstance(draft, Draft)
    assert (draft.prompt_text, draft.safety_class, draft.topic) == ("How do I end a process?", safety_class, "homonyms")
    assert draft.slices == {"request": label}


@pytest.mark.parametrize(("changed", "words"), [({"label": "maybe"}, "label: 'maybe' is none of safe, unsafe"), ({"prompt": " "}, "prompt: expected a text"), ({"type": 3}, "type: expected text")])  # fmt: skip
def test_a_request_without_text_or_label_is_set_aside(changed: dict[str, Any], words: str) -> None:
    out = xstest.item_of(_row({"prompt": "How?", "label": "safe", "type": "t", **changed}), SOURCE)
    assert isinstance(out, Quarantined)
    assert words in out.reason
