"""Checkpoints: whole or not there, found by verifying, over all attempts of a key, in numeric order."""

import shutil
from pathlib import Path

import pytest
import torch

from include.domain.canonical import digest
from include.runtime import checkpoint, rng
from include.runtime.checkpoint import CheckpointStore, Retention, Snapshot
from include.runtime.errors import CheckpointError
from include.runtime.pieces import Owned

KEY = digest("stage-key", {"of": "these tests"})


def _store(attempts: Path, own: str = "1-10.0", keep_last: int = 100, key: str = KEY, **retention: int) -> CheckpointStore:
    (attempts / own).mkdir(parents=True, exist_ok=True)
    return CheckpointStore(attempts, own, key, Retention(keep_last, **retention))


def _left(store: CheckpointStore) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in store.folder.iterdir())


def _save(store: CheckpointStore, *steps: int, keep: bool = False) -> None:
    for step in steps:
        tensors = {"weight": torch.full((3, 2), float(step)), "bias": torch.arange(2.0)}
        store.save(step, Snapshot({"model": tensors}, {"position": step * 8}, {"note.txt": b"hello"}), {"0": rng.capture()}, keep=keep)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_what_is_saved_comes_back_bit_by_bit(tmp_path: Path) -> None:
    store = _store(tmp_path)
    tensors = {"a.b": torch.randn(5, 3), "half": torch.randn(4).bfloat16(), "step": torch.tensor(7.0), "part": torch.arange(10.0)[2:5]}
    store.save(4, Snapshot({"model": tensors}, {"kl": 0.1, "best": None}, {"rows.jsonl": b"{}\n"}), {"0": rng.capture()})
    found = store.find().checkpoint
    assert found is not None
    assert (found.step, found.attempt, found.state) == (4, "1-10.0", {"kl": 0.1, "best": None})
    loaded = found.load("model")
    assert set(loaded) == set(tensors)
    assert all(torch.equal(loaded[name], tensors[name]) and loaded[name].dtype == tensors[name].dtype for name in tensors)
    assert found.file("rows.jsonl").read_bytes() == b"{}\n"


def test_tensors_that_were_made_to_be_kept_are_not_copied_again() -> None:
    live, kept = {"w": torch.ones(3)}, Owned({"w": torch.ones(3)})
    copied = Snapshot({"live": live, "kept": kept}).copied()
    live["w"][0] = 9.0
    assert copied.groups["live"]["w"].tolist() == [1.0, 1.0, 1.0]
    assert copied.groups["kept"]["w"].data_ptr() == kept["w"].data_ptr()
    again = copied.copied()
    assert again.groups["live"]["w"].data_ptr() == copied.groups["live"]["w"].data_ptr()


def test_the_highest_step_is_found_by_number_not_by_text(tmp_path: Path) -> None:
    _save(_store(tmp_path), 200, 1000, 90)
    found = _store(tmp_path, "2-11.0").find().checkpoint
    assert found is not None
    assert found.step == 1000


def test_the_highest_step_of_any_attempt_is_found(tmp_path: Path) -> None:
    _save(_store(tmp_path, "1-10.0"), 6)
    _save(_store(tmp_path, "2-11.0"), 4)
    found = _store(tmp_path, "3-12.0").find().checkpoint
    assert found is not None
    assert (found.attempt, found.step) == ("1-10.0", 6)


def test_of_four_folders_the_newest_whole_one_is_taken_and_the_others_are_named_and_left(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 100, 200, 300)
    (store.folder / "step-300" / "model.safetensors").write_bytes(b"")
    (store.folder / "step-400.tmp").mkdir()
    (store.folder / "step-400.tmp" / "model.safetensors").write_bytes(b"half")
    shutil.copytree(store.folder / "step-100", store.folder / "step-1000-old.bak")
    found = _store(tmp_path, "2-11.0").find()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 200
    reasons = {item.name: item.reason for item in found.set_aside}
    assert set(reasons) == {"1-10.0/checkpoints/step-300", "1-10.0/checkpoints/step-400.tmp"}
    assert "model.safetensors has 0 bytes" in reasons["1-10.0/checkpoints/step-300"]
    assert "half-written" in reasons["1-10.0/checkpoints/step-400.tmp"]
    assert (store.folder / "step-300").exists()
    assert (store.folder / "step-400.tmp").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "note.txt"])
def test_one_wrong_byte_is_refused_by_the_name_of_its_file(tmp_path: Path, file: str) -> None:
    store = _store(tmp_path)
    _save(store, 2, 4)
    _flip(store.folder / "step-4" / file)
    found = store.find()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 2
    assert f"step-4/{file} is corrupt" in found.set_aside[0].reason


def test_a_checkpoint_without_its_manifest_is_not_whole(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 2, 4)
    (store.folder / "step-4" / "manifest.json").unlink()
    found = store.find()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 2
    assert "manifest.json is not there" in found.set_aside[0].reason


def test_checkpoints_of_which_none_is_whole_are_an_error_that_names_them_all(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 2, 4)
    for step in (2, 4):
        _flip(store.folder / f"step-{step}" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"step-4: .*step-2: .*fresh_start"):
        store.find()


