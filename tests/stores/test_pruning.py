"""What leaves the store and what stays: by what the catalog knows, whole or not at all, recorded, and ended by the next pass when cut off."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest

from include import cli
from include.domain.layout import REFERENCE_CACHES, RunDir
from include.domain.spec import RunSpec
from include.stores import pruning
from include.stores.artifacts import ArtifactStore
from include.stores.catalog import Catalog
from include.stores.catalog.receipts import CatalogReceipts
from include.stores.errors import StoreError
from include.stores.pruning import Finding, Pruner, Rules, prune
from tests.stores.things import Clock, commit, manifest, spec

OWNER = {"dag_id": "train_sft", "run_id": "one", "task_id": "train", "map_index": -1}
LONG_AGO = 1_700_000_000.0


class Plane:
    """A store, its catalog, and runs in it whose files are old."""

    def __init__(self, store: ArtifactStore, catalog: Catalog, clock: Clock) -> None:
        self.store, self.catalog, self.clock = store, catalog, clock
        self.root = Path(store.root)
        self.receipts = CatalogReceipts(catalog.database.url.render_as_string(hide_password=False))
        self.receipts._db = catalog.database

    def planned(self, seed: int) -> RunSpec:
        asked = spec(seed=seed)
        self.catalog.runs.plan(asked)
        return asked

    def submitted(self, key: str, *, closed: bool = True) -> int:
        n = self.receipts.claim(key, OWNER).n
        if closed:
            self.receipts.close(key, n, _End())
        return n

    def checkpoint(self, key: str, attempt: str, name: str, *, keep: bool = False, size: int = 100, whole: bool = True) -> Path:
        folder = self.root / RunDir(key).attempt(attempt) / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"w" * size)
        step = int(name.removeprefix("step-").partition(".")[0])
        files = [{"path": "model.safetensors", "size": size if whole else size + 1, "sha256": "sha256:" + "0" * 64}]
        (folder / "manifest.json").write_text(json.dumps({"key": key, "step": step, "keep": keep, "files": files}))
        os.utime(folder, (LONG_AGO, LONG_AGO))
        return folder

    def findings(self, **rules: Any) -> list[Finding]:
        return list(self.pruner(**rules).findings())

    def pruner(self, **rules: Any) -> Pruner:
        return Pruner(self.catalog, self.store, Rules(**rules), self.clock())

    def apply(self) -> list[str]:
        said: list[str] = []
        prune(self.catalog, self.store, Rules(), "olga", apply=True, say=said.append)
        return said

    def left(self, key: str) -> list[str]:
        root = self.root / RunDir(key).attempts
        return sorted(path.relative_to(root).as_posix() for path in root.glob("*/checkpoints/*"))


class _End:
    def to_json(self) -> dict[str, Any]:
        return {"outcome": "ended", "cause": "time_limit", "detail": "", "view": None, "closed_by": "task"}


@pytest.fixture
def plane(store: ArtifactStore, sqlite_catalog: Catalog, clock: Clock) -> Plane:
    return Plane(store, sqlite_catalog, clock)


def _committed(plane: Plane, seed: int = 1) -> str:
    asked = spec(seed=seed)
    commit(plane.catalog, asked, {"policy": manifest("policy")}, "2-8.0")
    for attempt, name in (("1-7.0", "step-3"), ("1-7.0", "step-6.tmp"), ("2-8.0", "step-9")):
        plane.checkpoint(asked.key, attempt, name)
    output = plane.root / RunDir(asked.key).attempt("2-8.0") / "output" / "policy" / "model.safetensors"
    output.parent.mkdir(parents=True)
    output.write_text("what releases are made of")
    return asked.key


def test_all_checkpoints_of_a_committed_key_go_and_its_outputs_stay(plane: Plane) -> None:
    key = _committed(plane)
    plane.clock.forward(days=15)
    said = plane.apply()
    assert plane.left(key) == []
    assert (plane.root / RunDir(key).attempt("2-8.0") / "output" / "policy" / "model.safetensors").exists()
    assert "removed" in said[0]
    assert key in said[0]
    assert "1-7.0/step-3, 1-7.0/step-6.tmp, 2-8.0/step-9" in said[0]
    (row,) = plane.catalog.ledger.entries(kind="removed_from_store")
    assert (row.actor, row.subject, row.payload["store"]) == ("olga", key, plane.store.uri)
    assert [item["path"].rpartition("/")[2] for item in row.payload["removed"]] == ["step-3", "step-6.tmp", "step-9"]
    assert all(item["size_bytes"] > 100 for item in row.payload["removed"])
    assert plane.catalog.ledger.verify() == 1
    plane.apply()
    assert len(plane.catalog.ledger.entries(kind="removed_from_store")) == 1, "the same again finds nothing"


def test_without_apply_it_only_says_what_would_go_and_how_much(plane: Plane) -> None:
    key = _committed(plane)
    plane.clock.forward(days=15)
    before, said = plane.left(key), list[str]()
    total = prune(plane.catalog, plane.store, Rules(), "olga", apply=False, say=said.append)
    assert plane.left(key) == before
    assert total == sum(path.stat().st_size for path in (plane.root / RunDir(key).root).glob("attempts/*/checkpoints/*/*")) > 300
    assert said[0].startswith("would remove")
    assert said[-1].endswith("would be removed; nothing was: say --apply to do it")
    assert plane.catalog.ledger.entries(kind="removed_from_store") == []


def test_a_long_pass_says_how_far_it_is(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (1, 2, 3):
        _committed(plane, seed)
    assert not any("looked at" in line for line in plane.apply())
    monkeypatch.setattr(pruning, "TOLD_EVERY_S", 0.0)
    assert [line for line in plane.apply() if "looked at" in line] == [f"{n} of 3 runs looked at" for n in (1, 2, 3)]


def test_of_a_run_that_may_go_on_the_newest_whole_ones_and_the_protected_stay(plane: Plane) -> None:
    key = plane.planned(1).key
    for attempt, name, more in (
        ("1-7.0", "step-2", {"keep": True}),
        ("1-7.0", "step-3", {}),
        ("2-8.0", "step-6", {}),
        ("2-8.0", "step-9", {}),
        ("2-8.0", "step-12", {}),
        ("2-8.0", "step-15", {"whole": False}),
        ("2-8.0", "step-18.tmp", {}),
        ("3-9.0", "step-4", {}),
        ("3-9.0", "step-21.tmp", {}),
    ):
        plane.checkpoint(key, attempt, name, **more)
    plane.submitted(key)
    plane.clock.forward(days=15)
    plane.apply()
    stay = ["1-7.0/checkpoints/step-2", "2-8.0/checkpoints/step-12", "2-8.0/checkpoints/step-9"]
    assert plane.left(key) == [*stay, "3-9.0/checkpoints/step-21.tmp", "3-9.0/checkpoints/step-4"]


def test_where_no_checkpoint_is_whole_nothing_goes(plane: Plane) -> None:
    key = plane.planned(1).key
    for attempt in ("1-7.0", "2-8.0"):
        plane.checkpoint(key, attempt, "step-3", whole=False)
    plane.submitted(key)
    plane.clock.forward(days=15)
    (found,) = plane.findings()
    assert not found.doomed
    assert "none of its checkpoints is whole" in found.reason


def test_young_live_unknown_and_never_submitted_runs_are_left_alone(plane: Plane) -> None:
    live, idle = plane.planned(1).key, plane.planned(2).key
    strange, young = spec(seed=3).key, _committed(plane, 4)
    for key in (live, idle, strange):
        for n, step in ((1, 3), (2, 6), (3, 9), (4, 12)):
            plane.checkpoint(key, f"{n}-7.0", f"step-{step}")
    plane.submitted(live)
    plane.submitted(live, closed=False)
    plane.clock.forward(days=13)
    reasons = {found.subject: found.reason for found in plane.findings()}
    assert reasons == {
        live: "a submission of it is live",
        idle: "no submission of it is known, so its jobs are not either",
        strange: "this catalog does not know it",
        young: "it is too young",
    }
    assert all(not found.doomed for found in plane.findings())
    assert plane.findings(older_than=timedelta(days=12))[[f.subject for f in plane.findings()].index(young)].doomed


def test_a_committed_run_with_a_live_submission_and_files_that_were_just_written_are_left_alone(plane: Plane) -> None:
    key, other = _committed(plane, 1), _committed(plane, 2)
    plane.submitted(key, closed=False)
    plane.clock.forward(days=15)
    now = plane.clock().timestamp()
    for folder in (plane.root / RunDir(other).root).glob("attempts/*/checkpoints/*"):
        os.utime(folder, (now, now))
    before = plane.left(key), plane.left(other)
    plane.apply()
    assert (plane.left(key), plane.left(other)) == before


def test_a_key_that_gets_a_job_between_looking_and_removing_is_left_alone(plane: Plane) -> None:
    key = _committed(plane)
    plane.clock.forward(days=15)
    pruner = plane.pruner()
    (found,) = pruner.findings()
    assert found.doomed
    plane.submitted(key, closed=False)
    assert pruner.remove(found, "olga") == 0
    assert len(plane.left(key)) == 3


def test_links_are_never_followed(plane: Plane, tmp_path: Path) -> None:
    key, linked = _committed(plane, 1), _committed(plane, 2)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "step-3").mkdir(parents=True)
    (elsewhere / "step-3" / "precious").write_text("stays")
    checkpoints = plane.root / RunDir(key).attempt("1-7.0") / "checkpoints"
    (checkpoints / "step-99").symlink_to(elsewhere / "step-3")
    (checkpoints / "step-3" / "inside").symlink_to(elsewhere)
    whole = plane.root / RunDir(linked).attempt("5-1.0")
    whole.mkdir()
    (whole / "checkpoints").symlink_to(elsewhere)
    run = plane.root / "runs" / ("f" * 64)
    run.symlink_to(plane.root / RunDir(linked).root)
    os.utime(checkpoints / "step-3", (LONG_AGO, LONG_AGO))
    plane.clock.forward(days=15)
    plane.apply()
    assert plane.left(key) == ["1-7.0/checkpoints/step-99"]
    assert (elsewhere / "step-3" / "precious").read_text() == "stays"


def test_a_checkpoint_in_which_an_artifact_is_registered_stays(plane: Plane) -> None:
    key = _committed(plane)
    path = f"{RunDir(key).attempt('2-8.0')}/checkpoints/step-9/export"
    plane.catalog.artifacts.add_location(manifest("export").digest, plane.store.uri, path)
    plane.clock.forward(days=15)
    plane.apply()
    assert plane.left(key) == ["2-8.0/checkpoints/step-9"]


@pytest.mark.parametrize("moment", ["after the rename", "after the record", "while deleting"])
def test_cut_off_anywhere_the_next_pass_ends_it(plane: Plane, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = _committed(plane)
    plane.clock.forward(days=15)
    removed: list[str] = []
    remove = ArtifactStore.remove

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def dies_second(self: ArtifactStore, path: str) -> None:
        if path.endswith(".removed") and self.exists(path):
            removed.append(path)
            if len(removed) == 2 or moment == "after the record":
                raise KeyboardInterrupt
        remove(self, path)

    with monkeypatch.context() as patch:
        if moment == "after the rename":
            patch.setattr(type(plane.catalog.ledger), "append", dies)
        else:
            patch.setattr(ArtifactStore, "remove", dies_second)
        with pytest.raises(KeyboardInterrupt):
            plane.apply()
    assert all(name.endswith(".removed") for name in plane.left(key))
    assert plane.left(key)
    for folder in (plane.root / RunDir(key).root).glob("attempts/*/checkpoints/*"):
        os.utime(folder, (LONG_AGO, LONG_AGO))
    plane.apply()
    assert plane.left(key) == []
    rows = plane.catalog.ledger.entries(kind="removed_from_store")
    told = sorted(item["path"].rpartition("/")[2] for row in rows for item in row.payload["removed"])
    assert told == ["step-3", "step-6.tmp", "step-9"], "each removal is on record, once"


def test_a_cache_that_no_run_reads_goes_and_a_used_one_stays(plane: Plane) -> None:
    used, unused = (plane.root / REFERENCE_CACHES / (digit * 64) for digit in "ab")
    for folder in (used, unused):
        folder.mkdir(parents=True)
        (folder / "train-0-8.safetensors").write_bytes(b"x" * 50)
    os.utime(unused, (LONG_AGO, LONG_AGO))
    now = plane.clock().timestamp()
    os.utime(used, (now, now))
    plane.apply()
    assert (used.exists(), unused.exists()) == (True, False)
    (row,) = plane.catalog.ledger.entries(kind="removed_from_store")
    assert (row.subject, row.payload["what"]) == (f"sha256:{'b' * 64}", "cache")


def test_rules_that_would_lose_a_run_are_refused(plane: Plane) -> None:
    with pytest.raises(StoreError, match="at least the newest whole checkpoint must stay"):
        Rules(keep=0)
    with pytest.raises(StoreError, match="must not be negative"):
        Rules(older_than=timedelta(days=-1))
    with pytest.raises(StoreError, match="object store"):
        Pruner(plane.catalog, ArtifactStore(fsspec.filesystem("memory"), "/store"), Rules(), plane.clock())


def test_the_names_are_the_runtimes() -> None:
    runtime = pytest.importorskip("include.runtime.checkpoint")
    assert (pruning.CHECKPOINTS, pruning.ASIDE, pruning.REMOVED) == (runtime.FOLDER, runtime.ASIDE, runtime.REMOVED)


def test_the_command_removes_with_apply_alone(
    sqlite_catalog: Catalog, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").mkdir()
    store = ArtifactStore(fsspec.filesystem("file"), str(tmp_path / "store"))
    key = _committed(Plane(store, sqlite_catalog, clock))
    monkeypatch.setenv("ALIGN_CATALOG_URL", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("ALIGN_STORE_ROOT", str(tmp_path / "store"))
    folders = list((tmp_path / "store").glob("runs/*/attempts/*/checkpoints/*"))
    assert cli.main(["prune"]) == 0
    assert f"would remove        0.0 MB  sft           {key}" in capsys.readouterr().out
    assert all(folder.exists() for folder in folders)
    assert cli.main(["prune", "--apply", "--who", "olga"]) == 0
    assert "removed        0.0 MB" in capsys.readouterr().out
    assert not any(folder.exists() for folder in folders)
    assert sqlite_catalog.ledger.entries(kind="removed_from_store")[0].actor == "olga"
    assert cli.main(["prune", "--keep", "0"]) == 1
    assert "at least the newest whole checkpoint must stay" in capsys.readouterr().err
    monkeypatch.setenv("ALIGN_STORE_ROOT", str(tmp_path / "nowhere"))
    assert cli.main(["prune"]) == 1
    assert "is not a folder here" in capsys.readouterr().err
