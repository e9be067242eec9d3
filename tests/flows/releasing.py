"""A candidate on its way to release: committed runs, gate reports and dossiers in a real catalog and store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from include.domain.canonical import digest, sha256_bytes
from include.domain.layout import RunDir
from include.domain.manifest import FileEntry, Manifest
from include.domain.spec import Report, RunSpec
from include.flows import release_tasks, services
from include.flows.evaluation_tasks import keep_report, register
from include.flows.evidence import learnt_from
from include.gates.policies import policies_from
from include.gates.render import markdown
from include.stages.refs import DatasetRef, ModelRef
from include.stores.catalog.runs import Committed
from tests.flows.things import TEMPLATE, TOKENIZER
from tests.gates import tables
from tests.gates.conftest import read as gates_file
from tests.stores.things import manifest, spec

ATTEMPT = "1-7.0"


def committed(asked: RunSpec, outputs: dict[str, Manifest], files: dict[str, bytes] | None = None) -> Committed:
    """A run that is committed; `files`: what lies in its only output's folder, by name."""
    store, catalog = services.store(), services.catalog()
    catalog.runs.plan(asked)
    digests = {name: made.digest for name, made in outputs.items()}
    report = Report(asked.key, ATTEMPT, "complete", "last_step", 0, 10, 10, {"loss": 1.5}, digests).to_json()
    plain = {name: made.to_json() for name, made in outputs.items()}
    folder = RunDir(asked.key).attempt(ATTEMPT)
    store.put_json(f"{folder}/report.json", report)
    store.put_json(f"{folder}/output/manifest.json", {"schema": "align/outputs/v1", "artifacts": plain})
    for name, data in (files or {}).items():
        store.put_bytes(f"{folder}/output/{next(iter(outputs))}/{name}", data)
    return catalog.runs.commit_attempt(asked.key, ATTEMPT, report, plain, store.uri)


def weights(name: str) -> tuple[Manifest, dict[str, bytes]]:
    """A model's manifest, and the bytes that it is of."""
    data = f"weights of {name}".encode()
    return Manifest("model", (FileEntry("model.safetensors", len(data), sha256_bytes(data)),)), {"model.safetensors": data}


def dataset(name: str, **info: Any) -> dict[str, Any]:
    """A registered dataset version, as a reference."""
    body = {"dataset_id": f"tiny-{name}", "content_hash": digest("test", name), "rows": "prompt", "schema_version": "v1"}
    body |= {"filter_policy_version": "f1", "counts": {"train": 4}, "licences": {"mit": 4}, **info}
    made = services.catalog().datasets.register(body, manifest(name, "dataset"), "dag:test", [("source:x", "source")])
    return DatasetRef(made.dataset_id, made.version, made.content_hash, made.artifact).to_json()


class Candidate:
    """A policy that was trained and judged good, and the steps of its release, as the DAG's tasks take them."""

    def __init__(self, run: dict[str, Any], name: str) -> None:
        self.run = run
        self.extra: dict[str, Any] = {}
        made, files = weights(name)
        pairs = {"rows": "pair", "licences": {"cc-by-4.0": 8}, "origins": {"external:asdiv": 2, "synthetic:operand@1": 6, "sha256:x": 8}}
        dataset(name, **pairs)
        self.policy = spec("dpo", inputs={"policy": manifest("sft").digest, "preferences": digest("test", name)})
        committed(self.policy, {"policy": made}, files)
        models = {"candidate": made.digest, "sft": manifest("sft").digest}
        refs = {role: ModelRef("model", found, TOKENIZER, TEMPLATE) for role, found in models.items()}
        self.deployment, self.sft_deployment = register(run, refs["candidate"]), register(run, refs["sft"])
        self.models = {role: ref.to_json() for role, ref in refs.items()}
        self.datasets = {"preference_prompts": dataset("preference_prompts")}
        self.learnt_from = learnt_from({"key": self.policy.key})
        report = replace(tables.judged(policies_from(gates_file("quickstart")), tables.good()), notes=(f"of {name}",))
        keep_report(report, self.deployment, policies_digest=digest("test", "p"), purpose="release")
        risks = list(report.known_risks)
        self.gates = {"digest": report.digest, "policies": digest("test", "p"), "known_risks": risks, "markdown": markdown(report)}

    @property
    def name(self) -> str:
        return "demo-tiny"

    def wanted(self) -> dict[str, Any]:
        """What evaluation compared it with: the champion of now."""
        champion = services.catalog().ledger.champion(self.name)
        models = {**self.models, **({"champion": self.models["sft"]} if champion else {})}
        wanted = {"deployment": self.deployment, "champion": champion, "anchor": self.deployment, "models": models, "reward": None}
        return {**wanted, "learnt_from": self.learnt_from, "deployments": {"sft": self.sft_deployment}, **self.extra}

    def dossier(self, **run: Any) -> dict[str, Any]:
        return release_tasks.dossier({**self.run, **run}, self.wanted(), {"key": self.policy.key}, self.gates, self.datasets, "dag:test")

    def approve(self, filed: dict[str, Any], person: str = "approver") -> None:
        services.catalog().releases.approve(filed["digest"], person, "looked at the table")

    def observed(self, verdict: str = "passed", reasons: tuple[str, ...] = ()) -> dict[str, Any]:
        """A committed shadow run."""
        data = json.dumps({"verdict": verdict, "reasons": list(reasons), "requests": 16}).encode()
        made = Manifest("report", (FileEntry("observations.json", len(data), sha256_bytes(data)),))
        asked = spec("shadow", inputs={"model_candidate": self.models["candidate"]["digest"]}, config={"verdict": verdict})
        if services.catalog().runs.committed(asked.key) is None:
            committed(asked, {"observations": made}, {"observations.json": data})
        return {"key": asked.key, "attempt": ATTEMPT}

    def promote(self, filed: dict[str, Any], observed: dict[str, Any] | None = None) -> dict[str, Any]:
        seen = observed or self.observed()
        return release_tasks.promote(self.run, self.wanted(), self.gates, self.datasets, filed, seen, "dag:test")

    def promote_after_canary(self, filed: dict[str, Any]) -> dict[str, Any]:
        release_tasks.start_canary(filed, "dag:test")
        return self.promote(filed)

    def release(self, **run: Any) -> dict[str, Any]:
        """The whole way."""
        filed = self.dossier(**run)
        self.approve(filed)
        return self.promote_after_canary(filed)
