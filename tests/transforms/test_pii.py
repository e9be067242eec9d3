"""Personal data is found by form and checksum, and masked so that who is who stays readable."""

import pytest

from include.domain.records import Message
from include.transforms.draft import Draft
from include.transforms.pii import Masker, PiiSettings, iban, luhn, mask

SETTINGS = PiiSettings()


def _masked(text: str, settings: PiiSettings = SETTINGS) -> str:
    return Masker(settings).text(text)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to ann.b+c@mail.example.org today", "write to [EMAIL_1] today"),
        ("call +49 30 901820 or (415) 555-2671", "call [PHONE_1] or [PHONE_2]"),
        ("card 4111 1111 1111 1111.", "card [CARD_1]."),
        ("card 5500-0000-0000-0004", "card [CARD_1]"),
        ("to DE89 3704 0044 0532 0130 00 and GB82WEST12345698765432.", "to [IBAN_1] and [IBAN_2]."),
        ("from 192.168.0.12:80, 2001:db8::ff00:42:8329", "from [IP_1]:80, [IP_2]"),
    ],
)
def test_personal_data_is_masked(text: str, masked: str) -> None:
    assert _masked(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "He had 12,345 + 67,890 = 80,235 apples, 1234567 pens and $1,250.50.",
        "card 4111 1111 1111 1112, order 0000 0000 0000 0000",
        "DE89 3704 0044 0532 0130 01 has a wrong check",
        "at 12:30:45, version 1.2.3, std::vector, a::b, 999.1.1.1, 127.0.0.1",
        "x@y and @handle",
        "pi is 3.14159265358979323846",
    ],
)
def test_numbers_that_only_look_like_it_stay(text: str) -> None:
    assert _masked(text) == text


def test_the_same_value_has_the_same_number_in_all_turns_of_a_row() -> None:
    masker = Masker(SETTINGS)
    assert masker.text("a@x.org b@x.org") == "[EMAIL_1] [EMAIL_2]"
    assert masker.text("again B@x.org") == "again [EMAIL_2]"
    assert masker.seen == {"EMAIL": 3}


def test_national_numbers_are_known_in_the_regions_that_are_named() -> None:
    assert _masked("ring 020 7946 0958", PiiSettings(regions=("GB",))) == "ring [PHONE_1]"
    assert _masked("ring 020 7946 0958", PiiSettings(regions=())) == "ring 020 7946 0958"


@pytest.mark.parametrize(("digits", "right"), [("4111111111111111", True), ("4111111111111112", False), ("79927398713", True)])
def test_luhn(digits: str, right: bool) -> None:
    assert luhn(digits) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [("NO9386011117947", True), ("MT84MALT011000012345MTLCAST001S", True), ("NO9386011117948", False), ("DE8937040044053201300", False), ("XX893704004405320130", False)],
)  # fmt: skip
def test_iban(text: str, right: bool) -> None:
    assert iban(text) is right


def _draft(prompt: str, response: str = "Done.") -> Draft:
    return Draft("made", 1, (Message("user", prompt),), "CC0", "licence", response=(Message("assistant", response),))


def test_a_row_without_personal_data_says_so_with_the_detectors_version() -> None:
    draft, found = mask(_draft("2+2?"), SETTINGS)
    assert (draft.pii, found) == ("none", {})
    assert draft.pii_detector.startswith("pii@1 phonenumbers@")
    assert draft.messages == (Message("user", "2+2?"),)


def test_prompt_answer_and_tool_calls_are_masked_alike() -> None:
    call = {"function": {"name": "send", "arguments": {"to": "a@x.org"}}}
    draft = Draft(
        "made",
        1,
        (Message("user", "Mail a@x.org"),),
        "CC0",
        "licence",
        response=(Message("assistant", "", (call,)), Message("assistant", "Sent to a@x.org")),
    )
    masked, found = mask(draft, SETTINGS)
    assert masked.messages[0].content == "Mail [EMAIL_1]"
    assert masked.response[0].tool_calls == ({"function": {"name": "send", "arguments": {"to": "[EMAIL_1]"}}},)
    assert masked.response[1].content == "Sent to [EMAIL_1]"
    assert (masked.pii, found) == ("masked", {"EMAIL": 3})


def test_a_kind_can_be_refused_instead_of_masked() -> None:
    draft, _ = mask(_draft("card 4111 1111 1111 1111"), PiiSettings(refuse=("CARD",)))
    assert draft.pii == "refused"


def test_what_is_too_long_to_scan_is_unknown() -> None:
    draft, _ = mask(_draft("a@x.org"), PiiSettings(max_characters=3))
    assert draft.pii == "unknown"
