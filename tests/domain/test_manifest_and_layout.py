"""Manifests and the store's layout."""

from pathlib import Path

import pytest

from include.domain.errors import IntegrityError, RecordError
from include.domain.layout import AttemptName, RunDir, checkpoint_step
from include.domain.manifest import FileEntry, Manifest, build_manifest, verify_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "sub" / "b.bin").write_bytes(b"\x00\x01")
    return tmp_path


def test_the_digest_is_of_the_payload_alone(folder: Path) -> None:
    first = build_manifest("model", folder, {"made": "today"})
    (folder / "manifest.json").write_text("{}")
    second = build_manifest("model", folder, {"made": "tomorrow"})
    assert first.digest == second.digest
    assert Manifest.from_json(first.to_json()) == first


def test_one_flipped_byte_is_named(folder: Path) -> None:
    manifest = build_manifest("model", folder)
    (folder / "sub" / "b.bin").write_bytes(b"\x00\x02")
    verify_files(manifest, folder, hashes=False)
    with pytest.raises(IntegrityError, match="sub/b.bin is corrupt"):
        verify_files(manifest, folder)


@pytest.mark.parametrize(("text", "words"), [("longer", "has 6 bytes"), (None, "missing")])
def test_a_missing_or_cut_file_is_named(folder: Path, text: str | None, words: str) -> None:
    manifest = build_manifest("model", folder)
    (folder / "a.txt").unlink() if text is None else (folder / "a.txt").write_text(text)
    with pytest.raises(IntegrityError, match=words):
        verify_files(manifest, folder, hashes=False)


def test_a_manifest_that_lies_about_itself_is_refused(folder: Path) -> None:
    value = build_manifest("model", folder).to_json()
    value["files"][0]["size"] += 1
    with pytest.raises(IntegrityError):
        Manifest.from_json(value)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../b", "", "a\\b"])
def test_a_path_out_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(RecordError):
        FileEntry(path, 1, "sha256:" + "0" * 64)


def test_a_link_is_no_payload(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/hosts")
    with pytest.raises(IntegrityError, match="link"):
        build_manifest("model", folder)


def test_newer_attempts() -> None:
    """A greater n, or the same n and job with a greater restart; the same n under another job id is not newer."""
    first = AttemptName.parse("1-100.0")
    assert AttemptName(2, 50, 0).newer_than(first)
    assert AttemptName(1, 100, 1).newer_than(first)
    assert not AttemptName(1, 101, 5).newer_than(first)
    assert not first.newer_than(first)
    assert str(first) == "1-100.0"


def test_no_colon_and_no_escape_in_paths() -> None:
    run = RunDir("sha256:" + "a" * 64)
    assert run.attempt("1-2.0") == f"runs/{'a' * 64}/attempts/1-2.0"
    with pytest.raises(RecordError):
        run.attempt("../../etc")


@pytest.mark.parametrize(
    ("name", "step"), [("step-200", 200), ("step-1000", 1000), ("step-3.tmp", None), ("step-3.bak", None), ("step-", None)]
)
def test_only_whole_names_are_checkpoints(name: str, step: int | None) -> None:
    assert checkpoint_step(name) == step
