"""Turns of a conversation, as the many formats write them, into `Message`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from include.domain.errors import RecordError
from include.domain.records import Message

ROLE_ALIASES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""What other tools call the four roles, in lower case."""


class RowError(ValueError):
    """A row cannot be used; the text is the reason in the quarantine file."""


def text_of(value: Any, where: str) -> str:
    """A text, or a list of text parts joined as they are."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(value))
    raise RowError(f"{where}: expected text, got {_kind(value)}")


def _part(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and value.get("type") == "text" and isinstance(value.get("text"), str):
        return str(value["text"])
    shown = value.get("type") if isinstance(value, Mapping) else _kind(value)
    raise RowError(f"{where}: a part of type {shown!r}; only text is learned from")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return "an empty list" if value == [] else type(value).__name__


def message_of(value: Any, where: str) -> Message:
    """One turn: {role, content} or {from, value}, with tool_calls and name where there are some."""
    if not isinstance(value, Mapping):
        raise RowError(f"{where}: expected an object with role and content, got {_kind(value)}")
    said = value.get("role", value.get("from"))
    role = ROLE_ALIASES.get(said.strip().lower()) if isinstance(said, str) else None
    if role is None:
        raise RowError(f"{where}: role {said!r} is none of {', '.join(ROLE_ALIASES)}")
    calls = _tool_calls(value.get("tool_calls"), where)
    content = value.get("content", value.get("value"))
    if content is None and calls:
        content = ""
    name = value.get("name")
    if name is not None and not isinstance(name, str):
        raise RowError(f"{where}.name: expected text, got {_kind(name)}")
    return Message(role, text_of(content, f"{where}.content"), calls, name)


def _tool_calls(value: Any, where: str) -> tuple[Mapping[str, Any], ...] | None:
    if value is None or value == []:
        return None
    return objects_of(value, f"{where}.tool_calls")


def objects_of(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    """A list of JSON objects, which some formats keep as one JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise RowError(f"{where}: expected a list of objects, got {_kind(value)}")
    return tuple(value)


def messages_of(value: Any, where: str) -> tuple[Message, ...]:
    """A whole conversation; a text is one turn of the user's."""
    if isinstance(value, str):
        return (Message("user", value),)
    if not isinstance(value, list) or not value:
        raise RowError(f"{where}: expected a text or a list of turns, got {_kind(value)}")
    try:
        return tuple(message_of(item, f"{where}[{i}]") for i, item in enumerate(value))
    except RecordError as error:
        raise RowError(f"{where}: {error}") from error


def split_at_last_user(messages: Sequence[Message], where: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """(what is answered, the answer): everything after the user's last turn is the answer, tool turns included."""
    at = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if at is None:
        raise RowError(f"{where}: no turn of the user's")
    return tuple(messages[: at + 1]), tuple(messages[at + 1 :])


def one_answer(value: Any, prompt: Sequence[Message], where: str) -> Message:
    """The one assistant turn that a side of a comparison is: a text, a turn, or a conversation that begins with the prompt."""
    if isinstance(value, str):
        turns: tuple[Message, ...] = (Message("assistant", value),)
    else:
        turns = messages_of([value] if isinstance(value, Mapping) else value, where)
        if len(turns) > len(prompt) and tuple(turns[: len(prompt)]) == tuple(prompt):
            turns = turns[len(prompt) :]
    if len(turns) != 1 or turns[0].role != "assistant":
        raise RowError(f"{where}: expected one assistant turn, got {', '.join(turn.role for turn in turns)}")
    return turns[0]


def shared_prefix(first: Sequence[Message], second: Sequence[Message]) -> tuple[Message, ...]:
    """The turns that two conversations begin with alike."""
    n = 0
    while n < min(len(first), len(second)) and first[n] == second[n]:
        n += 1
    return tuple(first[:n])
