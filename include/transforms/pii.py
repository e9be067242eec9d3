"""Personal data in texts: a detector with a version, and masks that keep who-is-who within a row.

Found are mail addresses, telephone numbers (patterns and validity of the `phonenumbers` library), payment cards (Luhn), IBANs
(country's length and mod 97) and IP addresses. Masks are ``[EMAIL_1]``, ``[PHONE_1]`` …: the same value has the same number
throughout a row, numbered by first appearance; nothing of the value is in the mask. Names are not looked for.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from include.domain.records import Message
from include.transforms.draft import Draft

DETECTOR = "pii@1"
KINDS = ("EMAIL", "IBAN", "CARD", "IP", "PHONE")
"""In the order in which they claim a stretch of text."""

_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.)+[^\W\d_]{2,24}(?![\w-])")
_CARD = re.compile(r"(?<![\d.,-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IBAN_START = re.compile(r"(?<![0-9A-Za-z])[A-Za-z]{2}\d{2}(?= ?[0-9A-Za-z])")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f:.]*\d)[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:\.\d{1,3}){0,3}(?![\w:])")
_MASK = re.compile(rf"\[({'|'.join(KINDS)})_(\d{{1,6}})\]")
_DIGITS_OF_A_PHONE = 7
# Length by country (ISO 13616, the IBAN registry).
_IBAN_LENGTHS = {
    length: codes.split()
    for length, codes in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
}
_LENGTH_OF = {code: length for length, codes in _IBAN_LENGTHS.items() for code in codes}


@dataclass(frozen=True, order=True)
class Finding:
    """A stretch of text, in characters, and what it is."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class PiiSettings:
    """How personal data is treated.

    regions: countries whose national telephone forms are known; numbers that begin with + are found everywhere.
    refuse: kinds whose rows are left out instead of masked.
    max_characters: a longer text is not scanned, its row stays *unknown* and never trains.
    """

    regions: tuple[str, ...] = ("US",)
    refuse: tuple[str, ...] = ()
    max_characters: int = 1_000_000

    @property
    def version(self) -> str:
        """Names detector, library and regions: what stands in each prompt."""
        import phonenumbers

        regions = "+".join(self.regions) or "international"
        return f"{DETECTOR} phonenumbers@{phonenumbers.__version__} {regions}"


def find(text: str, settings: PiiSettings) -> list[Finding]:
    """What is personal in `text`, in order, without overlaps."""
    taken: list[Finding] = []
    for kind, finder in _FINDERS.items():
        for start, end in finder(text, settings):
            if all(end <= other.start or start >= other.end for other in taken):
                taken.append(Finding(start, end, kind))
    return sorted(taken)


def _emails(text: str, settings: PiiSettings) -> Iterator[tuple[int, int]]:
    if "@" in text:
        yield from (match.span() for match in _EMAIL.finditer(text))


def _cards(text: str, settings: PiiSettings) -> Iterator[tuple[int, int]]:
    for match in _CARD.finditer(text):
        digits = re.sub(r"\D", "", match.group())
        if digits[0] in "23456" and len(set(digits)) > 1 and luhn(digits):
            yield match.span()


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1 check digit."""
    doubled = [int(d) * (2 if i % 2 else 1) for i, d in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


def _ibans(text: str, settings: PiiSettings) -> Iterator[tuple[int, int]]:
    for match in _IBAN_START.finditer(text):
        length = _LENGTH_OF.get(match.group()[:2].upper())
        end = _end_of(text, match.start(), length) if length else None
        if end is not None and iban(text[match.start() : end]):
            yield match.start(), end


def _end_of(text: str, start: int, length: int) -> int | None:
    """Where `length` letters and digits from `start` end; None where they do not end a word there."""
    counted = 0
    for at in range(start, len(text)):
        counted += text[at] != " "
        if counted == length:
            return None if text[at + 1 : at + 2].isalnum() else at + 1
    return None


def iban(text: str) -> bool:
    """ISO 13616: the country's length, and ISO 7064 mod 97-10."""
    plain = text.replace(" ", "").upper()
    if len(plain) != _LENGTH_OF.get(plain[:2]) or not plain.isascii() or not plain.isalnum():
        return False
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def _addresses(text: str, settings: PiiSettings) -> Iterator[tuple[int, int]]:
    for match in (*_IPV4.finditer(text), *(_IPV6.finditer(text) if ":" in text else ())):
        try:
            address = ipaddress.ip_address(match.group())
        except ValueError:
            continue
        if not (address.is_loopback or address.is_unspecified) and _long_enough(match.group()):
            yield match.span()


