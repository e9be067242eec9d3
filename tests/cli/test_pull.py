"""`align pull`: by alias, or any artifact by its digest, every byte checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from include import cli
from include.domain.layout import RunDir
from include.domain.manifest import Manifest, build_manifest
from include.domain.spec import Report
from include.stores.artifacts import ArtifactStore
from include.stores.catalog import Catalog
from tests.stores.things import deploy, dossier, release, some_digest, spec

NAME = "helper"


class Made:
    """A store on disk and its catalog, with the outputs of one committed run."""

    def __init__(self, folder: Path) -> None:
        import fsspec

        self.store = ArtifactStore(fsspec.filesystem("file"), str(folder / "store"))
        self.catalog = Catalog.open(f"sqlite:///{folder}/catalog.db")
        self.manifests: dict[str, Manifest] = {}

    def commit(self, folder: Path, **outputs: str) -> None:
        """A run with these outputs: name → the text of its one file."""
        asked = spec("reward_model")
        attempt = RunDir(asked.key).attempt("1-7.0")
        for name, text in outputs.items():
            (folder / name).mkdir()
            (folder / name / "model.safetensors").write_text(text)
            self.manifests[name] = build_manifest("reward_model", folder / name)
            self.store.put_folder(folder / name, f"{attempt}/output/{name}", self.manifests[name])
        plain = {name: made.to_json() for name, made in self.manifests.items()}
        self.store.put_json(f"{attempt}/output/manifest.json", {"schema": "align/outputs/v1", "artifacts": plain})
        digests = {name: made.digest for name, made in self.manifests.items()}
        report = Report(asked.key, "1-7.0", "complete", "last_step", 0, 1, 1, {}, digests).to_json()
        self.catalog.runs.plan(asked)
        self.catalog.runs.commit_attempt(asked.key, "1-7.0", report, plain, self.store.uri)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made(tmp_path)
    (tmp_path / "local").mkdir()
    found.commit(tmp_path / "local", policy="one", reward_model_2="two")
    monkeypatch.setenv("ALIGN_CATALOG_URL", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("ALIGN_STORE_ROOT", str(tmp_path / "store"))
    return found


def pull(ref: str, to: Path) -> str:
    assert cli.main(["pull", ref, str(to)]) == 0
    return (to / "model.safetensors").read_text()


def test_each_alias_that_the_ledger_gives_can_be_pulled(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = deploy(made.catalog, NAME, made.manifests["policy"].digest)
    filed = dossier(made.catalog, deployment, NAME)
    made.catalog.releases.ask(filed.digest, "run", "olga")
    made.catalog.releases.propose(filed.digest, "dossier task")
    assert pull("candidate", tmp_path / "a") == "one"
    assert cli.main(["pull", "champion", str(tmp_path / "b")]) == 1
    assert "champion of which name? no name has one yet" in capsys.readouterr().err
    assert cli.main(["pull", f"canary:{NAME}", str(tmp_path / "b")]) == 1
    assert f"{NAME} has no canary in the ledger" in capsys.readouterr().err
    release(made.catalog, deployment, NAME)
    assert pull("champion", tmp_path / "c") == pull(f"champion:{NAME}", tmp_path / "d") == "one"


def test_any_artifact_can_be_pulled_by_its_digest_and_only_whole(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    member = made.manifests["reward_model_2"].digest
    assert pull(member, tmp_path / "a") == "two"
    (path,) = (tmp_path / "store").rglob("reward_model_2/model.safetensors")
    path.chmod(0o600)
    path.write_text("twö")
    assert cli.main(["pull", member, str(tmp_path / "b")]) == 1
    assert "model.safetensors" in capsys.readouterr().err
    assert cli.main(["pull", some_digest("nothing"), str(tmp_path / "c")]) == 1
    assert "is not in the catalog" in capsys.readouterr().err
