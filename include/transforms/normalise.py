"""Rows of the formats in use, into one form. What does not fit is set aside with its line and a reason; a file is never aborted.

Read are: messages | conversations; prompt + response; instruction (+ input, history) + output; prompt + chosen + rejected, or
chosen and rejected as whole conversations; prompt + a + b + choice (+ swapped), a vote; suites: a prompt with options and answer,
or with a reference.
"""

from collections.abc import Mapping
from typing import Any

from include.domain.errors import RecordError
from include.domain.records import Message, Reference
from include.transforms.draft import Draft
from include.transforms.errors import TransformError
from include.transforms.messages import RowError, messages_of, objects_of, one_answer, shared_prefix, split_at_last_user, text_of
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source
from include.transforms.votes import Refused, Undecided, resolve_vote

ROW_KINDS = ("demonstration", "prompt", "pair", "suite")
_IDS = ("id", "exampleId", "example_id", "prompt_id", "pair_id", "item_id")
_CONVERSATION = ("messages", "conversations", "conversation")
_ANSWER = ("response", "output", "completion", "answer")
_GROUPS = ("group", "conversation_id", "document_id")
_TEXT_FIELDS = {"language": ("language", "lang"), "topic": ("topic", "category"), "safety_class": ("safety_class",)}


class _LeftOut(ValueError):
    """No defect, but nothing to learn from: a tie, for example."""


class _Fields:
    """A row's columns, and which of them were read."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = value
        self._used: set[str] = set()

    def has(self, *names: str) -> bool:
        return any(name in self._value for name in names)

    def take(self, *names: str) -> Any:
        """The first of `names` that the row has; None where it has none."""
        for name in names:
            if name in self._value:
                self._used.add(name)
                return self._value[name]
        return None

    def text(self, *names: str) -> str | None:
        value = self.take(*names)
        if value is not None and not isinstance(value, str):
            raise RowError(f"{names[0]}: expected text, got {type(value).__name__}")
        return value

    @property
    def unused(self) -> tuple[str, ...]:
        return tuple(sorted(set(self._value) - self._used))


def normalise_row(row: RawRow, kind: str, source: Source) -> Draft | Quarantined:
    """The row as a draft of a `kind` (demonstration, prompt, pair, suite), or set aside."""
    if kind not in ROW_KINDS:
        raise TransformError(f"row kind {kind!r} is none of {', '.join(ROW_KINDS)}")
    fields = _Fields(row.value)
    try:
        body = _READERS[kind](fields)
        body |= _described(fields, source)
        return Draft(line=row.line, **body, unused=fields.unused)
    except (RowError, RecordError) as error:
        return Quarantined(source.name, row.line, str(error), row.raw)
    except _LeftOut as left:
        return Quarantined(source.name, row.line, str(left), row.raw, deliberate=True)


def _described(fields: _Fields, source: Source) -> dict[str, Any]:
    given = fields.has(*_IDS)
    row_id = fields.take(*_IDS)
    if row_id is not None and (isinstance(row_id, bool) or not isinstance(row_id, (str, int))):
        raise RowError(f"id: expected text or an integer, got {type(row_id).__name__}")
    body: dict[str, Any] = {
        "source": fields.text("source") or source.name,
        "licence": fields.text("licence", "license") or source.licence,
        "usage_basis": fields.text("usage_basis") or source.usage_basis,
        "row_id": None if row_id is None else str(row_id),
        "id_given": given,
        "group": fields.text(*_GROUPS),
        "subject_ref": fields.text("subject_ref"),
        "reference": _reference(fields.take("reference")),
    }
    if fields.has("tools") and (tools := fields.take("tools")) not in (None, []):
        body["tools"] = objects_of(tools, "tools")
    for name, columns in _TEXT_FIELDS.items():
        if value := fields.text(*columns):
            body[name] = value
    return body


def _reference(value: Any) -> Reference | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RowError(f"reference: expected an object with verifier, verifier_version, expected; got {type(value).__name__}")
    return Reference.from_json(value)


def _system(fields: _Fields, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The conversation with the row's own system column in front."""
    value = fields.take("system", "system_prompt")
    if value is None or value == "" or value == []:
        return messages
    turns = (Message("system", value),) if isinstance(value, str) else messages_of(value, "system")
    if wrong := [turn.role for turn in turns if turn.role != "system"]:
        raise RowError(f"system: a turn of role {wrong[0]} in the system column")
    if messages and messages[0].role == "system":
        raise RowError("system: the row has a system column and a system turn")
    return (*turns, *messages)


