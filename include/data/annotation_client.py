"""The way to the annotation service: its HTTP API as typed calls.

What the service must not know (reference, policy, seed, sampling, source) is never sent. Every call is safe to repeat (batches by
their key, labels and withdrawals because the same again writes nothing), so that a broken connection is tried again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from include.data.annotation_batches import BatchRequest
from include.domain.canonical import digest_rows
from include.domain.errors import AlignmentError, IntegrityError
from include.domain.records import Label, Message, Rubric, prompt_id_of, record_digest

_BUSY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_FIRST_WAIT_S = 0.2
_ERASED_AT_ONCE = 1_000
_LONGEST_WAIT_S = 5.0


class AnnotationError(AlignmentError):
    """The annotation service did not do what was asked; `code` is its own word for why."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class AnnotationUnreachable(AnnotationError):
    """Nobody answered, or not sensibly. Nothing is known about whether the request arrived."""


class AnnotationDenied(AnnotationError):
    """The token is not known, or its role may not do this."""


class AnnotationNotFound(AnnotationError):
    """No such batch, task or label (or none that this token may see)."""


class AnnotationConflict(AnnotationError):
    """It contradicts what is there: idempotency_conflict, already_labelled, superseded, withdrawn, lease_lost, rubric_changed."""


class AnnotationRefused(AnnotationError):
    """The service does not take this body; the message names the field."""


_ERRORS: Mapping[int, type[AnnotationError]] = {
    401: AnnotationDenied,
    403: AnnotationDenied,
    404: AnnotationNotFound,
    409: AnnotationConflict,
    413: AnnotationRefused,
    422: AnnotationRefused,
}


@dataclass(frozen=True)
class BatchReceipt:
    batch_id: str
    purpose: str
    gold_batch_id: str | None
    tasks: int
    human: int
    verifier: int
    labels_wanted: int
    created_at: str


@dataclass(frozen=True)
class Answer:
    text: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class BlindTask:
    """A comparison as an annotator sees it: which candidate is on which side is not known here."""

    task_id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None
    left: Answer
    right: Answer
    rubric: Rubric

    @property
    def prompt_id(self) -> str:
        """Computed from what is seen, so that a verifier finds the reference in its own data."""
        return prompt_id_of(self.messages, self.tools)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "BlindTask":
        left, right = (Answer(side["text"], tuple(side["tool_calls"] or ())) for side in (value["left"], value["right"]))
        prompt = value["prompt"]
        messages = tuple(Message.from_json(message) for message in prompt["messages"])
        tools = None if prompt["tools"] is None else tuple(prompt["tools"])
        return cls(value["task_id"], messages, tools, left, right, Rubric.from_json(value["rubric"]))


@dataclass(frozen=True)
class Snapshot:
    """The labels that stood at `mark`; asked for again with this mark, `digest` is the same."""

    batch_id: str
    purpose: str
    rubric_version: str
    mark: int
    digest: str
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class CollectedLabel:
    """A label with what an audit needs beside it. gold: the verdict that is right, None of ordinary work. characters: of answer A and B."""

    label: Label
    purpose: str
    gold: str | None
    characters: tuple[int, int]
    shown_at: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CollectedLabel":
        a, b = value["characters"]
        return cls(Label.from_json(value["label"]), value["purpose"], value["gold"], (a, b), value["shown_at"])


@dataclass(frozen=True)
class Judgement:
    """What an annotator says about a task: left, right, tie, both_bad or cannot_judge."""

    verdict: str
    reason_codes: tuple[str, ...] = ()
    dimension_scores: Mapping[str, int] | None = None
    supersedes: str | None = None

    def to_request(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "reason_codes": list(self.reason_codes),
            "dimension_scores": dict(self.dimension_scores or {}),
            "supersedes": self.supersedes,
        }


