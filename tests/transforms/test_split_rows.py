"""A prompt's group decides its side; nothing is on two."""

import pytest

from include.domain.records import Message
from include.domain.split import side_of
from include.transforms.draft import Draft
from include.transforms.errors import TransformError
from include.transforms.split import SplitSettings, check_overlap, group_of, side_of_draft, use_of_group


def _prompt(*turns: str, group: str | None = None, safety_class: str = "none") -> Draft:
    roles = ("user", "assistant")
    messages = tuple(Message(roles[i % 2], text) for i, text in enumerate(turns))
    return Draft("made", 1, messages, "CC0", "licence", group=group, safety_class=safety_class)


PROMPTS = [
    "How do I bake bread?",
    "how do I bake  bread?",
    "How do I bake bread? ",
    "Name a planet.",
    "Name a planet.",
    "Write a haiku",
    "WRITE A HAIKU",
    "What is 2+2?",
]


def test_prompts_that_differ_in_case_and_space_are_one_group() -> None:
    groups = [group_of(_prompt(text)) for text in PROMPTS]
    assert [groups.index(group) for group in groups] == [0, 0, 0, 3, 3, 5, 5, 7]


@pytest.mark.parametrize("salt", ["a", "b", "c", "another project"])
def test_for_any_salt_no_normalised_prompt_is_on_two_sides(salt: str) -> None:
    settings = SplitSettings(salt, {"train": 0.4, "validation": 0.3, "holdout": 0.3})
    assert check_overlap((side_of_draft(_prompt(text), settings), text) for text in PROMPTS) == 4


def test_a_row_stays_on_its_side_as_others_come() -> None:
    settings = SplitSettings("salt")
    before = {text: side_of_draft(_prompt(text), settings) for text in PROMPTS}
    more = [f"prompt {n}" for n in range(500)] + PROMPTS[::-1]
    after = {text: side_of_draft(_prompt(text), settings) for text in more}
    assert before == {text: after[text] for text in PROMPTS}


def test_a_conversation_is_grouped_with_its_first_turn() -> None:
    assert group_of(_prompt("Hello", "Hi", "And now?")) == group_of(_prompt("hello"))


def test_a_named_document_is_one_group_whatever_is_asked_of_it() -> None:
    assert group_of(_prompt("one", group="doc-1")) == group_of(_prompt("two", group="doc-1"))
    assert group_of(_prompt("one", group="doc-1")) != group_of(_prompt("one"))


def test_a_held_out_row_of_a_safety_class_is_on_the_safety_holdout() -> None:
    settings = SplitSettings("salt")
    held = [text for n in range(200) if side_of_draft(_prompt(text := f"prompt {n}"), settings) == "holdout"]
    assert held
    assert {side_of_draft(_prompt(text, safety_class="bias"), settings) for text in held} == {"safety_holdout"}


def test_overlap_of_two_sides_is_an_error_that_names_the_prompt() -> None:
    with pytest.raises(TransformError, match="'a b' is on two sides, train and holdout"):
        check_overlap([("train", "A b"), ("safety_holdout", "a  B")])


def test_uses_are_independent_of_sides_and_optional() -> None:
    settings = SplitSettings("salt", uses={"demonstration": 0.5, "preference": 0.5})
    groups = [group_of(_prompt(f"prompt {n}")) for n in range(600)]
    train = [g for g in groups if side_of("salt", g) == "train"]
    share = sum(use_of_group(g, settings) == "demonstration" for g in train) / len(train)
    assert 0.4 < share < 0.6
    assert use_of_group(groups[0], SplitSettings("salt")) is None
