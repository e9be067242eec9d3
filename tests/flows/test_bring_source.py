"""A base of several files: each is compared with its pin before it is brought, and none is brought unpinned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from include.cli import main
from include.domain.canonical import sha256_bytes
from include.domain.layout import source_dir
from include.domain.manifest import Manifest
from include.flows.data_tasks import bring_source
from include.flows.errors import FlowError
from include.flows.stage_work import plan
from tests.flows.conftest import Plane

FILES = {"config.json": b"{}", "tokenizer.json": b"{ }", "model-1.safetensors": b"one", "model-2.safetensors": b"two"}
PINS = {name: sha256_bytes(data) for name, data in FILES.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "sources" / "some-model"
    made.mkdir(parents=True)
    for name, data in FILES.items():
        (made / name).write_bytes(data)
    (made / "pytorch_model.bin").write_bytes(b"a pickle")
    (made / "modeling.py").write_text("print()")
    monkeypatch.setenv("ALIGN_SOURCES", str(tmp_path / "sources"))
    return made


def asking(plane: Plane, **source: Any) -> dict[str, Any]:
    body = {"kind": "safetensors", "path": "some-model", "files": PINS, **source}
    plane.change_recipe("tiny", base_source=body, base={"kind": "safetensors", "file": "some-model"})
    return plane.run()


def test_pinned_files_are_brought_under_a_manifest_and_nothing_else(plane: Plane, folder: Path) -> None:
    run = asking(plane, repository="team/some-model", revision="a" * 40)
    ref = bring_source(run)
    there = plane.store_root / source_dir(ref["sha256"])
    assert sorted(path.name for path in there.iterdir()) == sorted([*FILES, "manifest.json"])
    assert Manifest.from_json(json.loads((there / "manifest.json").read_text())).digest == ref["sha256"]
    assert bring_source(run) == ref
    made = plan("base_import", run, {"source": ref})
    assert made.spec.inputs == {"model": ref["sha256"]}
    assert made.spec.config["kind"] == "safetensors"


def test_where_a_model_is_from_is_no_part_of_its_identity(plane: Plane, folder: Path) -> None:
    named = bring_source(asking(plane, repository="team/some-model"))
    assert bring_source(asking(plane)) == named


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [("model-1.safetensors", b"other", "the recipe pins sha256:"), ("tokenizer.json", None, "tokenizer.json is missing")],
)
def test_a_file_that_is_not_the_pinned_one_is_refused(plane: Plane, folder: Path, name: str, data: bytes | None, words: str) -> None:
    run = asking(plane)
    (folder / name).unlink()
    if data is not None:
        (folder / name).write_bytes(data)
    with pytest.raises(FlowError, match=words):
        bring_source(run)


def test_an_unpinned_folder_is_refused_and_pin_prints_what_is_missing(
    plane: Plane, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FlowError, match="pins no file of .*some-model: fetch the model at a commit into it"):
        bring_source(asking(plane, files={}))
    assert main(["pin", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == ["  files:", *(f'    {name}: "{PINS[name]}"' for name in sorted(FILES))]
    assert main(["pin", str(folder.parent)]) == 1
