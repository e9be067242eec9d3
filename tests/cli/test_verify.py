"""`align verify`: the ledger against the heads of it that were kept elsewhere."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from include import cli
from include.stores.artifacts import ArtifactStore
from include.stores.catalog import Catalog
from include.stores.heads import export_head, newest_head
from tests.stores.test_ledger import tamper
from tests.stores.things import deploy, release, some_digest


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("ALIGN_CATALOG_URL", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("ALIGN_STORE_ROOT", str(tmp_path / "store"))
    made = Catalog.open(f"sqlite:///{tmp_path}/catalog.db")
    for number in range(2):
        release(made, deploy(made, "helper", some_digest(number)), run_id=f"run-{number}")
    return made


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(fsspec.filesystem("file"), str(tmp_path / "store"))


def test_a_whole_ledger_holds_its_newest_kept_head(catalog: Catalog, store: ArtifactStore, capsys: pytest.CaptureFixture[str]) -> None:
    head = export_head(store, catalog.ledger)
    catalog.ledger.append("note", {}, "olga")
    assert newest_head(store) == head
    assert cli.main(["verify"]) == 0
    assert "5 rows, each fits the one before; they hold row 4" in capsys.readouterr().out


def test_a_cut_end_is_found_and_said(catalog: Catalog, store: ArtifactStore, capsys: pytest.CaptureFixture[str]) -> None:
    export_head(store, catalog.ledger)
    tamper(catalog, "DELETE FROM ledger WHERE seq > 3")
    assert cli.main(["ledger", "helper"]) == 0, "the rest of a cut chain fits"
    assert cli.main(["verify"]) == 1
    assert "ledger row 4 of an exported head is gone: the end of the ledger was cut off" in capsys.readouterr().err


def test_without_a_kept_head_the_end_is_unknown_and_that_is_no_success(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify"]) == 1
    assert "whether rows are missing at the end is unknown" in capsys.readouterr().err


def test_a_head_that_somebody_kept_by_hand_counts(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    head = catalog.ledger.head()
    assert cli.main(["verify", "--head", f"{head['seq']}:{head['hash']}"]) == 0
    assert cli.main(["verify", "--head", f"{head['seq']}:{some_digest('other')}"]) == 1
    assert "the ledger was rewritten" in capsys.readouterr().err
    assert cli.main(["verify", "--head", "seven"]) == 1


def test_the_store_has_to_be_there(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ALIGN_STORE_ROOT", "/nowhere")
    assert cli.main(["verify"]) == 1
    assert "/nowhere" in capsys.readouterr().err
