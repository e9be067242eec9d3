"""Verifiers of form: JSON by a schema (held against the library jsonschema), patterns, and instructions in IFEval's words."""

import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.verifiers.errors import VerifierError
from tests.verifiers.test_answers import said

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "right", "in_form", "detail"),
    [
        ('{"name": "Ann", "age": 3}', True, True, "right"),
        ('Here it is:\n```json\n{"name": "Ann", "age": 3.0}\n```\nBye', True, False, "right"),
        ('{"name": "Ann"}', False, True, "schema_required"),
        ('{"name": "", "age": 3}', False, True, "schema_minLength"),
        ('{"name": "Ann", "age": true}', False, True, "schema_type"),
        ('{"name": "Ann", "age": 3, "x": 1}', False, True, "not_allowed"),
        ('{"name": "Ann", "age": 3, "age": 4}', False, True, "key_twice"),
        ('{"name": "Ann", "age": NaN}', False, False, "no_json"),
        ('{"name": "Ann", "age": 1e999}', False, True, "number_too_big"),
        ('{"name": "Ann", "age": ' + "9" * 5000 + "}", False, True, "number_too_big"),
        ("[" * 41 + "]" * 41, False, True, "too_deep"),
        ("{'name': 'Ann'}", False, False, "no_json"),
        ('{"name": "Ann", "age": 3} and more', False, False, "no_json"),
        ("", False, False, "no_json"),
    ],
)
def test_json_fits_the_schema_or_the_verdict_says_why_not(text: str, right: bool, in_form: bool, detail: str) -> None:
    found = said("json_schema", PERSON, text)
    assert (found.right, found.in_form, found.detail) == (right, in_form, detail)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2, width=16) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])


def _schemas(inner: Any) -> Any:
    counts, some = st.integers(0, 3), st.lists(inner, min_size=1, max_size=2)
    known = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        "uniqueItems": st.booleans(),
        "items": inner,
        "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
        "additionalProperties": inner,
        "not": inner,
        **dict.fromkeys(("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"), counts),
        **{name: st.integers(-2, 2) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
        "anyOf": some,
        "oneOf": some,
        "allOf": some,
    }
    return st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: known[name] for name in names})
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(st.booleans(), _schemas, max_leaves=5), VALUES)
def test_the_verdict_is_that_of_the_library_jsonschema(schema: Any, value: Any) -> None:
    found = said("json_schema", {"schema": schema}, json.dumps(value))
    assert found.right is jsonschema.Draft202012Validator(schema).is_valid(value), (schema, value)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"pattern": "(a+)+$"}, "schema.pattern is not known here"),
        ({"items": {"$ref": "#"}}, r"schema.items.\$ref is not known here"),
        ({"type": "text"}, "schema.type is 'text'"),
        ({"properties": {"a": {"minLength": -1}}}, "minLength is -1"),
        ({"anyOf": []}, "schema.anyOf"),
        ({"items": 3}, "schema.items must be an object or a boolean"),
        ("object", "wrong type"),
    ],
)
def test_a_schema_that_is_not_whole_understood_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(VerifierError, match=why):
        said("json_schema", schema, "{}")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"anyOf": [{"const": number} for number in range(1, 500)]}}, [499] * 10_000),
        ({"anyOf": [{"const": number} for number in range(500)]}, ["a" * 40] * 1000),
        ({"allOf": [{"uniqueItems": True}] * 500}, list(range(7000))),
        ({"items": {"enum": [f"v{number}" for number in range(2000)]}}, ["v7"] * 8000),
        ({"allOf": [{"required": ["0"], "additionalProperties": True}] * 500}, {str(n): 1 for n in range(4000)}),
    ],
)
def test_json_that_would_take_too_many_comparisons_is_wrong_soon(schema: Any, value: Any) -> None:
    before = time.process_time()
    assert said("json_schema", schema, json.dumps(value)).detail == "too_big_to_check"
    assert time.process_time() - before < 2.0


@pytest.mark.parametrize(
    ("pattern", "text", "right"),
    [
        (r"\d{4}-\d{2}-\d{2}", " 2026-11-30\n", True),
        (r"\d{4}-\d{2}-\d{2}", "on 2026-11-30", False),
        (r"(yes|no)\.?", "no.", True),
        (r"[A-Z][a-z]+( [A-Z][a-z]{2}){2}", "Anna Maria", False),
        ({"pattern": "yes", "ignore_case": True}, "YES", True),
        (r"[a-z ]*", "a" * 2001, False),
    ],
)
def test_the_whole_answer_fits_the_pattern(pattern: Any, text: str, right: bool) -> None:
    assert said("pattern", pattern, text).right is right


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a+)+b", "holds a choice or another free repetition"),
        ("(a|aa)*b", "holds a choice"),
        ("(a?){30}b", "holds a choice"),
        ("a*a*a*a*b", "too many free repetitions"),
        ("a?" * 40 + "a" * 40, "too many"),
        (r"(?:(?:(?:\b){1000}){1000}){1000}a", "holds a choice|too many"),
        (r"(?:(?:^){9000}){9000}", "holds a choice|too many"),
        ("(ab|cd)" * 30, "too many"),
        ("[a-z]*[a-z]*a{900}!", "too many"),
        (r"(a)\1", "not taken"),
        ("(?=a)a", "not taken"),
        ("(?<!a)b", "not taken"),
        ("(", "is no pattern"),
        ("a" * 1001, "at most 1000 characters"),
        ("(?:" * 400 + ")" * 400, "is no pattern|at most|too many|not taken"),
    ],
)
def test_a_pattern_that_could_take_for_ever_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(VerifierError, match=why):
        said("pattern", pattern, "a")


