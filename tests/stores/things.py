"""Small, complete things to put into stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from include.domain.canonical import digest, sha256_bytes
from include.domain.manifest import FileEntry, Manifest
from include.domain.spec import Report, RunSpec
from include.stores.catalog import Catalog
from include.stores.catalog.releases import Dossier
from include.stores.catalog.runs import Committed

STORE = "sftp://cluster-a/store"


class Clock:
    """A clock that moves when told, and a little at every look."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.moment += timedelta(milliseconds=1)
        return self.moment

    def forward(self, **delta: float) -> None:
        self.moment += timedelta(**delta)


def some_digest(name: object) -> str:
    return digest("thing", {"name": str(name)})


def manifest(name: object, kind: str = "model") -> Manifest:
    data = f"bytes of {name}".encode()
    return Manifest(kind, (FileEntry("model.safetensors", len(data), sha256_bytes(data)),))


def spec(stage: str = "sft", *, inputs: dict[str, str] | None = None, **changes: Any) -> RunSpec:
    body: dict[str, Any] = {
        "stage": stage,
        "program": f"include.training.{stage}",
        "inputs": inputs or {"base": some_digest("base"), "demonstrations": some_digest("demonstrations")},
        "code_revision": some_digest("code"),
        "config": {"learning_rate": 2e-5, "steps": 10},
        "environment": some_digest("environment"),
        "seed": 42,
        "tokenizer": some_digest("tokenizer"),
        "chat_template": some_digest("template"),
        "note": {"git_commit": "abc123"},
    }
    return RunSpec(**(body | changes))


def report(key: str, attempt: str, outputs: dict[str, Manifest], outcome: str = "complete", **metrics: float) -> dict[str, Any]:
    digests = {name: made.digest for name, made in outputs.items()}
    return Report(key, attempt, outcome, "last_step", 0, 10, 10, {"loss": 1.5, **metrics}, digests).to_json()


def commit(catalog: Catalog, asked: RunSpec, outputs: dict[str, Manifest], attempt: str = "1-7.0", **metrics: float) -> Committed:
    """Plans and commits one attempt."""
    catalog.runs.plan(asked)
    plain = {name: made.to_json() for name, made in outputs.items()}
    return catalog.runs.commit_attempt(asked.key, attempt, report(asked.key, attempt, outputs, "complete", **metrics), plain, STORE)


def info(dataset_id: str, content: object, **more: Any) -> dict[str, Any]:
    """What a build says of a dataset version."""
    body = {"dataset_id": dataset_id, "content_hash": some_digest(content), "rows": "pair", "schema_version": "v1"}
    return {**body, "filter_policy_version": "f1", "counts": {"train": 4}, **more}


def deployment_body(weights: str, system_prompt: str = "") -> dict[str, Any]:
    return {
        "weights": weights,
        "quantisation": "none",
        "engine": "transformers",
        "tokenizer": some_digest("tokenizer"),
        "chat_template": some_digest("template"),
        "system_prompt": system_prompt,
        "generation": {"temperature": 0.0},
    }


def deploy(catalog: Catalog, name: str, weights: str) -> str:
    return catalog.releases.register_deployment(name, deployment_body(weights))


def dossier(catalog: Catalog, deployment: str, name: str = "helper", **changes: Any) -> Dossier:
    """A dossier against the present champion, filed."""
    body: dict[str, Any] = {
        "name": name,
        "deployment": deployment,
        "champion": catalog.ledger.champion(name),
        "approvals_needed": 1,
        "demonstration": False,
        "body": {"gates": some_digest("gates"), "known_risks": [], "canary": {"kind": "none"}},
    }
    made = Dossier(**(body | changes))
    catalog.releases.file_dossier(made)
    return made


def release(catalog: Catalog, deployment: str, name: str = "helper", run_id: str = "run", **changes: Any) -> Dossier:
    """The whole way from dossier to champion."""
    made = dossier(catalog, deployment, name, **changes)
    catalog.releases.ask(made.digest, run_id, "olga")
    catalog.releases.approve(made.digest, "anna", "looks right")
    catalog.releases.release(made.digest, made.body, "release task")
    return made
