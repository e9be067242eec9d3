"""Answers that repeat personal data are masked before anybody is shown them, and what is learnt from is what was shown."""

import json
from dataclasses import replace
from typing import Any

import pytest

from include.data.errors import DataError
from include.data.shown_answers import as_shown, shown_as_written
from include.domain.errors import RecordError
from include.domain.records import Candidate, Message, Prompt, candidate_id_of, prompt_id_of
from include.transforms.pii import PiiSettings
from tests.data.labels import candidate, label, prompt

PII = PiiSettings()
ADA = "ada.lovelace@analytical.example.org"
CARD, IBAN, PHONE = "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "+49 30 901820"
SECRETS = (ADA, CARD, IBAN, PHONE, ADA.upper(), CARD.replace(" ", ""), "192.168.0.12")


def asked(text: str) -> Prompt:
    messages = (Message("user", text),)
    return replace(prompt(1), prompt_id=prompt_id_of(messages), messages=messages, pii="masked")


def shown(texts: list[str], question: str = "Whom do I write to?", settings: PiiSettings = PII, **fields: Any) -> Any:
    of = asked(question)
    answers = [candidate(of, text, token_ids=(1, 2, n), **fields) for n, text in enumerate(texts)]
    answers = [replace(one, candidate_id=candidate_id_of(one.to_json())) for one in answers]
    return answers, as_shown(answers, {of.prompt_id: of}, settings)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"Write to {ADA}, or ring {PHONE}.", "Write to [EMAIL_1], or ring [PHONE_1]."),
        (f"<b>{CARD}</b>\n```\nIBAN={IBAN};ip=192.168.0.12\n```", "<b>[CARD_1]</b>\n```\nIBAN=[IBAN_1];ip=[IP_1]\n```"),
        (f'{{"to": "{ADA}", "cc": ["{ADA.upper()}"]}}', '{"to": "[EMAIL_1]", "cc": ["[EMAIL_1]"]}'),
        (f"{ADA}' OR 1=1; -- {CARD.replace(' ', '')}", "[EMAIL_1]' OR 1=1; -- [CARD_1]"),
        (f"mailto:{ADA}?subject=hi", "mailto:[EMAIL_1]?subject=hi"),
        (f"地址是 {ADA}。电话 {PHONE}", "地址是 [EMAIL_1]。电话 [PHONE_1]"),
    ],
)
def test_what_a_policy_repeats_is_masked_and_bound_to_what_it_wrote(text: str, seen: str) -> None:
    [written], found = shown([text])
    [one] = found.answers
    assert one.response_text == seen
    assert not any(secret in json.dumps(one.to_json(), ensure_ascii=False) for secret in SECRETS)
    assert one.masked_from == written.candidate_id == candidate_id_of(written.to_json())
    assert one.candidate_id == candidate_id_of(one.to_json()) != written.candidate_id
    assert one.token_ids is None, "they would spell the text as it was written"
    assert (one.policy_checkpoint, one.prompt_id, one.random_seed) == (written.policy_checkpoint, written.prompt_id, written.random_seed)
    assert found.masked == (one,)
    assert Candidate.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_an_answer_without_personal_data_is_the_record_it_was_and_the_batch_too() -> None:
    written, found = shown(["He had 12,345 + 67,890 = 80,235 apples.", "Nobody."])
    assert found.answers == tuple(written)
    assert found.answers[0] is written[0]
    assert (found.masked, found.left_out, found.marks) == ((), {}, {})
    assert "masked_from" not in written[0].to_json(), "or every candidate's digest would move"


def test_one_value_has_one_number_in_all_answers_and_none_that_the_prompt_gave_to_another() -> None:
    _, found = shown([f"To {ADA}", "To bob@mail.example.org", f"To {ADA} and [EMAIL_3]"], "Should I write to [EMAIL_2]?")
    texts = [one.response_text for one in found.answers]
    assert texts[0] != texts[1]
    assert texts[2] == f"{texts[0]} and [EMAIL_3]"
    assert set(texts[:2]) == {"To [EMAIL_4]", "To [EMAIL_5]"}
    assert found.found == {"EMAIL": 3}


def test_arguments_of_tool_calls_are_masked_and_unchanged_calls_are_no_change() -> None:
    calls = ({"function": {"name": "send", "arguments": {"to": [ADA], "n": 3}}},)
    _, found = shown(["ok"], tool_calls=calls, finish_reason="tool_calls")
    assert found.answers[0].tool_calls == ({"function": {"name": "send", "arguments": {"to": ["[EMAIL_1]"], "n": 3}}},)
    read = [Candidate.from_json(json.loads(json.dumps(one.to_json()))) for one in shown(["ok"], tool_calls=({"to": ["Ada"]},))[0]]
    of = asked("Whom do I write to?")
    assert as_shown(read, {of.prompt_id: of}, PII).answers == tuple(read)


def test_kinds_that_the_policy_refuses_and_texts_too_long_to_scan_are_not_shown() -> None:
    strict = PiiSettings(refuse=("CARD",), max_characters=60)
    written, found = shown([f"pay {CARD}", f"to {ADA}", "x" * 61, "fine"], settings=strict)
    assert found.left_out == {written[0].candidate_id: "CARD", written[2].candidate_id: "not scanned"}
    assert [one.response_text for one in found.answers] == ["to [EMAIL_1]", "fine"]
    assert found.text == "Personal data in answers: CARD 1, EMAIL 1; 1 are shown masked, 2 are not shown (CARD 1, not scanned 1)"
    found.check(0.5)
    with pytest.raises(DataError, match=r"share of 0.500 of 4 answers, data.max_quarantine_share allows 0.02"):
        found.check(0.02)


def test_another_masking_makes_another_batch_and_the_same_one_the_same() -> None:
    texts = [f"to {ADA}", "to nobody"]
    marks = [shown(texts)[1].marks, shown(texts)[1].marks, shown(texts, settings=PiiSettings(refuse=("EMAIL",)))[1].marks]
    assert marks[0] == marks[1] != marks[2]


def test_labels_on_answers_that_were_shown_with_personal_data_are_found() -> None:
    written, found = shown([f"to {ADA}", "to nobody", "to somebody"])
    assert shown_as_written([label(written[0], written[1], "A")], written, PII) == {written[0].candidate_id}
    assert not shown_as_written([label(found.masked[0], written[1], "A")], [*written, *found.masked], PII)


def test_a_masked_answer_cannot_keep_the_tokens_of_the_other_text() -> None:
    [written], found = shown([f"to {ADA}"])
    with pytest.raises(RecordError, match="those of the text as it was written"):
        replace(found.masked[0], token_ids=written.token_ids)