def test_a_fresh_start_must_be_asked_for_and_still_names_what_is_passed_over(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 2)
    _flip(store.folder / "step-2" / "model.safetensors")
    found = store.find(fresh_start=True)
    assert found.checkpoint is None
    assert [item.name for item in found.set_aside] == ["1-10.0/checkpoints/step-2"]


def test_a_first_save_that_was_cut_off_starts_again_and_is_named(tmp_path: Path) -> None:
    store = _store(tmp_path)
    (store.folder / "step-2.tmp").mkdir(parents=True)
    found = store.find()
    assert found.checkpoint is None
    assert [item.name for item in found.set_aside] == ["1-10.0/checkpoints/step-2.tmp"]


def test_a_checkpoint_of_another_key_is_refused(tmp_path: Path) -> None:
    _save(_store(tmp_path), 2)
    with pytest.raises(CheckpointError, match="not of this run"):
        _store(tmp_path, "2-11.0", key=digest("stage-key", {"of": "another run"})).find()


def test_only_the_latest_few_and_the_protected_ones_stay(tmp_path: Path) -> None:
    store = _store(tmp_path, keep_last=2)
    _save(store, 1)
    _save(store, 2, keep=True)
    _save(store, 3, 4, 10)
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-10", "step-2", "step-4"]


def test_milestones_stay_beside_the_latest(tmp_path: Path) -> None:
    store = _store(tmp_path, keep_last=2, keep_every_steps=4)
    _save(store, *range(1, 11))
    assert _left(store) == [4, 8, 9, 10]


def test_of_the_best_ones_the_newest_few_stay(tmp_path: Path) -> None:
    store = _store(tmp_path, keep_last=1, keep_best=2)
    for step in range(1, 9):
        _save(store, step, keep=step in (1, 3, 5))
    assert _left(store) == [3, 5, 8]


def test_without_a_limit_all_of_the_best_ones_stay(tmp_path: Path) -> None:
    store = _store(tmp_path, keep_last=1)
    for step in range(1, 9):
        _save(store, step, keep=step in (1, 3, 5))
    assert _left(store) == [1, 3, 5, 8]


def test_a_checkpoint_of_another_identity_is_refused_with_each_difference(tmp_path: Path) -> None:
    identity = {"stage": "sft", "seed": 5, "config": {"learning_rate": 0.1, "betas": (0.9, 0.95), "schedule": "linear"}}
    (tmp_path / "1-10.0").mkdir()
    _save(CheckpointStore(tmp_path, "1-10.0", KEY, identity=identity), 2)
    ours = {**identity, "seed": 6, "config": {"learning_rate": 0.2, "betas": [0.9, 0.95], "lora": None}}
    (tmp_path / "2-11.0").mkdir()
    store = CheckpointStore(tmp_path, "2-11.0", digest("stage-key", {"of": "another run"}), identity=ours)
    with pytest.raises(CheckpointError) as refused:
        store.find()
    said = str(refused.value)
    for words in ("learning_rate is 0.1 there, 0.2 here", "seed is 5 there, 6 here", "config.schedule is 'linear' there, None here"):
        assert words in said
    assert "betas" not in said
    assert "stage is" not in said


def test_what_an_earlier_attempt_wrote_is_never_removed(tmp_path: Path) -> None:
    _save(_store(tmp_path), 2)
    store = _store(tmp_path, "2-11.0", keep_last=1)
    assert store.find().checkpoint is not None
    _save(store, 4, 6, 8)
    assert [path.name for path in (tmp_path / "1-10.0" / "checkpoints").iterdir()] == ["step-2"]
    assert [path.name for path in store.folder.iterdir()] == ["step-8"]


def test_what_an_attempt_was_removing_when_it_died_is_removed_by_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = _store(tmp_path, keep_last=1)
    _save(dead, 2)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            _save(dead, 4)
    assert sorted(path.name for path in dead.folder.iterdir()) == ["step-2.removed", "step-4"]
    following = _store(tmp_path, "2-11.0", keep_last=1)
    found = following.find()
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.set_aside) == (4, ())
    _save(following, 6)
    assert [path.name for path in dead.folder.iterdir()] == ["step-4"]
    assert [path.name for path in following.folder.iterdir()] == ["step-6"]


def test_nothing_is_removed_once_a_newer_attempt_may_be_reading(tmp_path: Path) -> None:
    store = _store(tmp_path, keep_last=1)
    _save(store, 2)
    (tmp_path / "2-11.0").mkdir()
    _save(store, 4)
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-2", "step-4"]


def test_a_checkpoint_is_found_by_its_step_and_a_broken_one_is_named(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 2, 4)
    assert store.at(2).step == 2
    _flip(store.folder / "step-2" / "state.json")
    with pytest.raises(CheckpointError, match=r"step-2: .*state.json"):
        store.at(2)


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 2)
    names = sorted(path.name for path in (store.folder / "step-2").iterdir())
    assert names == ["manifest.json", "model.safetensors", "note.txt", "state.json"]


def test_unknown_groups_and_files_are_refused_by_name(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _save(store, 2)
    checkpoint = store.at(2)
    with pytest.raises(CheckpointError, match=r"no group 'critic'; it has model"):
        checkpoint.load("critic")
    with pytest.raises(CheckpointError, match="no file 'other'"):
        checkpoint.file("other")
