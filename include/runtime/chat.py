"""From messages to token ids: one rendering for training, generation and evaluation alike.

A tokenizer is handed in (any object with Hugging Face's interface). Texts are rendered by its chat template and encoded
without further special tokens. An answer is encoded apart from its prompt, so the prompt's ids are a prefix of the
dialogue's by construction, exactly as at generation time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.records import Message
from include.runtime.errors import InputError

Messages = Sequence[Mapping[str, Any] | Message]
LEARNED_TURNS = ("response", "last", "all")
"""response: every assistant turn of the response. last: its last one alone. all: those among the prompt's messages too."""


@dataclass(frozen=True)
class Encoded:
    """A dialogue as ids, with the positions that are learned. `ids[:prompt_length]` is the first prompt."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    prompt_length: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)

    def truncate(self, max_length: int) -> "Encoded":
        """The first `max_length` ids: the tail is dropped, never the prompt's beginning."""
        return Encoded(self.ids[:max_length], self.loss_mask[:max_length], min(self.prompt_length, max_length))

    def ends_with(self, stop_ids: set[int]) -> bool:
        """Whether the last token is an end token and is learned."""
        return bool(self.ids) and self.loss_mask[-1] and self.ids[-1] in stop_ids


def prompt_ids(tokenizer: Any, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
    """The ids of a prompt up to where the assistant begins to answer."""
    return one_bos(_encode(tokenizer, _render(tokenizer, messages, tools, generation=True)), *_bos(tokenizer))


def dialogue(
    tokenizer: Any,
    messages: Messages,
    response: Messages,
    tools: Sequence[Mapping[str, Any]] | None = None,
    learned: str = "response",
) -> Encoded:
    """Prompt and response as ids; what is learned is told by position, each assistant turn with its end token.

    Args:
        learned: which assistant turns are learned, see `LEARNED_TURNS`.

    Raises:
        InputError: the template does not render a prompt as the beginning of its dialogue, or nothing would be learned.
    """
    turns = [*messages, *response]
    if learned == "all":
        first = next((at for at, turn in enumerate(messages) if at and _role(turn) == "assistant"), len(messages))
        messages = messages[:first]
    last = max((at for at, turn in enumerate(turns) if _role(turn) == "assistant"), default=-1)
    ids = prompt_ids(tokenizer, messages, tools)
    mask = [False] * len(ids)
    start, cursor = len(ids), _render(tokenizer, messages, tools, generation=True)
    for at in range(len(messages), len(turns)):
        if _role(turns[at]) != "assistant":
            continue
        before = _render(tokenizer, turns[:at], tools, generation=True)
        whole = _render(tokenizer, turns[: at + 1], tools, generation=False)
        between = _encode(tokenizer, _tail(before, cursor))
        answer = _end_once(_encode(tokenizer, _tail(whole, before)), tokenizer.eos_token_id)
        ids += between + answer
        mask += [False] * len(between) + [learned != "last" or at == last] * len(answer)
        cursor = _rest_after(whole, before, tokenizer)
    if not any(mask):
        raise InputError("nothing would be learned: the response has no assistant turn")
    return Encoded(tuple(ids), tuple(mask), start)


def _end_once(ids: list[int], eos: int) -> list[int]:
    """An answer up to its first end token; one is added where the template writes none."""
    return ids[: ids.index(eos) + 1] if eos in ids else [*ids, eos]


def _rest_after(whole: str, before: str, tokenizer: Any) -> str:
    """The text that has been encoded when an answer's end token is the last one."""
    end = whole.find(tokenizer.eos_token, len(before))
    return whole if end < 0 else whole[: end + len(tokenizer.eos_token)]


def _tail(whole: str, start: str) -> str:
    if not whole.startswith(start):
        raise InputError(f"the chat template does not render a dialogue as its beginning and more: {whole!r} does not begin with {start!r}")
    return whole[len(start) :]


def one_bos(ids: Sequence[int], bos: int | None, expected: bool) -> list[int]:
    """Exactly one beginning-of-sequence id at the front where the tokenizer adds one; never two.

    Only the front counts: one further on comes from the template's turns or from a user's text (see `special_in_text`).
    """
    if bos is None:
        return list(ids)
    found = 0
    while found < len(ids) and ids[found] == bos:
        found += 1
    return [bos] * (1 if expected or found else 0) + list(ids[found:])


def check_beginning(tokenizer: Any, encoded: Encoded, prompt: Sequence[int]) -> None:
    """Refuses a dialogue that does not begin with exactly its prompt's ids, or with none or two beginning-of-sequence ids.

    Raises:
        InputError: generation would see another beginning than training did.
    """
    bos, expected = _bos(tokenizer)
    found = next((at for at, token in enumerate(encoded.ids) if token != bos), len(encoded)) if bos is not None else 0
    if found > 1 or (expected and found != 1):
        raise InputError(f"the dialogue begins with {found} beginning-of-sequence tokens, expected is one")
    if list(encoded.ids[: encoded.prompt_length]) != list(prompt)[: encoded.prompt_length]:
        raise InputError("the prompt's ids are not the beginning of the dialogue's")


def merges_at_answer(tokenizer: Any, messages: Messages, response: Messages, tools: Sequence[Mapping[str, Any]] | None = None) -> bool:
    """Whether the whole text, encoded at once, would not begin with the prompt's ids: its tokenizer joins prompt and answer.

    Training goes on as generation does, with the answer encoded apart; a trainer that encodes whole texts would differ.
    """
    prompt = prompt_ids(tokenizer, messages, tools)
    whole = one_bos(_encode(tokenizer, _render(tokenizer, [*messages, *response], tools, generation=False)), *_bos(tokenizer))
    return whole[: len(prompt)] != prompt


def _bos(tokenizer: Any) -> tuple[int | None, bool]:
    bos = tokenizer.bos_token_id
    return bos, bos is not None and _encode(tokenizer, "a", special=True)[:1] == [bos]


def special_in_text(tokenizer: Any, messages: Messages) -> bool:
    """Whether somebody's text spells out a special token, which the tokenizer would take for a real one."""
    specials = [token for token in tokenizer.all_special_tokens if token]
    return any(token in _text(message) for message in messages for token in specials)


def eos_ids(tokenizer: Any) -> set[int]:
    """The ids that end an answer."""
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no end token: answers would never end")
    return {int(tokenizer.eos_token_id)}


def answer_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of an answer without its end token and other special ones."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _encode(tokenizer: Any, text: str, special: bool = False) -> list[int]:
    return [int(item) for item in tokenizer(text, add_special_tokens=special)["input_ids"]]


def _render(tokenizer: Any, messages: Messages, tools: Sequence[Mapping[str, Any]] | None, *, generation: bool) -> str:
    plain = [_plain(message) for message in messages]
    kwargs: dict[str, Any] = {"tools": list(tools)} if tools else {}
    return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=generation, **kwargs))


def _plain(message: Mapping[str, Any] | Message) -> dict[str, Any]:
    data = message.to_json() if isinstance(message, Message) else dict(message)
    return {key: value for key, value in data.items() if value is not None}


def _role(message: Mapping[str, Any] | Message) -> str:
    return message.role if isinstance(message, Message) else str(message["role"])


def _text(message: Mapping[str, Any] | Message) -> str:
    return message.content if isinstance(message, Message) else str(message.get("content", ""))
