"""DPO's reference log-probabilities in the store: found by other runs with the bits of computing anew, and never believed unseen."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from include.domain.layout import REFERENCE_CACHES
from tests.training.align_store import aligned_store, dpo_spec, killed, preferences, run_here, signalled, weights_of
from tests.training.harness import Started, Store

SHORT = {"steps": 3}
PAIRS = 48 + 12
"""Of the training and the validation side."""


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The shared inputs in a store of its own, without any cache."""
    root = tmp_path_factory.getbasetemp() / "aligned"
    root.mkdir(exist_ok=True)
    shared = aligned_store(root)
    return Store(tmp_path_factory.mktemp("own"), places=dict(shared.places))


def _cache(started: Started) -> dict[str, Any]:
    told: dict[str, Any] = started.report.summary["reference_cache"]
    return told


def _files(store: Store) -> list[Path]:
    return sorted(path for path in (store.root / REFERENCE_CACHES).rglob("*") if path.is_file())


def _counts(started: Started) -> tuple[int, int]:
    assert started.code == 0, started.report.message
    return _cache(started)["pairs_taken"], _cache(started)["pairs_computed"]


def test_another_run_with_the_same_reference_and_pairs_takes_them_and_gets_the_bits_of_computing_anew(store: Store) -> None:
    first = run_here(store, dpo_spec(store, **SHORT))
    assert _counts(first) == (0, PAIRS)
    assert [path.name for path in _files(store)] == ["train-0-48.safetensors", "validation-0-12.safetensors"]
    kept = [path.read_bytes() for path in _files(store)]
    other = run_here(store, dpo_spec(store, beta=0.3, **SHORT))
    assert other.report.key != first.report.key
    assert _counts(other) == (PAIRS, 0)
    assert _cache(other)["address"] == _cache(first)["address"]
    assert weights_of(other) != weights_of(first)
    shutil.rmtree(store.root / REFERENCE_CACHES)
    anew = run_here(store, dpo_spec(store, beta=0.3, salt="anew", **SHORT))
    assert _counts(anew) == (0, PAIRS)
    assert anew.report.outputs == other.report.outputs
    assert [path.read_bytes() for path in _files(store)] == kept


def test_what_their_bits_depend_on_is_part_of_the_address(store: Store) -> None:
    preferences(store, "fewer", 70)
    runs = [
        run_here(store, dpo_spec(store, **SHORT)),
        run_here(store, dpo_spec(store, salt="smaller pieces", **SHORT), micro_batch=3),
        run_here(store, dpo_spec(store, attention="eager", **SHORT)),
        run_here(store, dpo_spec(store, precision="bf16_autocast", **SHORT)),
        run_here(store, dpo_spec(store, data="fewer", **SHORT)),
    ]
    assert [_counts(run)[0] for run in runs] == [0] * len(runs)
    assert len({_cache(run)["address"] for run in runs}) == len(runs)


def test_a_wrong_byte_is_named_removed_and_made_anew(store: Store) -> None:
    first = run_here(store, dpo_spec(store, **SHORT))
    path = _files(store)[0]
    right = path.read_bytes()
    for at in (len(right) - 3, len(right) - 200):  # one of either tensor's bytes
        path.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
        again = run_here(store, dpo_spec(store, salt=f"wrong byte {at}", **SHORT))
        assert _counts(again) == (12, 48)
        assert any(path.name in said and "made anew" in said for said in again.report.summary["warnings"])
        assert again.report.outputs == first.report.outputs
        assert path.read_bytes() == right


def test_half_a_file_and_another_part_under_its_name_are_not_believed(store: Store) -> None:
    first = run_here(store, dpo_spec(store, **SHORT))
    train, validation = _files(store)
    right = train.read_bytes()
    for wrong in (right[: len(right) // 2], b"", validation.read_bytes()):
        train.write_bytes(wrong)
        again = run_here(store, dpo_spec(store, salt=hashlib.sha256(wrong).hexdigest(), **SHORT))
        assert _counts(again) == (12, 48)
        assert again.report.outputs == first.report.outputs
        assert train.read_bytes() == right


def test_killed_before_the_first_step_the_next_attempt_goes_on_where_the_reference_was(store: Store) -> None:
    whole = run_here(store, dpo_spec(store, salt="in one go", **SHORT))
    shutil.rmtree(store.root / REFERENCE_CACHES)
    spec = dpo_spec(store, salt="killed", **SHORT)
    first = killed(store, spec, "reference", 2)
    assert first.code == -9, first.stderr
    assert not (first.folder / "checkpoints").exists()
    assert [path.name for path in _files(store)] == ["train-0-48.safetensors"]
    second = run_here(store, spec, n=2)
    assert _counts(second) == (48, 12)
    assert second.report.outputs == whole.report.outputs


def test_a_store_that_cannot_be_written_costs_nothing_but_time(store: Store) -> None:
    (store.root / "caches").write_text("in the way")
    done = run_here(store, dpo_spec(store, **SHORT))
    assert _counts(done) == (0, PAIRS)
    assert sum("not kept for other runs" in said for said in done.report.summary["warnings"]) == 1


def test_a_checkpoint_with_the_log_probabilities_of_another_reference_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dpo_spec(store, **SHORT)
    first = signalled(store, spec, 2, monkeypatch)
    folder = first.folder / "checkpoints" / "step-2"
    state = json.loads((folder / "state.json").read_text())
    state["program"]["reference_key"] = "sha256:" + "1" * 64
    data = json.dumps(state).encode()
    (folder / "state.json").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    (entry,) = [entry for entry in manifest["files"] if entry["path"] == "state.json"]
    entry |= {"size": len(data), "sha256": "sha256:" + hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    second = run_here(store, spec, n=2)
    assert second.code == 1
    assert f"its reference log-probabilities are of sha256:{'1' * 64}, this run's are of sha256:" in second.report.message
