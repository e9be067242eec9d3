"""Scratch folders of the control plane, with several runs at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from include.domain.canonical import sha256_file
from include.flows import services
from include.flows.data_tasks import bring_source
from tests.flows.conftest import Plane


def test_each_run_has_a_folder_of_its_own_and_keeps_it_over_its_tries(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    one, other = plane.run(run_id="manual__1"), plane.run(run_id="manual__2")
    elsewhere = plane.run(run_id="manual__1", dag_id="build_dataset")
    folders = [services.run_dir(run, "build") for run in (one, one, other, elsewhere)]
    assert folders[0] == folders[1]
    assert len(set(folders)) == 3
    assert all(folder.is_dir() for folder in folders)


def test_runs_that_generate_the_same_base_at_once_bring_the_same_bytes(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    with ThreadPoolExecutor(8) as pool:
        brought = list(pool.map(lambda _: bring_source(plane.run()), range(8)))
    assert len({ref["sha256"] for ref in brought}) == 1
    stored = plane.store_root / f"sources/{brought[0]['sha256'].removeprefix('sha256:')}/{brought[0]['file']}"
    assert sha256_file(stored) == brought[0]["sha256"]
