"""Pieces of tensors that several ranks write: whole again for whoever reads them, and never taken for whole ones."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from include.domain.canonical import digest
from include.runtime import checkpoint, pieces
from include.runtime.checkpoint import CheckpointStore, Found, Snapshot
from include.runtime.errors import CheckpointError, RuntimeFault
from include.runtime.files import read_json
from include.runtime.pieces import Pieces, Place, Stored, groups_in, write_group
from include.runtime.ranks import Ranks

KEY = digest("stage-key", {"of": "these tests"})


class Threads:
    """So many ranks, each a thread of this process; they meet as processes do, and the first that fails to come is an error for all."""

    def __init__(self, count: int) -> None:
        self._met = threading.Barrier(count, timeout=30)
        self._values: list[Any] = [None] * count

    def each(self, work: Callable[[Ranks], Any]) -> list[Any]:
        """What every rank's work gave, or the exception that it raised."""
        with ThreadPoolExecutor(len(self._values)) as pool:
            ends = [pool.submit(work, _Thread(rank, len(self._values), self)) for rank in range(len(self._values))]
            return [end.exception() or end.result() for end in ends]

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._met.wait()
        found = list(self._values)
        self._met.wait()
        return found


class _Thread(Ranks):
    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = self.group.gather(self.rank, value)
        return found


def _dealt(whole: torch.Tensor, cuts: list[int]) -> list[Pieces]:
    """Ranges of a tensor's elements, one for each rank."""
    bounds = [0, *sorted(cuts), whole.numel()]
    found = []
    for start, stop in pairwise(bounds):
        own = Pieces()
        if start < stop:
            own.add("w", whole.flatten()[start:stop], Place(tuple(whole.shape), (start,)))
        found.append(own)
    return found


@given(st.lists(st.integers(1, 5), max_size=3), st.lists(st.integers(0, 60), max_size=4), st.integers(0, 60), st.integers(0, 60))
def test_ranges_make_the_whole_however_they_are_dealt(
    tmp_path_factory: Any, shape: list[int], cuts: list[int], one: int, other: int
) -> None:
    folder, whole = tmp_path_factory.mktemp("g"), torch.randn(shape)
    count = whole.numel()
    for rank, own in enumerate(_dealt(whole, [min(cut, count) for cut in cuts])):
        write_group(folder, "model", own, rank)
    stored = Stored(folder, "model")
    assert torch.equal(stored["w"], whole)
    start, stop = sorted((min(one, count), min(other, count)))
    assert torch.equal(stored.range("w", start, stop), whole.flatten()[start:stop])


@pytest.mark.parametrize("axis", [0, 1])
def test_boxes_make_the_whole_and_give_ranges_of_it(tmp_path: Path, axis: int) -> None:
    whole, count = torch.randn(6, 4), torch.tensor(7.0)
    for rank, part in enumerate(whole.chunk(2, axis)):
        own = Pieces()
        own.add("w", part, Place((6, 4), (3 * rank, 0) if axis == 0 else (0, 2 * rank)))
        if rank == 0:
            own.add("step", count)
        write_group(tmp_path, "a.b", own, rank)
    stored = Stored(tmp_path, "a.b")
    assert torch.equal(stored["w"], whole)
    assert torch.equal(stored.range("w", 5, 11), whole.flatten()[5:11])
    assert torch.equal(stored["step"], count)
    assert (groups_in(tmp_path), set(stored)) == (["a.b"], {"w", "step"})


def test_a_piece_that_is_not_there_is_named(tmp_path: Path) -> None:
    for rank, own in enumerate(_dealt(torch.randn(4, 4), [8])):
        write_group(tmp_path, "model", own, rank)
    (tmp_path / "model@1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the pieces of w hold 8 elements, the whole has \(4, 4\)"):
        Stored(tmp_path, "model")
    with pytest.raises(CheckpointError, match="has no group 'optimizer'; it has model"):
        Stored(tmp_path, "optimizer")
    (tmp_path / "model@0.safetensors").write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match="model@0.safetensors cannot be read"):
        Stored(tmp_path, "model")


def _lying(folder: Path, *pieces_of: tuple[torch.Tensor, Any]) -> Path:
    """Files of pieces whose headers say anything at all."""
    for rank, (tensor, said) in enumerate(pieces_of):
        save_file({"w": tensor.clone()}, folder / f"model@{rank}.safetensors", metadata={"pieces": json.dumps(said)})
    return folder


HALF, BOX = torch.arange(4.0), torch.ones(2, 2)


@pytest.mark.parametrize(
    ("starts", "shape", "tensors"),
    [
        ([[0], [0]], [2, 4], [HALF, HALF]),
        ([[0], [7]], [2, 4], [HALF, HALF]),
        ([[0], [-4]], [2, 4], [HALF, HALF]),
        ([[0], [4]], [-2, -4], [HALF, HALF]),
        ([[5]], [2, 2], [HALF]),
        ([[0]], [10**30, 0], [torch.zeros(0)]),
        ([[0.0]], [4.0], [HALF]),
        ([[0], [4]], [2, 4], [BOX, BOX]),
        ([[0], [4]], [2, 4], [HALF, HALF.half()]),
        ([[0, 0], [0, 0]], [2, 4], [BOX, BOX]),
        ([[0, 0], [0, 3]], [2, 4], [BOX, BOX]),
        ([[0, 0], [0, 2, 0]], [2, 4], [BOX, BOX]),
        ([[0], [1, 0]], [2, 4], [HALF, HALF.view(1, 4)]),
    ],
)
def test_places_that_do_not_make_a_whole_are_refused_with_the_files_name(
    tmp_path: Path, starts: list[Any], shape: list[Any], tensors: list[torch.Tensor]
) -> None:
    said = [{"w": {"shape": shape, "start": start}} for start in starts]
    with pytest.raises(CheckpointError, match=r"model@\d.safetensors: its piece of w"):
        Stored(_lying(tmp_path, *zip(tensors, said, strict=True)), "model")


