"""Real checkpoints under `align prune`: a run that died goes on to the same bits from what was left to it; a committed one keeps its outputs alone."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest

from include.domain.layout import RunDir
from include.stores.artifacts import ArtifactStore
from include.stores.catalog import Catalog
from include.stores.catalog.receipts import CatalogReceipts
from include.stores.pruning import Rules, prune
from tests.training.harness import SFT, Started, Store
from tests.training.resume_matrix_cells import KILL

PLACED = {"save_every_steps": 1, "keep_checkpoints": 9}
OWNER = {"dag_id": "train_sft", "run_id": "one", "task_id": "train", "map_index": -1}


class _Lost:
    def to_json(self) -> dict[str, Any]:
        return {"outcome": "lost", "cause": "node_fail", "detail": "", "view": None, "closed_by": "task"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/catalog.db"


def _pass(url: str, store: Store) -> None:
    seen = ArtifactStore(fsspec.filesystem("file"), str(store.root))
    prune(Catalog.open(url), seen, Rules(timedelta(0)), "olga", apply=True, say=print)


def _left(started: Started) -> list[str]:
    attempts = started.folder.parent
    return sorted(path.relative_to(attempts).as_posix() for path in attempts.glob("*/checkpoints/*"))


def test_a_run_goes_on_from_what_was_left_and_keeps_its_outputs_when_it_is_committed(store: Store, url: str) -> None:
    config = {**SFT, "eval_rows": 0}
    inputs = {"base": "base", "demonstrations": "demonstrations"}
    whole = store.run(store.spec("sft", inputs, config, salt="never pruned"), micro_batch=4)
    spec = store.spec("sft", inputs, config, salt="pruned")
    catalog, receipts = Catalog.open(url), CatalogReceipts(url)
    catalog.runs.plan(spec)
    for n, number in ((1, 5), (2, 2)):
        receipts.claim(spec.key, OWNER)
        dead = store.run(spec, n, [KILL, spec.program, "update", str(number)], micro_batch=4, **PLACED)
        _pass(url, store)
        assert len(_left(dead)) == 4 + (n == 2), "a live submission's checkpoints are left alone"
        receipts.close(spec.key, n, _Lost())
    _pass(url, store)
    assert _left(dead) == ["1-101.0/checkpoints/step-4", "2-102.0/checkpoints/step-5"]
    last = store.run(spec, 3, micro_batch=4, **PLACED)
    assert (last.code, last.report.first_step) == (0, 5), last.stderr
    assert last.report.outputs == whole.report.outputs
    outputs = json.loads((last.folder / "output" / "manifest.json").read_text())["artifacts"]
    catalog.runs.commit_attempt(spec.key, last.folder.name, last.report.to_json(), outputs, f"file://{store.root}")
    _pass(url, store)
    assert _left(last) == []
    assert (store.root / RunDir(spec.key).attempt(last.folder.name) / "output" / "policy" / "model.safetensors").exists()
    assert len(catalog.ledger.entries(kind="removed_from_store", subject=spec.key)) == 2
    assert _left(whole), "a run that this catalog does not know is left alone"
