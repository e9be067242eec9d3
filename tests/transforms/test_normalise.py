"""Rows of many formats into one form; what does not fit is set aside with a reason."""

import json
from typing import Any

import pytest

from include.domain.records import Message, PreferencePair, prompt_id_of
from include.transforms.draft import Draft
from include.transforms.normalise import normalise_row
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source

SOURCE = Source("made", "rows.jsonl", "jsonl", "CC0-1.0")
USER, ASSISTANT = Message("user", "2+2?"), Message("assistant", "4")


def _draft(value: dict[str, Any], kind: str = "demonstration") -> Draft:
    out = normalise_row(RawRow(7, json.dumps(value), value), kind, SOURCE)
    assert isinstance(out, Draft), out
    return out


def _reason(value: dict[str, Any], kind: str = "demonstration") -> str:
    out = normalise_row(RawRow(7, json.dumps(value), value), kind, SOURCE)
    assert isinstance(out, Quarantined), out
    assert (out.source, out.line, out.raw, out.deliberate) == ("made", 7, json.dumps(value), False)
    return out.reason


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "2+2?", "response": "4"},
        {"instruction": "2+2?", "input": "", "output": "4"},
        {"question": "2+2?", "answer": "4"},
        {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"conversations": [{"from": "Prompter", "value": "2+2?"}, {"from": "bing", "value": "4"}]},
        {"prompt": [{"role": "user", "content": "2+2?"}], "completion": [{"role": "assistant", "content": "4"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "2+"}, "2?"]}, {"role": "assistant", "content": "4"}]},
    ],
)
def test_every_format_becomes_the_same_demonstration(value: dict[str, Any]) -> None:
    draft = _draft(value)
    assert (draft.messages, draft.response) == ((USER,), (ASSISTANT,))


def test_the_input_of_an_instruction_follows_on_a_line_of_its_own() -> None:
    assert _draft({"instruction": "Add.", "input": "2 2", "output": "4"}).messages[0].content == "Add.\n2 2"


def test_earlier_turns_and_the_system_prompt_stay_in_the_prompt() -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "2+2?"}]
    draft = _draft({"system": "Be brief.", "messages": [*turns, {"role": "assistant", "content": "4"}]})
    assert [message.role for message in draft.messages] == ["system", "user", "assistant", "user"]
    assert draft.response == (ASSISTANT,)


def test_an_instruction_with_history_is_a_conversation() -> None:
    draft = _draft({"instruction": "2+2?", "output": "4", "history": [["Hi", "Hello"]]})
    assert [message.content for message in draft.messages] == ["Hi", "Hello", "2+2?"]


def test_tool_calls_and_tool_results_are_part_of_the_answer() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    turns = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    draft = _draft({"messages": turns, "tools": json.dumps(tools)})
    assert [message.role for message in draft.response] == ["assistant", "tool", "assistant"]
    assert draft.response[0].tool_calls == (call,)
    assert draft.demonstration("g").prompt.prompt_id == prompt_id_of((USER,), tools)


def test_an_id_that_is_a_number_is_kept_as_text_and_one_that_is_null_is_known_to_be_null() -> None:
    assert _draft({"exampleId": 5, "prompt": "2+2?", "response": "4"}).row_id == "5"
    draft = _draft({"id": None, "prompt": "2+2?", "response": "4"})
    assert (draft.row_id, draft.id_given) == (None, True)


def test_licence_and_source_of_the_row_come_before_those_of_the_file() -> None:
    draft = _draft({"prompt": "2+2?", "response": "4", "license": "MIT", "source": "a colleague"})
    assert (draft.licence, draft.source) == ("MIT", "a colleague")
    assert _draft({"prompt": "2+2?", "response": "4"}).licence == "CC0-1.0"