@pytest.mark.parametrize("said", [None, {}, [], {"w": {"shape": [4]}}])
def test_a_piece_without_a_place_is_refused(tmp_path: Path, said: Any) -> None:
    with pytest.raises(CheckpointError, match=r"model@0.safetensors does not say where its piece of w lies"):
        Stored(_lying(tmp_path, (HALF, said)), "model")


def test_to_ask_for_a_name_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(_lying(tmp_path, (HALF, {"w": {"shape": [4], "start": [0]}})), "model")
    monkeypatch.setattr(Stored, "__getitem__", None)
    assert ("w" in stored, "v" in stored) == (True, False)


def _saves(tmp_path: Path, whole: torch.Tensor, step: int, count: int = 3) -> list[Any]:
    """What each of some ranks got from saving its third of a tensor."""
    parts = _dealt(whole, [whole.numel() * rank // count for rank in range(1, count)])

    def save(ranks: Ranks) -> Path:
        store = CheckpointStore(tmp_path, "1-10.0", KEY)
        groups = {"model": parts[ranks.rank], "best": {"w": whole} if ranks.main else {"w": torch.zeros(1)}}
        return store.save(step, Snapshot(groups, {"of": ranks.rank}), {}, ranks=ranks)

    return Threads(count).each(save)


def _found(tmp_path: Path, count: int = 3) -> list[Found]:
    return Threads(count).each(lambda ranks: CheckpointStore(tmp_path, "2-11.0", KEY).find(ranks=ranks))


@pytest.fixture
def attempts(tmp_path: Path) -> Path:
    for name in ("1-10.0", "2-11.0"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_each_rank_writes_its_own_and_all_find_the_same(attempts: Path) -> None:
    whole = torch.randn(10, 3)
    (final,) = set(_saves(attempts, whole, 2))
    names = {"model@0.safetensors", "model@1.safetensors", "model@2.safetensors", "best.safetensors", "state.json"}
    assert {entry["path"] for entry in read_json(final / "manifest.json")["files"]} == names
    for found in _found(attempts):
        assert found.checkpoint is not None
        assert found.checkpoint.groups == ["best", "model"]
        assert torch.equal(found.checkpoint.load("model")["w"], whole)
        assert (torch.equal(found.checkpoint.load("best")["w"], whole), found.checkpoint.state) == (True, {"of": 0})


def test_a_rank_that_cannot_write_leaves_nothing_whole_and_all_are_told(attempts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _saves(attempts, torch.randn(9), 2)
    written = pieces.save_file

    def fails(tensors: Any, path: Path, **kwargs: Any) -> None:
        if path.name == "model@1.safetensors":
            raise OSError(28, "No space left on device")
        written(tensors, path, **kwargs)

    monkeypatch.setattr(pieces, "save_file", fails)
    errors = _saves(attempts, torch.randn(9), 4)
    assert [type(error) for error in errors] == [RuntimeFault, OSError, RuntimeFault]
    assert "rank 1: OSError: [Errno 28] No space left on device" in str(errors[0])
    for found in _found(attempts):
        assert found.checkpoint is not None
        assert found.checkpoint.step == 2
        assert [(item.name, item.reason) for item in found.set_aside] == [
            ("1-10.0/checkpoints/step-4.tmp", "half-written: the save was cut off")
        ]


def test_what_one_rank_finds_corrupt_none_uses(attempts: Path) -> None:
    whole = torch.randn(9)
    _saves(attempts, whole, 2)
    (final,) = set(_saves(attempts, torch.randn(9), 4))
    path = final / "model@2.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    for found in _found(attempts, 2):
        assert found.checkpoint is not None
        assert torch.equal(found.checkpoint.load("model")["w"], whole)
        (aside,) = found.set_aside
        assert "step-4" in aside.name
        assert "model@2.safetensors is corrupt" in aside.reason


def test_a_file_that_is_not_in_the_manifest_is_not_read(attempts: Path) -> None:
    whole = torch.randn(9)
    (final,) = set(_saves(attempts, whole, 2))
    save_file({"w": torch.zeros(9)}, final / "model.safetensors")
    save_file({"w": torch.zeros(9)}, final / "other.safetensors")
    found = CheckpointStore(attempts, "2-11.0", KEY).find().checkpoint
    assert found is not None
    assert torch.equal(found.load("model")["w"], whole)
    assert found.groups == ["best", "model"]


def test_a_state_that_one_rank_cannot_read_is_used_by_none(attempts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(9)
    _saves(attempts, whole, 2)
    _saves(attempts, torch.randn(9), 4)
    read, failed = checkpoint.read_json, threading.Lock()

    def fails(path: Path) -> Any:
        if path.name == "state.json" and "step-4" in str(path) and failed.acquire(blocking=False):
            raise RuntimeFault(f"{path} is not there")
        return read(path)

    monkeypatch.setattr(checkpoint, "read_json", fails)
    assert [found.checkpoint and found.checkpoint.step for found in _found(attempts)] == [2, 2, 2]


def test_more_ranks_than_files_find_it_too(attempts: Path) -> None:
    CheckpointStore(attempts, "1-10.0", KEY).save(1, Snapshot({}, {"n": 1}), {})
    assert {found.checkpoint and found.checkpoint.step for found in _found(attempts, 4)} == {1}
