"""Inputs are verified before use: one wrong byte is refused by the name of input and file."""

import json
from pathlib import Path
from typing import Any

import pytest

from include.domain.canonical import digest, sha256_bytes
from include.domain.manifest import MANIFEST, build_manifest
from include.domain.spec import InputPlace, Placement, RunSpec
from include.runtime.errors import InputError
from include.runtime.inputs import verify_input, verify_inputs, verify_raw

SOME = digest("test", {"some": "thing"})


def _model(folder: Path) -> InputPlace:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(200)))
    manifest = build_manifest("model", folder)
    (folder / MANIFEST).write_text(json.dumps(manifest.to_json()))
    return InputPlace(str(folder), manifest.digest, manifest.digest)


def _dataset(folder: Path, content_hash: str) -> InputPlace:
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps({"content_hash": content_hash}))
    manifest = build_manifest("dataset", folder)
    (folder / MANIFEST).write_text(json.dumps(manifest.to_json()))
    return InputPlace(str(folder), SOME, manifest.digest)


def _run(inputs: dict[str, str], places: dict[str, InputPlace]) -> tuple[RunSpec, Placement]:
    fields: dict[str, Any] = {"config": {"a": 1}, "seed": 1, "tokenizer": SOME, "chat_template": SOME, "environment": SOME}
    spec = RunSpec("sft", "include.training.sft", inputs, SOME, **fields)
    return spec, Placement(spec.key, 1, "/run", places, {}, {})


def test_a_folder_that_fits_its_manifest_and_digest_is_given(tmp_path: Path) -> None:
    place = _model(tmp_path / "base")
    assert verify_inputs(*_run({"base": place.digest}, {"base": place})) == {"base": tmp_path / "base"}


def test_one_wrong_byte_is_refused_by_name(tmp_path: Path) -> None:
    place = _model(tmp_path / "base")
    path = tmp_path / "base" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(InputError, match=r"input policy: .*model.safetensors is corrupt"):
        verify_input("policy", place)


def test_a_folder_of_another_digest_is_refused(tmp_path: Path) -> None:
    place = _model(tmp_path / "base")
    with pytest.raises(InputError, match=f"asked for is {SOME}"):
        verify_input("base", InputPlace(place.path, SOME, SOME))


def test_a_manifest_that_was_edited_to_fit_is_refused(tmp_path: Path) -> None:
    place = _model(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text('{"a":1}')
    (tmp_path / "base" / MANIFEST).write_text(json.dumps(build_manifest("model", tmp_path / "base").to_json()))
    with pytest.raises(InputError, match="asked for is"):
        verify_input("base", place)


def test_a_missing_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"input base: .*manifest.json is not there"):
        verify_input("base", InputPlace(str(tmp_path / "nowhere"), SOME, SOME))


def test_a_dataset_is_known_by_its_content_hash(tmp_path: Path) -> None:
    assert verify_input("demonstrations", _dataset(tmp_path / "right", SOME)).kind == "dataset"
    with pytest.raises(InputError, match="says content_hash other"):
        verify_input("demonstrations", _dataset(tmp_path / "wrong", "other"))


def test_an_input_that_placement_does_not_place_or_places_as_another_is_refused(tmp_path: Path) -> None:
    place = _model(tmp_path / "base")
    with pytest.raises(InputError, match="nothing about input base"):
        verify_inputs(*_run({"base": place.digest}, {"policy": place}))
    with pytest.raises(InputError, match=r"input base: the specification names"):
        verify_inputs(*_run({"base": SOME}, {"base": place}))


def test_a_raw_file_is_verified_by_its_own_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"abc")
    assert verify_raw("source", tmp_path, "x.gguf", sha256_bytes(b"abc")) == tmp_path / "x.gguf"
    with pytest.raises(InputError, match=r"input source: .*x.gguf is corrupt"):
        verify_raw("source", tmp_path, "x.gguf", sha256_bytes(b"abd"))
    with pytest.raises(InputError, match="is not a file"):
        verify_raw("source", tmp_path / "sub", "../x.gguf", sha256_bytes(b"abc"))
