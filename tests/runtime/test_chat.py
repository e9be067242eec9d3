"""From messages to ids: one beginning, the answer learned by position, the prompt a prefix of its dialogue."""

from typing import Any

import pytest

from include.domain.records import Message
from include.runtime.chat import Encoded, answer_text, check_beginning, dialogue, eos_ids, one_bos, prompt_ids, special_in_text
from include.runtime.errors import InputError
from include.training.base.chatml import END, START, TEMPLATE
from include.training.base.tiny_model import build_tokenizer

QUESTION = [Message("user", "What is 3 + 4?")]
ANSWER = [Message("assistant", "3 + 4 = 7\nAnswer: 7")]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer([{"prompt": "What is 3 + 4?", "response": "3 + 4 = 7\nAnswer: 7"}] * 4, 300)


def _learned(tokenizer: Any, encoded: Encoded) -> str:
    return str(tokenizer.decode([token for token, learned in zip(encoded.ids, encoded.loss_mask, strict=True) if learned]))


@pytest.mark.parametrize("ids", [[7, 7, 20, 21], [7, 20, 21], [20, 21], [7, 7, 7, 20, 21]])
def test_every_stage_ends_with_exactly_one_beginning(ids: list[int]) -> None:
    assert one_bos(ids, 7, expected=True) == [7, 20, 21]


def test_a_beginning_inside_a_text_is_not_taken_for_a_second_one() -> None:
    assert one_bos([7, 20, 7, 21], 7, expected=True) == [7, 20, 7, 21]


class Beginning:
    """A tokenizer that begins every text with token 7."""

    bos_token_id = 7

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [7, 20] if add_special_tokens else [20]}


def _begun(*ids: int, prompt_length: int = 2) -> Encoded:
    return Encoded(ids, tuple(at >= prompt_length for at in range(len(ids))), prompt_length)


def test_a_dialogue_begins_with_one_beginning_and_its_prompt() -> None:
    check_beginning(Beginning(), _begun(7, 20, 7, 21), [7, 20])


@pytest.mark.parametrize(("ids", "found"), [((7, 7, 20, 21), 2), ((20, 21), 0), ((7, 7), 2)])
def test_a_dialogue_with_two_beginnings_or_none_is_refused(ids: tuple[int, ...], found: int) -> None:
    with pytest.raises(InputError, match=f"begins with {found} beginning-of-sequence tokens, expected is one"):
        check_beginning(Beginning(), _begun(*ids), ids[:2])


def test_a_dialogue_that_begins_otherwise_than_its_prompt_is_refused(tokenizer: Any) -> None:
    with pytest.raises(InputError, match="the prompt's ids are not the beginning"):
        check_beginning(Beginning(), _begun(7, 21, 22), [7, 20])
    encoded = dialogue(tokenizer, QUESTION, ANSWER)
    check_beginning(tokenizer, encoded, prompt_ids(tokenizer, QUESTION))
    with pytest.raises(InputError, match="the prompt's ids are not the beginning"):
        check_beginning(tokenizer, encoded, prompt_ids(tokenizer, [Message("user", "What is 3 + 5?")]))


def test_a_prompt_that_was_cut_with_its_dialogue_is_still_its_beginning() -> None:
    check_beginning(Beginning(), _begun(7, 20, 21, 22, 23, 24, prompt_length=5).truncate(3), [7, 20, 21, 22, 23])


def test_none_is_added_for_a_tokenizer_that_has_none_or_adds_none() -> None:
    assert one_bos([20, 21], None, expected=False) == [20, 21]
    assert one_bos([20, 21], 7, expected=False) == [20, 21]


def test_the_prompt_is_rendered_up_to_where_the_assistant_begins(tokenizer: Any) -> None:
    assert tokenizer.decode(prompt_ids(tokenizer, QUESTION)) == f"{START}user\nWhat is 3 + 4?{END}\n{START}assistant\n"


def test_the_prompt_is_a_prefix_of_its_dialogue(tokenizer: Any) -> None:
    encoded = dialogue(tokenizer, QUESTION, ANSWER)
    assert list(encoded.ids[: encoded.prompt_length]) == prompt_ids(tokenizer, QUESTION)
    assert not any(encoded.loss_mask[: encoded.prompt_length])


def test_the_prompt_stays_a_prefix_of_an_answer_that_begins_with_white_space(tokenizer: Any) -> None:
    encoded = dialogue(tokenizer, QUESTION, [Message("assistant", "\n\n 7")])
    assert list(encoded.ids[: encoded.prompt_length]) == prompt_ids(tokenizer, QUESTION)
    assert _learned(tokenizer, encoded) == f"\n\n 7{END}"


def test_learned_is_the_answer_and_its_end_token_and_nothing_after_it(tokenizer: Any) -> None:
    encoded = dialogue(tokenizer, QUESTION, ANSWER)
    assert _learned(tokenizer, encoded) == f"3 + 4 = 7\nAnswer: 7{END}"
    assert encoded.ends_with(eos_ids(tokenizer))


def test_of_several_turns_each_answer_is_learned_and_nothing_else(tokenizer: Any) -> None:
    response = [Message("assistant", "7"), Message("tool", "look"), Message("user", "and 1 more?"), Message("assistant", "8")]
    encoded = dialogue(tokenizer, [Message("system", "Be short."), *QUESTION], response)
    assert _learned(tokenizer, encoded) == f"7{END}8{END}"
    whole = tokenizer.apply_chat_template([m.to_json() for m in [Message("system", "Be short."), *QUESTION, *response]], tokenize=False)
    assert tokenizer.decode(encoded.ids) + "\n" == whole


def test_an_end_token_is_added_where_the_template_writes_none(tokenizer: Any) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    try:
        encoded = dialogue(tokenizer, QUESTION, ANSWER)
    finally:
        tokenizer.chat_template = TEMPLATE
    assert encoded.ids[-1] == tokenizer.eos_token_id
    assert encoded.loss_mask[-1]


def test_a_template_that_renders_a_dialogue_otherwise_than_its_prompt_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    try:
        with pytest.raises(InputError, match="does not begin with"):
            dialogue(tokenizer, QUESTION, ANSWER)
    finally:
        tokenizer.chat_template = TEMPLATE


def test_what_is_cut_off_no_longer_ends_with_a_learned_end_token(tokenizer: Any) -> None:
    encoded = dialogue(tokenizer, QUESTION, ANSWER)
    assert not encoded.truncate(len(encoded) - 1).ends_with(eos_ids(tokenizer))
    assert encoded.truncate(3).trained_tokens == 0


def test_a_special_token_in_a_users_text_is_seen(tokenizer: Any) -> None:
    assert special_in_text(tokenizer, [Message("user", f"ignore this{END}")])
    assert not special_in_text(tokenizer, QUESTION)


def test_tools_and_tool_calls_are_rendered(tokenizer: Any) -> None:
    tools = [{"name": "add"}]
    call = Message("assistant", "", ({"name": "add", "arguments": {"a": 3}},))
    text = tokenizer.decode(dialogue(tokenizer, QUESTION, [call], tools).ids)
    assert '{"name": "add"}' in text
    assert '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>' in text


def test_an_answers_text_is_what_was_written_without_its_end_token(tokenizer: Any) -> None:
    encoded = dialogue(tokenizer, QUESTION, ANSWER)
    assert answer_text(tokenizer, encoded.ids[encoded.prompt_length :]) == ANSWER[0].content


def test_any_text_goes_through_the_tiny_tokenizer_unchanged(tokenizer: Any) -> None:
    text = "Zürich \u2028 \U0001f600\ttab  two spaces\r\n"
    assert answer_text(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"]) == text
