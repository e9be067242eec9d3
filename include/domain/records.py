"""The records that travel through the chain. Frozen; every one has `to_json` and `from_json`, digests are over `to_json`.

Texts are kept byte for byte. A field that is None is written as null: null and absent differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from include.domain.canonical import check_digest, digest
from include.domain.errors import RecordError

ROLES = ("system", "user", "assistant", "tool")
VERDICTS = ("A", "B", "tie", "both_bad", "cannot_judge")
ANNOTATOR_KINDS = ("human", "verifier", "judge", "imported", "demo")
BATCH_PURPOSES = ("train", "gold", "calibration", "evaluation")
PII_STATES = ("none", "masked", "refused", "unknown")
FINISH_REASONS = ("eos", "length", "tool_calls")
TEXT_DIMENSIONS = ("factuality", "instruction_following", "clarity")


class Record:
    """Shared by all records: a flat, strict JSON form."""

    NESTED: ClassVar[Mapping[str, Any]] = {}
    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that a release added: left out while they are None, so that no digest of an earlier record moves."""

    def to_json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: _plain(value) for name, value in values.items() if value is not None or name not in self.LATER}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads one; an unknown key, or a missing one without a default, is a RecordError that names it."""
        names = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        if unknown := set(value) - names:
            raise RecordError(f"{cls.__name__}: unknown field {sorted(unknown)[0]!r}; it has {', '.join(sorted(names))}")
        data = {key: _read(cls.NESTED.get(key), item) for key, item in value.items()}
        try:
            return cls(**data)
        except TypeError as error:
            raise RecordError(f"{cls.__name__}: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _read(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_read(kind, item) for item in value)
    if kind is not None and isinstance(value, Mapping):
        return kind.from_json(value)
    return value


def _one_of(value: object, allowed: Sequence[str], where: str) -> None:
    if value not in allowed:
        raise RecordError(f"{where}: {value!r} is none of {', '.join(allowed)}")


@dataclass(frozen=True)
class Message(Record):
    """One turn of a conversation. `tool_calls` are kept as they came (a list of JSON objects)."""

    role: str
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _one_of(self.role, ROLES, "message.role")
        if not isinstance(self.content, str):
            raise RecordError(f"message.content: expected text, got {type(self.content).__name__}")


@dataclass(frozen=True)
class Reference(Record):
    """What a verifier compares an answer with. Outside prompt_id, inside content_hash, never sent to annotators."""

    verifier: str
    verifier_version: str
    expected: Any


@dataclass(frozen=True)
class Prompt(Record):
    """A conversation to be answered. `messages` are the exact ones, as masked; the last is the user's (or a tool's)."""

    NESTED: ClassVar[Mapping[str, Any]] = {"messages": Message, "reference": Reference}

    prompt_id: str
    messages: tuple[Message, ...]
    source: str
    licence: str
    usage_basis: str
    split_group: str
    language: str = "en"
    topic: str = "other"
    safety_class: str = "none"
    pii: str = "unknown"
    pii_detector: str = ""
    tools: tuple[Mapping[str, Any], ...] | None = None
    reference: Reference | None = None
    subject_ref: str | None = None

    def __post_init__(self) -> None:
        if not self.messages:
            raise RecordError("prompt.messages is empty")
        if self.messages[-1].role not in ("user", "tool"):
            raise RecordError(f"prompt.messages ends with {self.messages[-1].role}, not with the user or a tool")
        _one_of(self.pii, PII_STATES, "prompt.pii")
        if self.prompt_id != prompt_id_of(self.messages, self.tools):
            raise RecordError("prompt.prompt_id is not the digest of its messages and tools")


def prompt_id_of(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The digest of exact messages (as masked) and tools."""
    body: dict[str, Any] = {"messages": [m.to_json() for m in messages]}
    if tools:
        body["tools"] = list(tools)
    return digest("prompt", body)


@dataclass(frozen=True)
class Demonstration(Record):
    """A checked answer to learn from: loss on the assistant turns of `response`."""

    NESTED: ClassVar[Mapping[str, Any]] = {"prompt": Prompt, "response": Message}

    example_id: str
    prompt: Prompt
    response: tuple[Message, ...]
    source: str
    licence: str

    def __post_init__(self) -> None:
        if not self.response or self.response[-1].role != "assistant":
            raise RecordError("demonstration.response must end with an assistant turn: there is nothing to learn from")


@dataclass(frozen=True)
class SamplingConfig(Record):
    """How an answer was drawn. temperature 0 is greedy."""

    temperature: float
    top_p: float
    max_new_tokens: int
    top_k: int | None = None


