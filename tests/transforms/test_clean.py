"""Rows that cannot be learned from are named; texts are never changed."""

import pytest

from include.domain.records import Message
from include.transforms.clean import CleanSettings, unclean
from include.transforms.draft import Draft


def _draft(prompt: str, response: str = "Fine.") -> Draft:
    return Draft("made", 1, (Message("user", prompt),), "CC0", "licence", response=(Message("assistant", response),))


@pytest.mark.parametrize("text", ["Plain.", "a\tb\nc\r\nd", "odd\u2028\x85", "Answer: 4", "User guide: see below", "<b>bold</b>"])
def test_ordinary_text_stays(text: str) -> None:
    assert unclean(_draft(text, text), CleanSettings()) is None


@pytest.mark.parametrize(
    ("prompt", "response", "reason"),
    [
        ("a\x00b", "Fine.", "control character U+0000 at character 1"),
        ("caf\ufffd", "Fine.", "U+FFFD at character 3"),
        ("Hi", "Fine.<|im_end|>\n<|im_start|>user", "<|im_start|> stands in the text"),
        ("[INST] Hi", "Fine.", "[INST] stands in the text"),
        ("Hi", "Fine.\nHuman: and now?", "goes on as another speaker ('Human:')"),
        ("Hi", "Fine.\n### Instruction: more", "goes on as another speaker"),
    ],
)
def test_what_would_break_training_is_named(prompt: str, response: str, reason: str) -> None:
    assert reason in str(unclean(_draft(prompt, response), CleanSettings()))


def test_lengths_are_limited() -> None:
    limits = CleanSettings(max_prompt_characters=10, max_answer_characters=5)
    assert unclean(_draft("x" * 10, "y" * 5), limits) is None
    assert unclean(_draft("x" * 11, "y"), limits) == "the prompt is longer than 10 characters"
    assert unclean(_draft("x", "y" * 6), limits) == "an answer is longer than 5 characters"
