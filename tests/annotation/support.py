"""Making prompts, batches and accounts for the annotation tests, and a service in this process to ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from include.annotation.accounts import NewAccount, add_account
from include.annotation.app import create_app
from include.annotation.config import Config, database_url
from include.annotation.service import Service, open_service
from include.domain.records import Message, prompt_id_of

RUBRIC: dict[str, Any] = {
    "rubric_id": "worked-answers",
    "version": "worked-answers@1",
    "text": "Right first, then the asked form. Length is no reason.",
    "dimensions": ["factuality", "clarity"],
    "reason_codes": ["wrong_result", "not_the_asked_form"],
}
ROLES = {"pipeline": None, "annotator": "human", "verifier": "verifier", "admin": None}


@dataclass
class Clock:
    """A clock that stands still until it is told to move."""

    moment: datetime = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment

    def forward(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


def prompt(text: str | list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}] if isinstance(text, str) else text
    messages = [Message.from_json(turn) for turn in turns]
    return {
        "prompt_id": prompt_id_of(messages, tools),
        "messages": [message.to_json() for message in messages],
        "tools": tools,
        "pii": "none",
        "pii_detector": "patterns@1",
    }


def task(number: int, **changes: Any) -> dict[str, Any]:
    """Comparison `number`; its first answer is the good one, as its text says ("good answer 3")."""
    return {
        "prompt": prompt(f"What is {number} + {number}?"),
        "candidate_a": {"candidate_id": f"candidate-{number}-a", "response_text": f"good answer {number}"},
        "candidate_b": {"candidate_id": f"candidate-{number}-b", "response_text": f"bad answer {number}"},
        **changes,
    }


def gold(number: int, verdict: str = "A") -> dict[str, Any]:
    return task(number, gold={"verdict": verdict, "confirmed_by": ["somebody", "somebody-else"]})


def batch(count: int = 4, human: int | str = "rest", verifier: int | str = 0, **changes: Any) -> dict[str, Any]:
    return {
        "purpose": "train",
        "rubric": RUBRIC,
        "tasks": [task(number) for number in range(count)],
        "assignment": {"human": human, "verifier": verifier},
        **changes,
    }


@dataclass
class World:
    """A service in this process, its clock, and accounts by name."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, kind in ROLES.items():
            self.add(role, role, kind)
        self.service = self.open()
        self.http = TestClient(create_app(self.service), base_url="http://testserver", follow_redirects=False)

    @property
    def config(self) -> Config:
        url = database_url(str(self.folder / "annotation.sqlite"))
        return Config(url, database_url(str(self.folder / "identities.sqlite")), self.folder / "tokens.json", self.folder / "key")

    def open(self) -> Service:
        return open_service(self.config, self.clock)

    def add(self, name: str, role: str, kind: str | None = None) -> str:
        self.tokens[name] = add_account(self.folder / "tokens.json", NewAccount(name, role, kind, f"The {name}"))
        return name

    def ask(self, name: str, method: str, path: str, **request: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[name]}", **request.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **request)

    def create(self, body: dict[str, Any], key: str = "key-1") -> Any:
        return self.ask("pipeline", "POST", "/v1/annotation-batches", json=body, headers={"Idempotency-Key": key})

    def made(self, body: dict[str, Any], key: str = "key-1") -> str:
        response = self.create(body, key)
        assert response.status_code == 201, response.text
        return str(response.json()["batch_id"])

    def next(self, name: str = "annotator", batch_id: str | None = None) -> dict[str, Any]:
        response = self.ask(name, "GET", "/v1/annotation-tasks/next", params={"batch_id": batch_id} if batch_id else None)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def label(self, name: str, task_id: str, verdict: str = "left", **more: Any) -> Any:
        return self.ask(name, "POST", f"/v1/annotation-tasks/{task_id}/labels", json={"verdict": verdict, **more})

    def work(self, name: str = "annotator", verdict: str = "left", batch_id: str | None = None) -> list[dict[str, Any]]:
        """Labels whatever is there, always with the same verdict; the labels as the annotator is told them."""
        told = []
        while shown := self.next(name, batch_id)["task"]:
            response = self.label(name, shown["task_id"], verdict)
            assert response.status_code == 201, response.text
            told.append(response.json())
        return told

    def progress(self, batch_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask("pipeline", "GET", f"/v1/annotation-batches/{batch_id}").json()
        return answer

    def snapshot(self, batch_id: str, up_to: int | None = None) -> dict[str, Any]:
        path = f"/v1/annotation-batches/{batch_id}/labels"
        response = self.ask("pipeline", "GET", path, params={} if up_to is None else {"up_to": up_to})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


def good_side(shown: dict[str, Any]) -> str:
    """On which side the answer lies that is candidate A of `task`."""
    return "left" if shown["left"]["text"].startswith("good") else "right"