@dataclass(frozen=True)
class Candidate(Record):
    """One answer of a policy to one prompt, with all that is needed to say where it came from.

    masked_from: of an answer whose personal data is masked, the candidate_id of the answer as it was written, whose digest holds its text.
    Its `token_ids` are None: they would be those of the other text.
    """

    NESTED: ClassVar[Mapping[str, Any]] = {"sampling_config": SamplingConfig}
    LATER: ClassVar[frozenset[str]] = frozenset({"masked_from"})

    candidate_id: str
    prompt_id: str
    policy_checkpoint: str | None
    tokenizer_version: str
    chat_template: str
    sampling_config: SamplingConfig | None
    random_seed: int | None
    response_text: str
    finish_reason: str
    safety_filter_version: str
    origin: str = "policy"
    token_ids: tuple[int, ...] | None = None
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    masked_from: str | None = None

    def __post_init__(self) -> None:
        traced = self.origin == "policy"
        if not (traced or self.origin.startswith(("external:", "synthetic:"))):
            raise RecordError(f"candidate.origin {self.origin!r} is not policy, external:… or synthetic:…")
        if traced:
            check_digest(self.policy_checkpoint, "candidate.policy_checkpoint")
        elif self.policy_checkpoint is not None:
            raise RecordError("candidate.policy_checkpoint must be null when its origin is not the policy")
        _one_of(self.finish_reason, FINISH_REASONS, "candidate.finish_reason")
        if self.masked_from is not None and self.token_ids is not None:
            raise RecordError("candidate.token_ids are those of the text as it was written: a masked answer has none")

    @property
    def traced(self) -> bool:
        return self.origin == "policy"


def candidate_id_of(body: Mapping[str, Any]) -> str:
    """The digest of a candidate's other fields (`to_json` without candidate_id)."""
    return digest("candidate", {k: v for k, v in body.items() if k != "candidate_id"})


@dataclass(frozen=True)
class Rubric(Record):
    """What annotators are told. `version` is the digest-bound name@number."""

    rubric_id: str
    version: str
    text: str
    dimensions: tuple[str, ...] = TEXT_DIMENSIONS
    reason_codes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Label(Record):
    """One judgement of one comparison. Append-only: a correction supersedes, a withdrawal is an event."""

    label_id: str
    task_id: str
    batch_id: str
    prompt_id: str
    candidate_a_id: str
    candidate_b_id: str
    verdict: str
    chosen_candidate_id: str | None
    rejected_candidate_id: str | None
    rubric_version: str
    annotator_id: str
    annotator_kind: str
    display_order: tuple[str, str]
    swap_flag: bool
    dimension_scores: Mapping[str, int]
    reason_codes: tuple[str, ...]
    created_at: str
    supersedes: str | None = None

    def __post_init__(self) -> None:
        _one_of(self.verdict, VERDICTS, "label.verdict")
        _one_of(self.annotator_kind, ANNOTATOR_KINDS, "label.annotator_kind")
        both = {self.candidate_a_id, self.candidate_b_id}
        if len(both) != 2:
            raise RecordError("label compares a candidate with itself")
        if set(self.display_order) != both:
            raise RecordError("label.display_order must hold both candidates, left first: a label of unknown sides is refused")
        if self.swap_flag != (self.display_order[0] == self.candidate_b_id):
            raise RecordError("label.swap_flag and label.display_order contradict each other")
        expected = {"A": self.candidate_a_id, "B": self.candidate_b_id}.get(self.verdict)
        rejected = {"A": self.candidate_b_id, "B": self.candidate_a_id}.get(self.verdict)
        if (self.chosen_candidate_id, self.rejected_candidate_id) != (expected, rejected):
            raise RecordError(f"label: verdict {self.verdict} and the chosen or rejected candidate contradict each other")
        for name, score in self.dimension_scores.items():
            if not isinstance(score, int) or isinstance(score, bool) or not 1 <= score <= 5:
                raise RecordError(f"label.dimension_scores.{name}: {score!r} is not 1 to 5")


@dataclass(frozen=True)
class PreferencePair(Record):
    """A comparison ready to learn from, with the way back to its label (None for imported and synthetic pairs)."""

    NESTED: ClassVar[Mapping[str, Any]] = {"prompt": Prompt, "chosen": Candidate, "rejected": Candidate}

    pair_id: str
    prompt: Prompt
    chosen: Candidate
    rejected: Candidate
    label_id: str | None
    label_digest: str | None
    rubric_version: str | None
    annotator_kind: str
    swap_flag: bool
    weight: float = 1.0

    @property
    def origin(self) -> str:
        return self.chosen.origin if not self.chosen.traced else self.rejected.origin


@dataclass(frozen=True)
class Rollout(Record):
    """One sampled answer in online optimisation, bound to the actor version that wrote it.

    `tokens` and `token_log_probs` are of the response alone, same length, natural logarithm.
    `actor_checkpoint` is {run_key, attempt, published_version, step, digest?}: iterations and optimiser steps behind the actor, and the
    digest of its weights (older records may lack it).
    """

    rollout_id: str
    prompt_id: str
    actor_checkpoint: Mapping[str, Any]
    reference_checkpoint: str
    reward_model_checkpoint: tuple[str, ...]
    tokens: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    reward_components: Mapping[str, float]
    created_at: str

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.token_log_probs):
            raise RecordError("rollout: tokens and token_log_probs differ in length")


@dataclass(frozen=True)
class SuiteItem(Record):
    """One thing to measure: a prompt with a reference, or options of which one is right (`answer` is its index)."""

    NESTED: ClassVar[Mapping[str, Any]] = {"prompt": Prompt}

    item_id: str
    prompt: Prompt
    options: tuple[str, ...] | None = None
    answer: int | None = None
    slices: Mapping[str, str] | None = None


def record_digest(kind: str, record: Record) -> str:
    """The digest of a record's whole JSON form."""
    return digest(kind, record.to_json())
