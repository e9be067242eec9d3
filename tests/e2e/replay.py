"""A second catalog with the same runs and another history of releases: made through public functions, with a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import fsspec

from include.domain.layout import dataset_dir
from include.domain.manifest import Manifest
from include.stores.artifacts import ArtifactStore
from include.stores.catalog import Catalog
from include.stores.catalog.releases import Dossier


class Clock:
    """Shows what it is set to."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def __call__(self) -> datetime:
        return self.moment


def copy_evidence(source: Catalog, target: Catalog, root: str) -> None:
    """Every committed run with its outputs, every suite, every measurement."""
    store = ArtifactStore(fsspec.filesystem("file"), root)
    for run in reversed(source.runs.newest(limit=1000)):
        done = source.runs.committed(run.key)
        if done is None:
            continue
        target.runs.plan(run.spec)
        outputs = {name: made.to_json() for name, made in store.outputs(run.key, done.attempt).items()}
        target.runs.commit_attempt(run.key, done.attempt, done.report.to_json(), outputs, done.store)
        for role, content_hash in run.spec.inputs.items():
            if role.startswith("suite_"):
                _copy_suite(source, target, store, content_hash, done.store)


def _copy_suite(source: Catalog, target: Catalog, store: ArtifactStore, content_hash: str, uri: str) -> None:
    folder = dataset_dir(content_hash)
    (version, *_) = source.datasets.by_hash(content_hash)
    manifest = Manifest.from_json(store.read_json(f"{folder}/manifest.json"))
    kept = target.datasets.register(dict(version.info), manifest, version.writer)
    target.artifacts.add_location(kept.artifact, uri, folder)


def release_in_the_past(source: Catalog, target: Catalog, clock: Clock, name: str, history: Sequence[tuple[datetime, str]]) -> None:
    """Makes each deployment the champion at its instant, with all that a release asks for."""
    for moment, deployment in history:
        clock.moment = moment
        releases = target.releases
        assert releases.register_deployment(name, source.releases.deployment(deployment)) == deployment
        for measured in source.measurements.of(deployment):
            target.measurements.record(measured)
        body: Mapping[str, Any] = {"canary": {"kind": "none"}, "released": moment.isoformat()}
        dossier = releases.file_dossier(Dossier(name, deployment, body, target.ledger.champion(name), 1, demonstration=True))
        releases.ask(dossier, run_id=f"history-{moment.isoformat()}", asked_by="requester")
        releases.propose(dossier, actor="history")
        releases.approve(dossier, "approver", "as it was", account="person")
        releases.release(dossier, body, actor="history")
