"""The weekly pass over the store: it removes where the site, or a person, says so, and else only tells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from include.domain.layout import RunDir
from include.flows import services, stage_work
from include.flows.errors import FlowError
from include.flows.retention import apply_retention
from include.stores.catalog.receipts import CatalogReceipts
from tests.flows.conftest import Plane
from tests.flows.things import SFT_GIVEN

OWNER = {"dag_id": "train_sft", "run_id": "manual__1", "task_id": "sft.train", "map_index": -1}


class _End:
    def to_json(self) -> dict[str, object]:
        return {"outcome": "ended", "cause": "time_limit", "detail": "", "view": None, "closed_by": "task"}


@pytest.fixture
def superseded(plane: Plane) -> Path:
    """A checkpoint that a newer attempt has left behind, of a run whose job ended just now."""
    spec = stage_work.plan("sft", plane.run(), SFT_GIVEN).spec
    services.catalog().runs.plan(spec)
    receipts = CatalogReceipts(**services.receipts_config())
    receipts.claim(spec.key, OWNER)
    receipts.close(spec.key, 1, _End())
    made = []
    for n in (1, 2, 3):
        folder = Path(plane.store_root, RunDir(spec.key).attempt(f"{n}-7.0"), "checkpoints", f"step-{n}")
        folder.mkdir(parents=True)
        (folder / "w").write_text("w")
        (folder / "manifest.json").write_text(json.dumps({"key": spec.key, "step": n, "files": [{"path": "w", "size": 1}]}))
        os.utime(folder, (1, 1))
        made.append(folder)
    return made[0]


def test_unasked_it_only_tells(superseded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("ALIGN_PRUNE_AFTER_DAYS", raising=False)
    assert apply_retention(None, None, "schedule") == {"bytes": 0, "removed": False}
    assert "1 left alone: it is too young" in capsys.readouterr().out
    told = apply_retention(0.0, None, "schedule")
    assert told["bytes"] > 0
    assert not told["removed"]
    assert superseded.exists()


def test_it_removes_where_the_site_or_a_person_says_so(superseded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIGN_PRUNE_AFTER_DAYS", "30")
    assert apply_retention(None, None, "schedule") == {"bytes": 0, "removed": True}
    assert apply_retention(0.0, False, "ada")["bytes"] > 0
    assert superseded.exists()
    monkeypatch.setenv("ALIGN_PRUNE_AFTER_DAYS", "0")
    assert apply_retention(None, None, "schedule")["removed"]
    assert not superseded.exists()
    (row,) = services.catalog().ledger.entries(kind="removed_from_store")
    assert row.actor == "schedule"
    assert row.payload["store"] == services.store().uri


def test_a_site_that_says_no_number_is_told_where(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIGN_PRUNE_AFTER_DAYS", "two weeks")
    with pytest.raises(FlowError, match="ALIGN_PRUNE_AFTER_DAYS is 'two weeks'"):
        apply_retention(None, None, "schedule")
