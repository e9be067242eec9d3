"""The artifact store, as a mounted path and over SFTP."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from include.domain.canonical import canonical_bytes, sha256_bytes
from include.domain.errors import IntegrityError
from include.domain.layout import AttemptName, RunDir
from include.domain.manifest import Manifest, build_manifest
from include.stores.artifacts import ArtifactStore
from include.stores.code import CodeTar
from include.stores.errors import NotFound, StoreError
from include.stores.transfer import Hashing
from tests.stores.things import report, some_digest

KEY = some_digest("key")


def folder_of(path: Path, files: dict[str, bytes], kind: str = "dataset") -> Manifest:
    """Writes files and gives their manifest."""
    for name, data in files.items():
        place = path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return build_manifest(kind, path)


def leftovers(store: ArtifactStore) -> list[str]:
    return [str(p) for p in Path(store.root).rglob("*.tmp")]


def test_bytes_come_back_as_they_were(store: ArtifactStore) -> None:
    data = bytes(range(256)) * 1000
    store.put_bytes("a/b c/'d'.bin", data)
    assert store.read_bytes("a/b c/'d'.bin") == data
    assert store.size("a/b c/'d'.bin") == len(data)
    assert leftovers(store) == []


def test_json_is_written_in_its_canonical_form(store: ArtifactStore) -> None:
    store.put_json("a.json", {"b": 1.0, "a": "é"})
    assert store.read_bytes("a.json") == '{"a":"é","b":1}'.encode()
    assert store.read_json("a.json") == {"a": "é", "b": 1}


def test_a_later_write_replaces_the_file_as_a_whole(store: ArtifactStore) -> None:
    store.put_bytes("x", b"a long first text")
    store.put_bytes("x", b"short")
    assert store.read_bytes("x") == b"short"


def test_readers_see_the_old_bytes_or_the_new_ones(store: ArtifactStore) -> None:
    texts = [b"a" * 200_000, b"b" * 300_000]
    store.put_bytes("x", texts[0])
    stop, seen = threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            seen.add(Path(store.full("x")).read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(30):
        store.put_bytes("x", texts[i % 2])
    stop.set()
    reader.join(20)
    assert seen <= set(texts)


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../../b", "../x"])
def test_a_path_that_leaves_the_root_is_refused(store: ArtifactStore, path: str) -> None:
    with pytest.raises(StoreError, match="relative"):
        store.put_bytes(path, b"")


def test_what_is_missing_is_named(store: ArtifactStore) -> None:
    with pytest.raises(NotFound, match=r"no/such\.json"):
        store.read_json("no/such.json")
    with pytest.raises(NotFound, match="x"):
        store.size("x")
    assert store.exists("x") is False
    assert store.listdir("nowhere") == []


def test_a_file_that_is_no_json_is_named(store: ArtifactStore) -> None:
    store.put_bytes("half.json", b'{"a": ')
    with pytest.raises(StoreError, match=r"half\.json is no JSON"):
        store.read_json("half.json")


def test_a_folder_is_brought_once_with_its_manifest_last(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "d", {"train.parquet": b"rows", "sub/info.json": b"{}"})
    assert store.put_folder(tmp_path / "d", "datasets/x", manifest) == "datasets/x"
    assert store.read_manifest("datasets/x") == manifest
    assert store.read_bytes("datasets/x/sub/info.json") == b"{}"
    before = os.stat(store.full("datasets/x/train.parquet")).st_mtime_ns
    store.put_folder(tmp_path / "d", "datasets/x", manifest)
    assert os.stat(store.full("datasets/x/train.parquet")).st_mtime_ns == before


def test_what_is_named_by_its_digest_is_read_only(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "d", {"train.parquet": b"rows"})
    store.put_folder(tmp_path / "d", "datasets/x", manifest)
    assert os.stat(store.full("datasets/x/train.parquet")).st_mode & 0o777 == 0o444


def test_a_local_file_that_is_not_what_its_manifest_says_is_not_brought(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "d", {"train.parquet": b"rows"})
    (tmp_path / "d" / "train.parquet").write_bytes(b"swor")
    with pytest.raises(IntegrityError, match=r"train\.parquet is corrupt"):
        store.put_folder(tmp_path / "d", "datasets/x", manifest)
    assert not store.exists("datasets/x/train.parquet")
    assert not store.exists("datasets/x/manifest.json")
    assert leftovers(store) == []


def test_a_broken_upload_goes_on_where_it_broke(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "d", {"a": b"first", "b": b"second"})
    second = (tmp_path / "d" / "b").rename(tmp_path / "hidden")
    with pytest.raises(FileNotFoundError):
        store.put_folder(tmp_path / "d", "datasets/x", manifest)
    assert (store.exists("datasets/x/a"), store.exists("datasets/x/manifest.json")) == (True, False)
    second.rename(tmp_path / "d" / "b")
    store.put_folder(tmp_path / "d", "datasets/x", manifest)
    store.verify_small("datasets/x", manifest)


def test_another_artifact_at_the_same_place_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    one = folder_of(tmp_path / "one", {"a": b"1"})
    two = folder_of(tmp_path / "two", {"a": b"2"})
    store.put_folder(tmp_path / "one", "datasets/x", one)
    with pytest.raises(IntegrityError, match=one.digest):
        store.put_folder(tmp_path / "two", "datasets/x", two)


def test_code_is_brought_once_by_digest(store: ArtifactStore) -> None:
    code = CodeTar(b"tar", sha256_bytes(b"tar"), ())
    assert store.put_code(code) == store.put_code(code) == f"code/{code.sha256.removeprefix('sha256:')}.tar"
    assert store.read_bytes(store.put_code(code)) == b"tar"


def test_attempts_are_listed_in_order_and_other_names_are_passed_over(store: ArtifactStore) -> None:
    for name in ("10-7.0", "2-9.0", "2-9.1", "notes", "2-9.1.tmp"):
        store.put_bytes(f"{RunDir(KEY).attempts}/{name}/x", b"")
    assert store.attempts(KEY) == [AttemptName(2, 9, 0), AttemptName(2, 9, 1), AttemptName(10, 7, 0)]
    assert store.attempts(some_digest("other")) == []


def test_an_attempt_without_a_report_has_none(store: ArtifactStore) -> None:
    assert store.report(KEY, "1-7.0") is None
    assert store.metrics(KEY, "1-7.0") == []
    store.put_json(f"{RunDir(KEY).attempt('1-7.0')}/report.json", report(KEY, "1-7.0", {}))
    found = store.report(KEY, "1-7.0")
    assert found is not None
    assert found.outcome == "complete"


def test_a_metrics_line_that_is_being_written_is_left_out(store: ArtifactStore) -> None:
    store.put_bytes(f"{RunDir(KEY).attempt('1-7.0')}/metrics.jsonl", b'{"step":1}\n{"step":2}\n{"st')
    assert store.metrics(KEY, "1-7.0") == [{"step": 1}, {"step": 2}]


def test_outputs_are_read_by_name(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "m", {"w": b"weights"}, "model")
    value = {"schema": "align/outputs/v1", "artifacts": {"policy": manifest.to_json()}}
    store.put_json(f"{RunDir(KEY).attempt('1-7.0')}/output/manifest.json", value)
    assert store.outputs(KEY, "1-7.0") == {"policy": manifest}


def test_sizes_are_compared_without_reading(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "m", {"w": b"weights", "x": b"y"}, "model")
    store.put_bytes("m/w", b"sthgiew")
    with pytest.raises(IntegrityError, match="m/x is missing"):
        store.check_sizes("m", manifest)
    store.put_bytes("m/x", b"y")
    store.check_sizes("m", manifest)
    with pytest.raises(IntegrityError, match="m/w is corrupt"):
        store.verify_small("m", manifest)
    store.verify_small("m", manifest, limit_bytes=3)
    store.put_bytes("m/w", b"longer weights")
    with pytest.raises(IntegrityError, match="has 14 bytes, its manifest says 7"):
        store.check_sizes("m", manifest)


def committed_base(store: ArtifactStore, tmp_path: Path, data: bytes = b"weights") -> tuple[Manifest, str]:
    manifest = folder_of(tmp_path / f"base-{data!r}", {"model.safetensors": data}, "base")
    path = f"{RunDir(KEY).attempt('1-7.0')}/output/base"
    store.put_bytes(f"{path}/model.safetensors", data)
    store.put_bytes(f"{path}/manifest.json", canonical_bytes(manifest.to_json()))
    return manifest, path


def test_a_base_is_published_as_a_relative_link(store: ArtifactStore, tmp_path: Path) -> None:
    manifest, path = committed_base(store, tmp_path)
    target = store.publish_base(manifest.digest, path)
    assert target == store.publish_base(manifest.digest, path) == f"bases/{manifest.digest.removeprefix('sha256:')}"
    assert os.readlink(store.full(target)) == f"../{path}"
    assert store.read_bytes(f"{target}/model.safetensors") == b"weights"


def test_a_link_whose_target_went_away_is_made_anew(store: ArtifactStore, tmp_path: Path) -> None:
    manifest, path = committed_base(store, tmp_path)
    target = store.full(store.publish_base(manifest.digest, path))
    os.unlink(target)
    os.symlink("../runs/gone", target)
    store.publish_base(manifest.digest, path)
    assert os.readlink(target) == f"../{path}"


def test_a_base_that_is_another_artifact_is_not_published(store: ArtifactStore, tmp_path: Path) -> None:
    _, path = committed_base(store, tmp_path)
    with pytest.raises(IntegrityError, match="holds"):
        store.publish_base(some_digest("other"), path)


def test_where_links_do_not_work_a_base_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def refuse(*_: object) -> None:
        raise OSError("Operation not permitted")

    (tmp_path / "store").mkdir()
    store = ArtifactStore(fsspec.filesystem("file"), str(tmp_path / "store"))
    manifest, path = committed_base(store, tmp_path)
    monkeypatch.setattr(os, "symlink", refuse)
    target = store.publish_base(manifest.digest, path)
    assert not os.path.islink(store.full(target))
    assert store.read_bytes(f"{target}/model.safetensors") == b"weights"
    assert store.read_manifest(target) == manifest


def test_a_folder_is_fetched_and_every_byte_checked(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "d", {"train.parquet": b"rows" * 100_000, "sub/x": b"x"})
    store.put_folder(tmp_path / "d", "datasets/x", manifest)
    local = store.fetch_folder("datasets/x", tmp_path / "here", manifest)
    assert build_manifest("dataset", local) == manifest
    (local / "sub/x").write_bytes(b"y")
    store.fetch_folder("datasets/x", local, manifest)
    assert (local / "sub/x").read_bytes() == b"x"


def test_a_corrupt_byte_is_found_when_fetching_and_nothing_appears(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = folder_of(tmp_path / "d", {"train.parquet": b"rows"})
    store.put_folder(tmp_path / "d", "datasets/x", manifest)
    store.put_bytes("datasets/x/train.parquet", b"rowz")
    with pytest.raises(IntegrityError, match=r"train\.parquet is corrupt"):
        store.fetch_folder("datasets/x", tmp_path / "here", manifest)
    assert not (tmp_path / "here" / "train.parquet").exists()


def test_removing_twice_is_removing_once(store: ArtifactStore) -> None:
    store.put_bytes("d/e/f", b"x")
    store.remove("d")
    store.remove("d")
    assert store.listdir("d") == []


def test_removing_a_link_leaves_what_it_points_at(store: ArtifactStore, tmp_path: Path) -> None:
    manifest, path = committed_base(store, tmp_path)
    target = store.publish_base(manifest.digest, path)
    store.remove(target)
    assert not os.path.islink(store.full(target))
    assert store.read_bytes(f"{path}/model.safetensors") == b"weights"


def test_verify_reads_every_byte_and_says_how_far_it_is(store: ArtifactStore, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, size in (("model-1.safetensors", 300), ("model-2.safetensors", 200)):
        (folder / name).write_bytes(bytes(size))
    made = build_manifest("model", folder)
    store.put_folder(folder, "models/one", made)
    told: list[str] = []
    store.verify("models/one", made, told.append)
    assert told == []  # it speaks once a gigabyte
    with open(folder / "model-1.safetensors", "rb") as first, open(folder / "model-2.safetensors", "rb") as second:
        hashing = Hashing(500, told.append, step_bytes=200)
        assert [hashing.sha256(first), hashing.sha256(second)] == [entry.sha256 for entry in made.files]
    assert told == ["0.0 of 0.0 GB verified"] * 2


def test_verify_finds_one_changed_byte_and_a_missing_file(store: ArtifactStore, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    made = build_manifest("model", folder)
    store.put_folder(folder, "models/one", made)
    there = Path(store.full("models/one/model.safetensors"))
    there.chmod(0o600)
    there.write_bytes(b"weightz")
    store.check_sizes("models/one", made)
    with pytest.raises(IntegrityError, match=r"model.safetensors is corrupt"):
        store.verify("models/one", made)
    there.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        store.verify("models/one", made)