def _long_enough(text: str) -> bool:
    """Not ``1::2`` or the like, which code and times hold more often than addresses do."""
    return ":" not in text or any(len(group) >= 3 for group in text.split(":"))


def _phones(text: str, settings: PiiSettings) -> Iterator[tuple[int, int]]:
    if sum(c.isdigit() for c in text) < _DIGITS_OF_A_PHONE:
        return
    import phonenumbers

    for region in (None, *settings.regions):
        for match in phonenumbers.PhoneNumberMatcher(text, region, leniency=phonenumbers.Leniency.VALID):
            yield match.start, match.end


_FINDERS: Mapping[str, Callable[[str, PiiSettings], Iterator[tuple[int, int]]]] = {
    "EMAIL": _emails,
    "IBAN": _ibans,
    "CARD": _cards,
    "IP": _addresses,
    "PHONE": _phones,
}


class Masker:
    """Masks the texts of one row; `seen` counts what it found by kind.

    beside: texts whose own masks stay what they are: none of their numbers is given to another value.
    """

    def __init__(self, settings: PiiSettings, beside: Iterable[str] = ()) -> None:
        self._settings = settings
        self._names: dict[tuple[str, str], str] = {}
        self._given: dict[str, int] = {}
        for kind, number in (match.groups() for text in beside for match in _MASK.finditer(text)):
            self._given[kind] = max(int(number), self._given.get(kind, 0))
        self.seen: dict[str, int] = {}

    def text(self, text: str) -> str:
        out, at = [], 0
        for found in find(text, self._settings):
            out += [text[at : found.start], self._name(found.kind, text[found.start : found.end])]
            at = found.end
        return "".join([*out, text[at:]])

    def _name(self, kind: str, value: str) -> str:
        self.seen[kind] = self.seen.get(kind, 0) + 1
        key = (kind, re.sub(r"[\s()-]", "", value).casefold())
        number = sum(k == kind for k, _ in self._names) + 1 + self._given.get(kind, 0)
        return self._names.setdefault(key, f"[{kind}_{number}]")

    def value(self, value: Any) -> Any:
        """Texts inside a JSON value (arguments of tool calls), keys left alone."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def message(self, message: Message) -> Message:
        calls = message.tool_calls and tuple(self.value(call) for call in message.tool_calls)
        return replace(message, content=self.text(message.content), tool_calls=calls)


def mask(draft: Draft, settings: PiiSettings) -> tuple[Draft, dict[str, int]]:
    """The draft with personal data masked, its state set, and what was found by kind.

    State: none, masked, refused (a kind in `settings.refuse`: the texts are left as they were, the row must not be used), or
    unknown (a text too long to scan).
    """
    if any(len(text) > settings.max_characters for text in _texts(draft)):
        return draft.with_pii("unknown", settings.version), {}
    masker = Masker(settings)
    masked = replace(
        draft,
        messages=tuple(masker.message(message) for message in draft.messages),
        response=tuple(masker.message(message) for message in draft.response),
        chosen=draft.chosen and masker.message(draft.chosen),
        rejected=draft.rejected and masker.message(draft.rejected),
        options=draft.options and tuple(masker.text(option) for option in draft.options),
    )
    if set(settings.refuse) & set(masker.seen):
        return draft.with_pii("refused", settings.version), masker.seen
    return masked.with_pii("masked" if masker.seen else "none", settings.version), masker.seen


def _texts(draft: Draft) -> Iterable[str]:
    yield from (message.content for message in draft.messages)
    yield from draft.answers
    yield from draft.options or ()
