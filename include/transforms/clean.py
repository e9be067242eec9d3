"""Rows that cannot be learned from, whatever they say. Texts are never changed here: a row stays as it is, or goes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from include.transforms.draft import Draft

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
TEMPLATE_WORDS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|eot_id|>",
    "<|assistant|>",
    "<|user|>",
    "<|system|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
)
"""Control words of chat templates. Inside a text they would become special tokens, and end a turn or open another."""
_LEAKED_ROLE = re.compile(r"\n\s*(?:###\s*(?:Human|Assistant|Instruction|Response)|Human|User|Assistant)\s*:", re.IGNORECASE)


@dataclass(frozen=True)
class CleanSettings:
    """max_prompt_characters, max_answer_characters: longer rows go. template_words: see TEMPLATE_WORDS."""

    max_prompt_characters: int = 100_000
    max_answer_characters: int = 100_000
    template_words: tuple[str, ...] = TEMPLATE_WORDS


def unclean(draft: Draft, settings: CleanSettings) -> str | None:
    """Why the row must go, in one line; None where it may stay."""
    prompt = [message.content for message in draft.messages]
    answers = [*draft.answers, *(draft.options or ())]
    if sum(map(len, prompt)) > settings.max_prompt_characters:
        return f"the prompt is longer than {settings.max_prompt_characters} characters"
    if any(len(answer) > settings.max_answer_characters for answer in answers):
        return f"an answer is longer than {settings.max_answer_characters} characters"
    return _odd_text([*prompt, *answers], settings) or _leaked(answers)


def _odd_text(texts: Iterable[str], settings: CleanSettings) -> str | None:
    for text in texts:
        if match := _CONTROL.search(text):
            return f"control character U+{ord(match.group()):04X} at character {match.start()}"
        if "\ufffd" in text:
            return f"U+FFFD at character {text.index(chr(0xFFFD))}: the text was decoded wrongly before it came here"
        if word := next((word for word in settings.template_words if word in text), None):
            return f"the chat template's word {word} stands in the text"
    return None


def _leaked(answers: Iterable[str]) -> str | None:
    for answer in answers:
        if match := _LEAKED_ROLE.search(answer):
            return f"an answer goes on as another speaker ({match.group().strip()!r}): its end was cut wrongly"
    return None
