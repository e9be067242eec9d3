"""A row on its way to a record: normalised, but not yet masked, grouped or split."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from include.domain.canonical import digest
from include.domain.records import (
    Candidate,
    Demonstration,
    Message,
    PreferencePair,
    Prompt,
    Reference,
    SuiteItem,
    candidate_id_of,
    prompt_id_of,
)


@dataclass(frozen=True)
class Draft:
    """One normalised row.

    row_id: the id the row came with; `id_given` tells "none was given" from "given as null".
    group: an explicit conversation root or source document, where the row names one.
    origin: of a pair's candidates, ``external:…`` or ``synthetic:…``.
    unused: columns of the row that nothing read.
    """

    source: str
    line: int
    messages: tuple[Message, ...]
    licence: str
    usage_basis: str
    row_id: str | None = None
    id_given: bool = False
    response: tuple[Message, ...] = ()
    chosen: Message | None = None
    rejected: Message | None = None
    origin: str = ""
    options: tuple[str, ...] | None = None
    answer: int | None = None
    slices: Mapping[str, str] | None = None
    language: str = "en"
    topic: str = "other"
    safety_class: str = "none"
    tools: tuple[Mapping[str, Any], ...] | None = None
    reference: Reference | None = None
    subject_ref: str | None = None
    group: str | None = None
    unused: tuple[str, ...] = ()
    pii: str = "unknown"
    pii_detector: str = ""

    @property
    def prompt_text(self) -> str:
        """What the user says, turn by turn: the text that near-duplicates are looked for in."""
        return "\n".join(message.content for message in self.messages if message.role == "user")

    @property
    def answers(self) -> tuple[str, ...]:
        """Every text that answers the prompt."""
        sides = [side.content for side in (self.chosen, self.rejected) if side is not None]
        return (*(message.content for message in self.response), *sides)

    def with_pii(self, state: str, detector: str) -> "Draft":
        return replace(self, pii=state, pii_detector=detector)

    def prompt(self, split_group: str) -> Prompt:
        return Prompt(
            prompt_id=prompt_id_of(self.messages, self.tools),
            messages=self.messages,
            source=self.source,
            licence=self.licence,
            usage_basis=self.usage_basis,
            split_group=split_group,
            language=self.language,
            topic=self.topic,
            safety_class=self.safety_class,
            pii=self.pii,
            pii_detector=self.pii_detector,
            tools=self.tools,
            reference=self.reference,
            subject_ref=self.subject_ref,
        )

    def demonstration(self, split_group: str) -> Demonstration:
        """The id is the row's own, else the digest of prompt and response."""
        prompt = self.prompt(split_group)
        body = {"prompt_id": prompt.prompt_id, "response": [message.to_json() for message in self.response]}
        example_id = self.row_id or digest("example", body)
        return Demonstration(example_id, prompt, self.response, self.source, self.licence)

    def suite_item(self, split_group: str) -> SuiteItem:
        prompt = self.prompt(split_group)
        options = list(self.options) if self.options else None
        item_id = self.row_id or digest("suite-item", {"prompt_id": prompt.prompt_id, "options": options})
        return SuiteItem(item_id, prompt, self.options, self.answer, self.slices)

    def pair(self, split_group: str, annotator_kind: str = "imported") -> PreferencePair:
        """A comparison whose candidates' policy is unknown. The id is the digest of prompt, both texts and origin."""
        if self.chosen is None or self.rejected is None:
            raise ValueError("a pair needs both sides")
        prompt = self.prompt(split_group)
        chosen, rejected = (self._candidate(side, prompt.prompt_id) for side in (self.chosen, self.rejected))
        body = {"prompt_id": prompt.prompt_id, "chosen": chosen.candidate_id, "rejected": rejected.candidate_id, "labels": []}
        return PreferencePair(digest("pair", body), prompt, chosen, rejected, None, None, None, annotator_kind, False)

    def _candidate(self, message: Message, prompt_id: str) -> Candidate:
        body: dict[str, Any] = {
            "prompt_id": prompt_id,
            "policy_checkpoint": None,
            "tokenizer_version": "unknown",
            "chat_template": "unknown",
            "sampling_config": None,
            "random_seed": None,
            "response_text": message.content,
            "finish_reason": "tool_calls" if message.tool_calls else "eos",
            "safety_filter_version": "none",
            "origin": self.origin,
            "token_ids": None,
            "tool_calls": message.tool_calls,
        }
        return Candidate(candidate_id=candidate_id_of(body), **body)
