"""An attempt's scratch is gone with it, also that of one which was killed; the node's temporary folder is left alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from include.training.examples.scratch import clear_older
from tests.training.harness import SFT, Store

KILL = str(Path(__file__).with_name("kill_at.py"))


def test_what_a_killed_attempt_left_goes_with_the_next_and_nothing_lies_on_the_node(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spec = store.spec("sft", {"base": "base", "demonstrations": "demonstrations"}, {**SFT, "steps": 2}, salt="scratch")
    killed = store.run(spec, 1, [KILL, spec.program, "update", "1"])
    assert killed.code == -signal.SIGKILL, killed.stderr
    left = sorted(path.name for path in killed.folder.glob("scratch/0/*"))
    assert left == ["datasets-demonstrations-train", "datasets-demonstrations-validation"]
    assert list((killed.folder / "scratch").rglob("*.arrow"))
    done = store.run(spec, 2)
    assert done.code == 0, done.stderr
    assert [path for path in (killed.folder / "scratch", done.folder / "scratch") if path.exists()] == []
    assert [path.name for path in tmp_path.iterdir() if "datasets" in path.name] == []


def test_only_the_scratch_of_attempts_that_one_supersedes_is_removed(tmp_path: Path) -> None:
    for name in ("1-7.0", "2-8.0", "2-9.0", "2-9.1", "2-9.2", "3-10.0", "notes"):
        (tmp_path / name / "scratch").mkdir(parents=True)
    clear_older(tmp_path, "2-9.1")
    assert sorted(path.parent.name for path in tmp_path.glob("*/scratch")) == ["2-8.0", "2-9.1", "2-9.2", "3-10.0", "notes"]
