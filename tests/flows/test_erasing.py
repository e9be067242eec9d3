"""Erasing persons and prompts: found everywhere, taken away in an order that can be repeated, and never let in again."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.receipts import JobEnd
from include.domain.layout import RunDir
from include.domain.manifest import build_manifest
from include.domain.records import Prompt
from include.domain.spec import Report
from include.flows import erasing, services
from include.flows.data_tasks import publish
from include.flows.erasing import Asked, erase
from include.flows.errors import FlowError
from include.flows.preference_tasks import local_dataset
from include.stores.catalog.receipts import CatalogReceipts
from include.stores.errors import Erased, StoreError, Tainted
from include.transforms.datasets_io import DatasetHeader, SidedRow, write_dataset
from tests.data.labels import prompt
from tests.flows.conftest import Plane
from tests.stores.things import deploy, release, spec

SECRET = "Question 1?"
ADA, EVE = "person-ada", "person-eve"


class Service:
    """At the process edge: the annotation service, which is told which prompts to forget."""

    def __init__(self) -> None:
        self.erased: list[str] = []

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None: ...

    def erase_prompts(self, prompt_ids: list[str]) -> int:
        self.erased += prompt_ids
        return len(prompt_ids)


class World:
    """Prompts of two persons, candidates for all of them, and a champion that learnt from the candidates."""

    def __init__(self, plane: Plane, folder: Path, service: Service) -> None:
        self.plane, self.folder, self.service = plane, folder, service
        self.catalog, self.store = services.catalog(), services.store()
        people = [replace(prompt(n, "none"), subject_ref=ADA if n == 1 else EVE) for n in range(1, 4)]
        self.of_ada = people[0]
        self.prompts = self.dataset("prompts", people)
        self.others = self.dataset("others", [replace(prompt(n, "none"), subject_ref=EVE) for n in range(7, 9)])
        self.candidates = self.run("generate", {"prompts": self.prompts["content_hash"]}, "candidates", "candidate_set", SECRET)
        self.policy = self.run("dpo", {"preferences": self.candidates}, "policy", "model", "weights")
        release(self.catalog, deploy(self.catalog, "helper", self.policy))

    def dataset(self, name: str, prompts: list[Prompt]) -> dict[str, Any]:
        rows = [SidedRow(p.prompt_id, "train", p.split_group, "preference", p.to_json()) for p in prompts]
        return publish(write_dataset(self.folder / name, DatasetHeader(name, "prompt", "f1"), rows), "project", "w")

    def run(self, stage: str, inputs: dict[str, str], output: str, kind: str, text: str, **changes: Any) -> str:
        asked = spec(stage, inputs=inputs, **changes)
        attempt = RunDir(asked.key).attempt("1-7.0")
        made = self.folder / asked.key.removeprefix("sha256:")
        made.mkdir()
        (made / "file").write_text(text)
        manifest = build_manifest(kind, made)
        self.store.put_folder(made, f"{attempt}/output/{output}", manifest)
        self.store.put_bytes(f"{attempt}/checkpoints/step-3/rows", text.encode())
        self.store.put_bytes(f"{attempt}/stdout", text.encode())
        report = Report(asked.key, "1-7.0", "complete", "last_step", 0, 10, 10, {}, {output: manifest.digest}).to_json()
        self.store.put_json(f"{attempt}/report.json", report)
        self.catalog.runs.plan(asked)
        self.catalog.runs.commit_attempt(asked.key, "1-7.0", report, {output: manifest.to_json()}, self.store.uri)
        return manifest.digest

    def kept(self) -> str:
        """Every byte below the store and the control plane's scratch, as text."""
        folders = (self.plane.store_root, services.work_dir())
        return "\n".join(p.read_bytes().decode("latin-1") for folder in folders for p in sorted(folder.rglob("*")) if p.is_file())

    def holds(self, ref: dict[str, Any]) -> bool:
        return (self.plane.store_root / "datasets" / ref["content_hash"].removeprefix("sha256:")).exists()