def _asked(fields: _Fields) -> tuple[Message, ...]:
    """The prompt of a row that keeps it apart from its answers."""
    if fields.has("prompt"):
        return messages_of(fields.take("prompt"), "prompt")
    if fields.has("instruction", "question"):
        question = text_of(fields.take("instruction", "question"), "instruction")
        more = fields.take("input") if fields.has("input") else ""
        extra = text_of(more, "input") if more not in ("", None) else ""
        return (*_history(fields), Message("user", f"{question}\n{extra}" if extra else question))
    raise RowError("no prompt: the row has none of prompt, instruction, question, messages, conversations")


def _history(fields: _Fields) -> tuple[Message, ...]:
    turns: list[Message] = []
    value = fields.take("history")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise RowError("history: expected a list of [question, answer]")
    for i, (asked, answered) in enumerate(value):
        turns += [Message("user", text_of(asked, f"history[{i}]")), Message("assistant", text_of(answered, f"history[{i}]"))]
    return tuple(turns)


def _not_empty(messages: tuple[Message, ...], where: str) -> tuple[Message, ...]:
    for i, message in enumerate(messages):
        if not message.content.strip() and not message.tool_calls and message.role != "system":
            raise RowError(f"{where}[{i}]: the {message.role}'s turn is empty")
    return messages


def _demonstration(fields: _Fields) -> dict[str, Any]:
    if fields.has(*_CONVERSATION):
        whole = _system(fields, messages_of(fields.take(*_CONVERSATION), "messages"))
        messages, response = split_at_last_user(whole, "messages")
    else:
        messages = _system(fields, _asked(fields))
        if not fields.has(*_ANSWER):
            raise RowError(f"no response: the row has none of {', '.join(_ANSWER)}")
        value = fields.take(*_ANSWER)
        response = (Message("assistant", value),) if isinstance(value, str) else messages_of(value, "response")
    if not response or response[-1].role != "assistant":
        raise RowError("no assistant target at the end: the conversation ends with the user or a tool")
    return {"messages": _to_be_answered(messages), "response": _not_empty(response, "response")}


def _to_be_answered(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if messages[-1].role not in ("user", "tool"):
        raise RowError(f"the prompt ends with a turn of the {messages[-1].role}, not of the user or a tool")
    return _not_empty(messages, "prompt")


def _prompt(fields: _Fields) -> dict[str, Any]:
    if fields.has(*_CONVERSATION):
        messages, _ = split_at_last_user(messages_of(fields.take(*_CONVERSATION), "messages"), "messages")
    else:
        messages = _asked(fields)
    return {"messages": _to_be_answered(_system(fields, messages))}


def _pair(fields: _Fields) -> dict[str, Any]:
    chosen, rejected = _voted(fields) if fields.has("choice") else (fields.take("chosen"), fields.take("rejected"))
    if chosen is None or rejected is None:
        raise RowError(f"no {'chosen' if chosen is None else 'rejected'} answer")
    if fields.has("prompt", "instruction", "question"):
        bare = _asked(fields)
    elif isinstance(chosen, list) and isinstance(rejected, list):
        bare = shared_prefix(messages_of(chosen, "chosen"), messages_of(rejected, "rejected"))
    else:
        bare = _asked(fields)
    if not bare:
        raise RowError("chosen and rejected do not begin with the same conversation, and there is no prompt")
    sides = {"chosen": one_answer(chosen, bare, "chosen"), "rejected": one_answer(rejected, bare, "rejected")}
    for name, side in sides.items():
        _not_empty((side,), name)
    return {"messages": _to_be_answered(_system(fields, bare)), **sides}


def _voted(fields: _Fields) -> tuple[str, str]:
    vote = {name: fields.take(name) for name in ("a", "b", "swapped", "choice")}
    found = resolve_vote(vote)
    if isinstance(found, Refused):
        raise RowError(found.reason)
    if isinstance(found, Undecided):
        raise _LeftOut(f"the vote is {found.reason}: it never becomes a pair")
    return found.chosen, found.rejected


def _suite(fields: _Fields) -> dict[str, Any]:
    body: dict[str, Any] = {}
    options = fields.take("options")
    if options is not None:
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(item, str) and item.strip() for item in options):
            raise RowError("options: expected a list of two texts or more")
        body |= {"options": tuple(options), "answer": _index(fields.take("answer"), options)}
    slices = fields.take("slices")
    if slices is not None:
        if not isinstance(slices, Mapping) or not all(isinstance(item, str) for item in slices.values()):
            raise RowError("slices: expected an object of texts")
        body["slices"] = dict(slices)
    return {**_prompt(fields), **body}


def _index(value: Any, options: list[str]) -> int:
    if isinstance(value, str) and options.count(value) == 1:
        return options.index(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(options):
        return value
    raise RowError(f"answer: {value!r} is neither one of the options nor the index of one")


_READERS = {"demonstration": _demonstration, "prompt": _prompt, "pair": _pair, "suite": _suite}