def test_columns_that_nothing_reads_are_named() -> None:
    assert _draft({"prompt": "2+2?", "response": "4", "score": 3, "meta": {}}).unused == ("meta", "score")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]}, "no assistant target at the end"),
        ({"instruction": "2+2?", "input": [], "output": "4"}, "input: expected text, got an empty list"),
        ({"response": "4"}, "no prompt"),
        ({"prompt": "2+2?"}, "no response"),
        ({"prompt": None, "response": "4"}, "prompt: expected a text or a list of turns, got null"),
        ({"prompt": "2+2?", "response": None}, "response: expected a text or a list of turns, got null"),
        ({"prompt": "2+2?", "response": "  \n"}, "the assistant's turn is empty"),
        ({"prompt": "", "response": "4"}, "the user's turn is empty"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "role 'narrator' is none of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "x"}]}, "a part of type 'image_url'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "no turn of the user's"),
        ({"prompt": "2+2?", "response": "4", "licence": 3}, "licence: expected text, got int"),
        ({"id": [1], "prompt": "2+2?", "response": "4"}, "id: expected text or an integer, got list"),
        ({"system": [{"role": "user", "content": "x"}], "prompt": "2+2?", "response": "4"}, "a turn of role user in the system column"),
        ({"prompt": "2+2?", "response": "4", "reference": {"verifier": "arithmetic", "wanted": 4}}, "unknown field 'wanted'"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_says_why(value: dict[str, Any], reason: str) -> None:
    assert reason in _reason(value)


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
        {"prompt": [{"role": "user", "content": "2+2?"}], "chosen": [{"role": "assistant", "content": "4"}], "rejected": {"role": "assistant", "content": "5"}},
        {"chosen": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}], "rejected": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "5"}]},
        {"prompt": "2+2?", "a": "4", "b": "5", "swapped": False, "choice": "left"},
        {"prompt": "2+2?", "a": "5", "b": "4", "swapped": True, "choice": "left"},
        {"prompt": "2+2?", "a": "4", "b": "5", "swapped": True, "choice": "right"},
    ],
)  # fmt: skip
def test_every_format_becomes_the_same_pair(value: dict[str, Any]) -> None:
    draft = _draft(value, "pair")
    assert (draft.messages, draft.chosen, draft.rejected) == ((USER,), ASSISTANT, Message("assistant", "5"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"chosen": "a", "rejected": "b"}, "no prompt"),
        ({"prompt": "x", "chosen": "a"}, "no rejected answer"),
        ({"prompt": "x", "chosen": "a", "rejected": ""}, "the assistant's turn is empty"),
        (
            {"prompt": "x", "chosen": "a", "rejected": [{"role": "user", "content": "Go away"}]},
            "rejected: expected one assistant turn, got user",
        ),
        ({"prompt": "x", "a": "1", "b": "2", "choice": "right"}, "not known which answer was on the left"),
        ({"prompt": "x", "a": "1", "b": "1", "swapped": False, "choice": "left"}, "compared with itself"),
        ({"prompt": "x", "a": "1", "b": "2", "swapped": False, "choice": "first"}, "choice 'first' is none of"),
    ],
)
def test_a_pair_that_cannot_be_used_says_why(value: dict[str, Any], reason: str) -> None:
    assert reason in _reason(value, "pair")


@pytest.mark.parametrize("choice", ["tie", "both_bad", "cannot_judge"])
def test_a_vote_that_did_not_decide_is_left_out_and_is_no_defect(choice: str) -> None:
    value = {"prompt": "x", "a": "1", "b": "2", "choice": choice}
    out = normalise_row(RawRow(1, "", value), "pair", SOURCE)
    assert isinstance(out, Quarantined)
    assert out.deliberate
    assert choice in out.reason


def test_an_imported_pair_has_candidates_without_a_policy() -> None:
    from dataclasses import replace

    draft = replace(_draft({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, "pair"), origin="external:made@sha256:00")
    pair = draft.pair("g")
    assert pair.chosen.policy_checkpoint is None
    assert (pair.chosen.response_text, pair.rejected.response_text) == ("4", "5")
    assert (pair.origin, pair.annotator_kind, pair.label_id) == ("external:made@sha256:00", "imported", None)
    assert PreferencePair.from_json(pair.to_json()) == pair


@pytest.mark.parametrize("answer", [1, "blue"])
def test_a_suite_item_has_options_and_the_index_of_the_right_one(answer: object) -> None:
    draft = _draft({"prompt": "Colour?", "options": ["red", "blue"], "answer": answer, "slices": {"kind": "colour"}}, "suite")
    item = draft.suite_item("g")
    assert (item.options, item.answer, item.slices) == (("red", "blue"), 1, {"kind": "colour"})


@pytest.mark.parametrize("answer", [2, -1, True, "green", None])
def test_an_answer_that_is_no_option_is_refused(answer: object) -> None:
    assert "is neither one of the options" in _reason({"prompt": "x", "options": ["red", "blue"], "answer": answer}, "suite")


def test_a_prompt_of_a_whole_conversation_ends_with_the_user() -> None:
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    assert _draft({"messages": turns}, "prompt").messages == (USER,)


def test_text_is_kept_byte_for_byte() -> None:
    text = "  é é\u2028\r\n\ttail "
    draft = _draft({"prompt": text, "response": text})
    assert (draft.messages[0].content, draft.response[0].content) == (text, text)
