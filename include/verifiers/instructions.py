"""Instructions on form that can be checked, by the names and arguments of IFEval (Zhou et al. 2023): words, keywords, lists, case, ends …

Written anew, all in time linear in the text. Left out, and refused: `language:response_language`, which needs a detector of languages.
Sentences end at ``.``, ``!`` or ``?`` before a space (IFEval asks a trained splitter), so counts of sentences can differ from its own.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from include.verifiers import json_schema
from include.verifiers.errors import VerifierError
from include.verifiers.result import VerifierResult
from include.verifiers.stated import fields_of

NAME = "instructions"
VERSION = "1"

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+(?=\s|\Z)")  # begun at the first sign alone, or a long row of them takes quadratic time
_BULLET = re.compile(r"^[ \t]{0,16}(?:\*(?!\*)|-)[ \t]?\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*\*[^*\n]+\*\*|\*[^*\n]+\*")
_TITLE = re.compile(r"<<[^<>\n]+>>")
_PLACEHOLDER = re.compile(r"\[[^\[\]]+\]")
_DIVIDER = re.compile(r"^[ \t]*\*\*\*[ \t]*$", re.MULTILINE)
_CONSTRAINED = ("yes", "no", "maybe")
_RELATIONS = ("less than", "at least")
Test = Callable[[str, Mapping[str, Any]], bool]


def check(expected: Any, text: str) -> VerifierResult:
    """right and in_form: every instruction is followed; detail: the first that is not. An empty answer follows none.

    Args:
        expected: a list of {id: "length_constraints:number_words", relation: "less than", num_words: 50}, or {instructions: [...]};
            arguments that are null are left out.

    Raises:
        VerifierError: no instruction, one that is not known, or one whose arguments are missing or of the wrong kind.
    """
    given = fields_of(f"{NAME}@{VERSION}", expected, {"instructions": list}, "instructions")["instructions"]
    asked = [_instruction(item) for item in given]
    if not asked:
        raise VerifierError(f"{NAME}@{VERSION}: no instruction is given")
    if not text.strip():
        return VerifierResult(False, False, "empty")
    missed = next((name for name, arguments in asked if not _KINDS[name].test(text, arguments)), None)
    return VerifierResult(missed is None, missed is None, "right" if missed is None else missed)


def _instruction(item: Any) -> tuple[str, Mapping[str, Any]]:
    name = str(item.get("id")) if isinstance(item, dict) else ""
    if name not in _KINDS:
        raise VerifierError(f"{NAME}@{VERSION}: {item!r:.60} is not known; there are {', '.join(sorted(_KINDS))}")
    arguments = {key: value for key, value in item.items() if key != "id" and value is not None}
    wanted = _KINDS[name].arguments
    if set(arguments) != set(wanted):
        raise VerifierError(
            f"{NAME}@{VERSION}: {name} takes {', '.join(wanted) or 'nothing'}, and was given {', '.join(sorted(arguments)) or 'nothing'}"
        )
    for key, kind in wanted.items():
        if not _is(kind, arguments[key]):
            raise VerifierError(f"{NAME}@{VERSION}: {name}.{key} is {arguments[key]!r:.60}, not {kind}")
    return name, arguments


def _is(kind: str, value: Any) -> bool:
    if kind == "a count":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000
    if kind == "a relation":
        return value in _RELATIONS
    if kind == "texts":
        return isinstance(value, list) and bool(value) and all(isinstance(item, str) and item.strip() for item in value)
    return isinstance(value, str) and bool(value.strip()) and (kind != "a letter" or len(value) == 1)


def _related(found: int, relation: str, asked: int) -> bool:
    return found < asked if relation == "less than" else found >= asked


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _times(text: str, keyword: str) -> int:
    """How often a keyword stands there, whatever its case, in longer words too."""
    return text.lower().count(keyword.strip().lower())


def _as_word(text: str, word: str) -> bool:
    """Whether it stands there as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE) is not None


def _sentences(text: str) -> int:
    ends = list(_SENTENCE_END.finditer(text))
    return len(ends) + bool(text[ends[-1].end() if ends else 0 :].strip())


def _paragraphs(text: str, by: re.Pattern[str]) -> list[str]:
    return [part.strip() for part in by.split(text) if part.strip()]


def _nth_paragraph(text: str, of: Mapping[str, Any]) -> bool:
    parts = _paragraphs(text, re.compile(r"\n\n"))
    if len(parts) != of["num_paragraphs"] or not 1 <= of["nth_paragraph"] <= len(parts):
        return False
    first = _words(parts[of["nth_paragraph"] - 1])
    return bool(first) and first[0].casefold() == of["first_word"].strip().casefold()