class AnnotationClient:
    """A connection to the service with one account's token. Use it as a context manager."""

    def __init__(
        self, url: str, token: str, timeout_s: float = 30.0, attempts: int = 5, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)
        self._attempts = attempts
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._http.close()

    def create_batch(self, key: str, batch: BatchRequest) -> BatchReceipt:
        """Makes the batch, or finds it: one key is one batch. Raises AnnotationConflict when the key meant another one."""
        body = batch.to_request()
        return BatchReceipt(**self._ask("POST", "/v1/annotation-batches", json=body, headers={"Idempotency-Key": key}))

    def next_task(self, batch_id: str | None = None) -> BlindTask | None:
        """The account's open task, or a new one; None when there is none for it."""
        answer = self._ask("GET", "/v1/annotation-tasks/next", params={"batch_id": batch_id} if batch_id else None)
        return BlindTask.from_json({k: v for k, v in answer["task"].items() if k != "label"}) if answer["task"] else None

    def submit(self, task_id: str, judgement: Judgement) -> dict[str, Any]:
        """Labels a task; returns {label_id, task_id, verdict, …} in terms of left and right."""
        return self._ask("POST", f"/v1/annotation-tasks/{task_id}/labels", json=judgement.to_request())

    def progress(self, batch_id: str) -> dict[str, Any]:
        """Counts, shares, agreement, what is missing, the freshest label's time."""
        return self._ask("GET", f"/v1/annotation-batches/{batch_id}")

    def batches(self) -> list[dict[str, Any]]:
        """The progress of every batch, newest first."""
        found: list[dict[str, Any]] = self._ask("GET", "/v1/annotation-batches")["batches"]
        return found

    def close_batch(self, batch_id: str) -> str:
        """Hands out no further task of it; returns since when."""
        return str(self._ask("POST", f"/v1/annotation-batches/{batch_id}/close")["closed_at"])

    def snapshot(self, batch_id: str, up_to: int | None = None) -> Snapshot:
        """The labels that stood at mark `up_to` (now, if None). Raises IntegrityError when they are not what the digest says."""
        answer = self._ask("GET", f"/v1/annotation-batches/{batch_id}/labels", params=None if up_to is None else {"up_to": up_to})
        labels = tuple(Label.from_json(label) for label in answer["labels"])
        found = digest_rows("label-snapshot", [_row(label) for label in sorted(labels, key=lambda label: label.label_id)])
        if found != answer["digest"]:
            raise IntegrityError(f"snapshot of {batch_id} at mark {answer['mark']}: its labels give {found}, it says {answer['digest']}")
        return Snapshot(batch_id, answer["purpose"], answer["rubric_version"], answer["mark"], found, labels)

    def labels_between(self, since: datetime, until: datetime) -> list[CollectedLabel]:
        """Of all batches the labels given from `since` until before `until`, as they stood then, oldest first.

        Raises AnnotationRefused: the interval is not over yet.
        """
        asked = {"since": since.astimezone(UTC).isoformat(), "until": until.astimezone(UTC).isoformat()}
        found: list[CollectedLabel] = []
        after: str | None = None
        while True:
            page = self._ask("GET", "/v1/labels", params=asked if after is None else {**asked, "after": after})
            found += [CollectedLabel.from_json(item) for item in page["labels"]]
            after = page["next"]
            if after is None:
                return found

    def withdraw(self, label_id: str, reason: str) -> dict[str, Any]:
        """Takes a label out of all later snapshots; returns the event {label_id, batch_id, mark, reason, withdrawn_at}."""
        return self._ask("POST", f"/v1/labels/{quote(label_id, safe='')}/withdraw", json={"reason": reason})

    def withdraw_all_of(self, annotator_id: str, reason: str) -> list[dict[str, Any]]:
        """Withdraws all that an annotator (a pseudonym) said; returns the events. Raises NotFound: they have no label."""
        found: list[dict[str, Any]] = self._ask("POST", f"/v1/annotators/{quote(annotator_id, safe='')}/withdraw", json={"reason": reason})[
            "withdrawals"
        ]
        return found

    def withdrawals(self, batch_id: str | None = None) -> list[dict[str, Any]]:
        """Every withdrawal there is (of a batch), as `withdraw` returns it."""
        asked = None if batch_id is None else {"batch_id": batch_id}
        found: list[dict[str, Any]] = self._ask("GET", "/v1/withdrawals", params=asked)["withdrawals"]
        return found

    def erase_prompts(self, prompt_ids: Sequence[str]) -> int:
        """Takes the texts of these prompts, and of the answers to them, out of the service; in how many tasks they are."""
        pieces = [list(prompt_ids[start : start + _ERASED_AT_ONCE]) for start in range(0, len(prompt_ids), _ERASED_AT_ONCE)]
        return sum(int(self._ask("POST", "/v1/erasures", json={"prompt_ids": piece})["tasks"]) for piece in pieces)

    def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        for attempt in range(1, self._attempts + 1):
            last = attempt == self._attempts
            try:
                response = self._http.request(method, path, **request)
            except httpx.TransportError as error:
                if last:
                    message = f"the annotation service at {self._http.base_url} does not answer ({attempt} attempts): {error}"
                    raise AnnotationUnreachable(message) from error
            else:
                if last or response.status_code not in _BUSY:
                    return _read(response)
            self._sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1)))
        raise AssertionError("unreachable: the last attempt returns or raises")


def _row(label: Label) -> dict[str, str]:
    return {"label_id": label.label_id, "label_digest": record_digest("label", label)}


def _read(response: httpx.Response) -> dict[str, Any]:
    try:
        body: dict[str, Any] = response.json()
    except ValueError as error:
        raise AnnotationUnreachable(
            f"{response.request.url} answered {response.status_code} without JSON: {response.text[:200]!r}"
        ) from error
    if response.is_success:
        return body
    said = body.get("error") or {}
    kind = _ERRORS.get(response.status_code, AnnotationUnreachable)
    raise kind(f"{response.request.method} {response.request.url.path}: {said.get('message', response.status_code)}", said.get("code", ""))
