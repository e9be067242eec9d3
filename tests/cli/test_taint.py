"""`align taint`: a person marks something as bad, and is told what came from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.cli import main
from include.stores.catalog import Catalog
from include.stores.errors import Tainted
from tests.stores.things import commit, deploy, manifest, release, some_digest, spec


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalog that the shell names."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setenv("ALIGN_CATALOG_URL", url)
    return Catalog.open(url)


@pytest.fixture
def policy(catalog: Catalog) -> str:
    """A policy that learnt from pairs."""
    asked = spec("dpo", inputs={"policy": some_digest("sft"), "preferences": some_digest("pairs")})
    return commit(catalog, asked, {"policy": manifest("dpo")}).outputs["policy"].digest


def test_what_came_from_it_is_not_released_any_more(catalog: Catalog, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["taint", some_digest("pairs"), "--why", "labelled by a script", "--who", "olga"]) == 0
    told = capsys.readouterr().out
    assert f"{some_digest('pairs')} is tainted\n" in told
    assert f"model {policy}" in told
    (row,) = catalog.ledger.entries(kind="tainted")
    assert (row.actor, row.payload["reason"]) == ("olga", "labelled by a script")
    with pytest.raises(Tainted, match="labelled by a script"):
        release(catalog, deploy(catalog, "helper", policy))


def test_twice_is_once_and_says_so(catalog: Catalog, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    for why in ("bad", "worse"):
        assert main(["taint", policy, "--why", why]) == 0
    assert "since before" in capsys.readouterr().out
    assert [row.payload["reason"] for row in catalog.ledger.entries(kind="tainted")] == ["bad"]


@pytest.mark.parametrize("ref", ["label:nobody", some_digest("unknown"), "champion"])
def test_what_is_not_there_can_not_be_marked(catalog: Catalog, policy: str, capsys: pytest.CaptureFixture[str], ref: str) -> None:
    assert main(["taint", ref, "--why", "bad"]) == 1
    assert capsys.readouterr().err.startswith("align: ")
    assert catalog.ledger.entries(kind="tainted") == []