def _json(text: str, of: Mapping[str, Any]) -> bool:
    return bool(json_schema.check({"schema": True}, text).right)


def _two_responses(text: str, of: Mapping[str, Any]) -> bool:
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def _postscript(text: str, of: Mapping[str, Any]) -> bool:
    marker = of["postscript_marker"].strip().casefold()
    return any(line.strip().casefold().startswith(marker) for line in text.split("\n"))


def _sections(text: str, of: Mapping[str, Any]) -> bool:
    splitter = re.escape(of["section_spliter"].strip())
    return len(re.findall(rf"(?<!\w){splitter} ?\d+", text)) >= of["num_sections"]


@dataclass(frozen=True)
class _Kind:
    """arguments: name → what it must be."""

    arguments: Mapping[str, str]
    test: Test


_RELATED = {"relation": "a relation"}
_KINDS: Mapping[str, _Kind] = {
    "length_constraints:number_words": _Kind(
        {**_RELATED, "num_words": "a count"}, lambda text, of: _related(len(_words(text)), of["relation"], of["num_words"])
    ),
    "length_constraints:number_sentences": _Kind(
        {**_RELATED, "num_sentences": "a count"}, lambda text, of: _related(_sentences(text), of["relation"], of["num_sentences"])
    ),
    "length_constraints:number_paragraphs": _Kind(
        {"num_paragraphs": "a count"}, lambda text, of: len(_paragraphs(text, _DIVIDER)) == of["num_paragraphs"]
    ),
    "length_constraints:nth_paragraph_first_word": _Kind(
        {"num_paragraphs": "a count", "nth_paragraph": "a count", "first_word": "a text"}, _nth_paragraph
    ),
    "keywords:existence": _Kind({"keywords": "texts"}, lambda text, of: all(_times(text, word) for word in of["keywords"])),
    "keywords:forbidden_words": _Kind(
        {"forbidden_words": "texts"}, lambda text, of: not any(_as_word(text, word) for word in of["forbidden_words"])
    ),
    "keywords:frequency": _Kind(
        {**_RELATED, "keyword": "a text", "frequency": "a count"},
        lambda text, of: _related(_times(text, of["keyword"]), of["relation"], of["frequency"]),
    ),
    "keywords:letter_frequency": _Kind(
        {"let_relation": "a relation", "letter": "a letter", "let_frequency": "a count"},
        lambda text, of: _related(text.lower().count(of["letter"].lower()), of["let_relation"], of["let_frequency"]),
    ),
    "punctuation:no_comma": _Kind({}, lambda text, of: "," not in text),
    "detectable_format:number_bullet_lists": _Kind(
        {"num_bullets": "a count"}, lambda text, of: len(_BULLET.findall(text)) == of["num_bullets"]
    ),
    "detectable_format:number_highlighted_sections": _Kind(
        {"num_highlights": "a count"}, lambda text, of: len(_HIGHLIGHT.findall(text)) >= of["num_highlights"]
    ),
    "detectable_format:title": _Kind({}, lambda text, of: any(found[2:-2].strip() for found in _TITLE.findall(text))),
    "detectable_format:multiple_sections": _Kind({"section_spliter": "a text", "num_sections": "a count"}, _sections),
    "detectable_format:constrained_response": _Kind({}, lambda text, of: any(f"My answer is {word}." in text for word in _CONSTRAINED)),
    "detectable_format:json_format": _Kind({}, _json),
    "detectable_content:number_placeholders": _Kind(
        {"num_placeholders": "a count"}, lambda text, of: len(_PLACEHOLDER.findall(text)) >= of["num_placeholders"]
    ),
    "detectable_content:postscript": _Kind({"postscript_marker": "a text"}, _postscript),
    "startend:end_checker": _Kind(
        {"end_phrase": "a text"}, lambda text, of: text.strip().strip('"').casefold().endswith(of["end_phrase"].strip().casefold())
    ),
    "startend:quotation": _Kind({}, lambda text, of: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'),
    "change_case:english_lowercase": _Kind({}, lambda text, of: text == text.lower()),
    "change_case:english_capital": _Kind({}, lambda text, of: text == text.upper()),
    "change_case:capital_word_frequency": _Kind(
        {"capital_relation": "a relation", "capital_frequency": "a count"},
        lambda text, of: _related(sum(word.isupper() for word in _words(text)), of["capital_relation"], of["capital_frequency"]),
    ),
    "combination:repeat_prompt": _Kind(
        {"prompt_to_repeat": "a text"}, lambda text, of: text.strip().casefold().startswith(of["prompt_to_repeat"].strip().casefold())
    ),
    "combination:two_responses": _Kind({}, _two_responses),
}