def test_the_worst_pattern_that_is_taken_ends_soon() -> None:
    before = time.process_time()
    assert said("pattern", "[a-z]*[a-y]*!", "a" * 2000).right is False
    assert time.process_time() - before < 2.0


FOLLOWED: list[tuple[dict[str, Any], str, str]] = [
    ({"id": "length_constraints:number_words", "relation": "less than", "num_words": 3}, "two words", "now three words"),
    ({"id": "length_constraints:number_words", "relation": "at least", "num_words": 3}, "now three words", "two words"),
    ({"id": "length_constraints:number_sentences", "relation": "at least", "num_sentences": 2}, "One. Two", "Only 1.5 of one"),
    ({"id": "length_constraints:number_paragraphs", "num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    (
        {"id": "length_constraints:nth_paragraph_first_word", "num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        "First this.\n\nthen that.",
        "Then this.\n\nFirst that.",
    ),
    ({"id": "keywords:existence", "keywords": ["cat", "dog"]}, "A Cat and a dog.", "A bird and a dog."),
    ({"id": "keywords:forbidden_words", "forbidden_words": ["cat"]}, "A catalogue.", "A CAT!"),
    ({"id": "keywords:frequency", "relation": "at least", "keyword": "cat", "frequency": 2}, "cat, Cat", "cat, dog"),
    ({"id": "keywords:letter_frequency", "let_relation": "less than", "letter": "e", "let_frequency": 2}, "He", "Eve"),
    ({"id": "punctuation:no_comma"}, "one and two", "one, two"),
    ({"id": "detectable_format:number_bullet_lists", "num_bullets": 2}, "* a\n- b", "* a\n* b\n* c"),
    ({"id": "detectable_format:number_highlighted_sections", "num_highlights": 2}, "*a* and **b**", "*a* and b"),
    ({"id": "detectable_format:title"}, "<<A title>>\ntext", "<< >>"),
    (
        {"id": "detectable_format:multiple_sections", "section_spliter": "Part", "num_sections": 2},
        "Part 1\na\nPart 2\nb",
        "Part 1\nParty 2",
    ),
    ({"id": "detectable_format:constrained_response"}, "Well. My answer is maybe.", "My answer is perhaps."),
    ({"id": "detectable_format:json_format"}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ({"id": "detectable_content:number_placeholders", "num_placeholders": 2}, "[name] at [place]", "[name]"),
    ({"id": "detectable_content:postscript", "postscript_marker": "P.S."}, "Bye\nP.S. more", "Bye P.S."),
    ({"id": "startend:end_checker", "end_phrase": "That is all."}, "So. that is all. ", "That is all. Bye"),
    ({"id": "startend:quotation"}, '"all of it"', '"not" all'),
    ({"id": "change_case:english_lowercase"}, "all low 1!", "All low"),
    ({"id": "change_case:english_capital"}, "ALL UP 1!", "All UP"),
    ({"id": "change_case:capital_word_frequency", "capital_relation": "at least", "capital_frequency": 2}, "NASA and ESA", "NASA and Esa"),
    ({"id": "combination:repeat_prompt", "prompt_to_repeat": "Say this."}, "Say this. Done", "Done. Say this."),
    ({"id": "combination:two_responses"}, "one\n******\nother", "one\n******\none"),
]


@pytest.mark.parametrize(("instruction", "followed", "missed"), FOLLOWED, ids=[item["id"] for item, *_ in FOLLOWED])
def test_an_instruction_is_followed_or_named_as_missed(instruction: dict[str, Any], followed: str, missed: str) -> None:
    assert said("instructions", [instruction], followed).right is True
    found = said("instructions", [instruction], missed)
    assert (found.right, found.detail) == (False, instruction["id"])


def test_all_instructions_must_be_followed_and_arguments_that_are_null_are_left_out() -> None:
    asked = [{"id": "punctuation:no_comma", "keywords": None}, {"id": "keywords:existence", "keywords": ["cat"], "relation": None}]
    assert said("instructions", {"instructions": asked}, "a cat").right is True
    assert said("instructions", {"instructions": asked}, "a cat, a dog").detail == "punctuation:no_comma"


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ({"id": "language:response_language", "language": "de"}, "is not known; there are change_case"),
        ({"id": "punctuation:no_comma", "x": 1}, "takes nothing, and was given x"),
        ({"id": "keywords:existence"}, "takes keywords, and was given nothing"),
        ({"id": "keywords:existence", "keywords": []}, "not texts"),
        ({"id": "length_constraints:number_words", "relation": "more than", "num_words": 3}, "not a relation"),
        ({"id": "keywords:letter_frequency", "let_relation": "at least", "letter": "ab", "let_frequency": 1}, "not a letter"),
        ("punctuation:no_comma", "is not known"),
    ],
)
def test_an_instruction_that_is_not_whole_understood_is_refused(instruction: Any, why: str) -> None:
    with pytest.raises(VerifierError, match=why):
        said("instructions", [instruction], "text")