@pytest.fixture
def world(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    key = tmp_path / "suppression.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    service = Service()
    monkeypatch.setenv("ALIGN_SUPPRESSION_KEY", str(key))
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    monkeypatch.setattr(services, "annotation", lambda role: service)
    return World(plane, tmp_path, service)


def asked(**changes: Any) -> Asked:
    return Asked(**{"subjects": (ADA,), "prompts": (), "why": "asked to be forgotten", "who": "olga", "apply": True, **changes})


def test_without_apply_it_only_says_what_would_go(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = world.kept()
    found = erase(asked(apply=False))
    assert (found["datasets"], found["prompts"], found["applied"]) == (["project-prompts@1"], 1, False)
    assert found["artifacts"] == sorted([world.candidates, world.prompts["artifact"]])
    assert (found["models"], found["champions"]) == ([world.policy], {"helper": None})
    assert "project-prompts@1: 1 rows" in capsys.readouterr().out
    assert set(before.splitlines()) <= set(world.kept().splitlines())
    assert world.catalog.ledger.entries(kind="erasure") == []
    assert world.service.erased == []


def test_the_texts_go_and_everything_else_stays(world: World) -> None:
    local_dataset(world.prompts)
    erase(asked())
    assert SECRET not in world.kept()
    assert (world.holds(world.prompts), world.holds(world.others)) == (False, True)
    assert world.service.erased == [world.of_ada.prompt_id]
    assert world.catalog.artifacts.locations(world.candidates) == []
    assert world.catalog.artifacts.locations(world.policy) != []
    rows = world.catalog.ledger.entries(kind="erasure")
    assert {row.subject for row in rows} == {world.candidates, world.prompts["artifact"]}
    assert {(row.actor, row.payload["why"]) for row in rows} == {("olga", "asked to be forgotten")}
    assert ADA not in json.dumps([row.to_json() for row in rows])


def test_what_a_model_judge_keeps_of_answers_goes_with_them(world: World) -> None:
    """Its runs are of the stage `evaluate`, by another program."""
    asked_judge = {"answers": world.candidates, "suite_chat": world.others["content_hash"]}
    verdicts = world.run("evaluate", asked_judge, "judgements", "report", "verdicts", program="include.eval.judge")
    key = world.catalog.runs.producing(verdicts)[0].key
    erase(asked())
    left = {path.name for path in (world.plane.store_root / RunDir(key).attempt("1-7.0")).iterdir()}
    assert left == {"output", "report.json"}


def test_a_reader_is_told_that_it_was_erased(world: World) -> None:
    erase(asked())
    with pytest.raises(Erased, match="was erased by olga at .*: asked to be forgotten"):
        local_dataset(world.prompts)
    facts = world.catalog.lineage.trace(world.prompts["content_hash"]).facts
    assert facts["erased"].startswith("asked to be forgotten (by olga at ")


def test_what_learnt_from_them_stays_releasable_where_a_person_says_so_and_no_longer(world: World) -> None:
    erase(asked(taint=False))
    assert world.catalog.releases.tainted(world.policy) is None
    erase(asked(prompts=(prompt(2).prompt_id,), subjects=()))
    assert world.catalog.releases.tainted(world.policy) is None, "another request has nothing to do with it"
    erase(asked(taint=True))
    assert world.catalog.releases.tainted(world.policy) is not None


def test_candidates_of_a_model_that_learnt_from_them_stay(world: World) -> None:
    """They went into its weights, and not into what it says to others' prompts."""
    later = world.run(
        "generate", {"prompts": world.others["content_hash"], "policy": world.policy}, "more", "candidate_set", "others' answers"
    )
    assert later not in erase(asked())["artifacts"]
    assert world.catalog.artifacts.locations(later) != []


def test_what_a_job_wrote_that_was_still_at_work_goes_with_the_same_call_again(world: World) -> None:
    late = spec("generate", inputs={"prompts": world.prompts["content_hash"]}, seed=7)
    world.catalog.runs.plan(late)
    receipts = CatalogReceipts(world.plane.catalog_url)
    receipts.claim(late.key, {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1})
    world.store.put_bytes(f"{RunDir(late.key).attempt('1-9.0')}/checkpoints/step-3/rows", SECRET.encode())
    (left,) = erase(asked())["left"]
    assert left.startswith(f"a job of generate {late.key} is at work")
    receipts.close(late.key, 1, JobEnd("succeeded"))
    world.run("generate", {"prompts": world.prompts["content_hash"]}, "candidates", "candidate_set", SECRET, seed=7)
    assert SECRET in world.kept()
    assert erase(asked())["left"] == []
    assert SECRET not in world.kept()


def test_the_same_prompt_without_the_person_goes_too(world: World) -> None:
    again = world.dataset("again", [replace(world.of_ada, subject_ref=None)])
    assert again["content_hash"] not in (world.prompts["content_hash"], world.others["content_hash"])
    assert erase(asked())["datasets"] == ["project-again@1", "project-prompts@1"]
    assert not world.holds(again)


def test_a_version_that_lies_elsewhere_is_named_and_holds_up_nothing(world: World) -> None:
    far = world.dataset("far", [replace(prompt(20), subject_ref=EVE)])
    folder = f"datasets/{far['content_hash'].removeprefix('sha256:')}"
    world.store.remove(folder)
    world.catalog.artifacts.forget_location(far["artifact"], world.store.uri, folder)
    world.catalog.artifacts.add_location(far["artifact"], "s3://bucket", "far")
    assert erase(asked())["left"] == ["project-far@1 was not read, it lies only in s3://bucket/far"]
    assert SECRET not in world.kept()


def test_outputs_that_were_never_committed_go_and_young_scratch_is_named(world: World) -> None:
    for name, age_s in (("old", 2 * 24 * 3600), ("young", 60)):
        folder = services.work_dir() / "build" / name
        folder.mkdir(parents=True)
        (folder / "rows").write_text(SECRET if name == "old" else "somebody else's rows")
        os.utime(folder, (time.time() - age_s,) * 2)
    key = world.catalog.runs.producing(world.candidates)[0].key
    world.store.put_bytes(f"{RunDir(key).attempt('2-8.0')}/output/candidates/file", SECRET.encode())
    (left,) = erase(asked())["left"]
    assert left.startswith(str(services.work_dir() / "build" / "young"))
    assert SECRET not in world.kept()


def test_another_key_is_seen_as_such(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With it nobody would be recognised any more, and all would come in again."""
    erase(asked())
    other = tmp_path / "other.key"
    other.write_bytes(b"o" * 32)
    other.chmod(0o600)
    monkeypatch.setenv("ALIGN_SUPPRESSION_KEY", str(other))
    with pytest.raises(StoreError, match="not the key that persons were suppressed with"):
        services.suppression()
    with pytest.raises(StoreError, match="not the key"):
        erase(asked(subjects=(EVE,)))


def test_who_erases_is_known_by_name_and_where_the_site_says_so_on_a_list(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FlowError, match="nobody is known"):
        asked(who="")
    monkeypatch.setenv("ALIGN_DATA_STEWARDS", "ada, olga")
    assert asked().who == "olga"
    with pytest.raises(FlowError, match="eve may not take data back; these may: ada, olga"):
        asked(who="eve")


def test_taint(world: World) -> None:
    erase(asked())
    assert (world.catalog.releases.tainted(world.policy) or "").endswith("erased: asked to be forgotten")
    with pytest.raises(Tainted):
        release(world.catalog, deploy(world.catalog, "another", world.policy))


def test_the_same_again_changes_nothing(world: World) -> None:
    erase(asked())
    rows = world.catalog.ledger.entries()
    erase(asked())
    assert world.catalog.ledger.entries() == rows


@pytest.mark.parametrize("step", ["suppress", "service", "ledger", "bytes", "place"])
def test_a_call_that_died_is_done_by_the_same_call_again(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    place: dict[str, tuple[Any, str]] = {
        "suppress": (world.catalog.erasures, "suppress"),
        "service": (world.service, "erase_prompts"),
        "ledger": (world.catalog.erasures, "erase"),
        "bytes": (world.store, "remove"),
        "place": (world.catalog.artifacts, "forget_location"),
    }

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(*place[step], dies)
        with pytest.raises(KeyboardInterrupt):
            erase(asked())
    erase(asked())
    assert SECRET not in world.kept()
    assert world.catalog.artifacts.locations(world.candidates) == []
    suppression = services.suppression()
    assert suppression is not None
    assert suppression.covers(ADA, None)
    assert suppression.covers(None, world.of_ada.prompt_id)
    assert not suppression.covers(EVE, prompt(2).prompt_id)


def test_a_copy_out_of_reach_is_named(world: World) -> None:
    world.catalog.artifacts.add_location(world.candidates, "s3://bucket", "c")
    assert erase(asked())["left"] == ["s3://bucket/c is out of reach from here"]
    assert [place.uri for place in world.catalog.artifacts.locations(world.candidates)] == ["s3://bucket/c"]


def test_without_a_key_nothing_is_erased(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    open_key = tmp_path / "open.key"
    open_key.write_bytes(b"k" * 32)
    open_key.chmod(0o644)
    monkeypatch.setenv("ALIGN_SUPPRESSION_KEY", str(open_key))
    with pytest.raises(FlowError, match="mode 0600; it has 32 and 0644"):
        erase(asked())
    assert SECRET in world.kept()


def test_a_request_for_nobody_is_refused() -> None:
    with pytest.raises(FlowError, match="name persons or prompts"):
        asked(subjects=())


def test_a_part_of_an_evaluation_holds_answers() -> None:
    from include.eval.findings import PART_FILE

    assert PART_FILE in erasing.FILES_WITH_TEXTS
