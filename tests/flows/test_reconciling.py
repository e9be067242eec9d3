"""Who still wants a job, and under which names the reconciler looks for ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.receipts import JobEnd
from include.domain.layout import RunDir
from include.domain.spec import Report
from include.flows import reconciling, services, stage_work
from include.flows.reconciling import is_owner_alive, reconcile_cluster
from include.stores.catalog.receipts import CatalogReceipts
from tests.flows.conftest import Plane
from tests.flows.things import SFT_GIVEN, D

OWNER = {"dag_id": "train_sft", "run_id": "manual__1", "task_id": "sft.train", "map_index": -1}


class Airflow:
    """Answers what states tasks have."""

    def __init__(self, states: dict[str, dict[str, Any]], runs: int = 1) -> None:
        self.states = states
        self.runs = runs

    def get_dr_count(self, **asked: Any) -> int:
        assert asked == {"dag_id": "train_sft", "run_ids": ["manual__1"]}
        return self.runs

    def get_task_states(self, **asked: Any) -> dict[str, dict[str, Any]]:
        assert (asked["dag_id"], asked["task_ids"], asked["run_ids"]) == ("train_sft", ["sft.train"], ["manual__1"])
        return self.states


def alive(monkeypatch: pytest.MonkeyPatch, states: dict[str, dict[str, Any]], runs: int = 1, **owner: Any) -> bool:
    monkeypatch.setattr(reconciling, "get_current_context", lambda: {"ti": Airflow(states, runs)})
    return is_owner_alive({**OWNER, **owner})


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_a_task_that_ended_wants_nothing_any_more(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    assert not alive(monkeypatch, {"manual__1": {"sft.train": state}})


@pytest.mark.parametrize("state", ["running", "deferred", "up_for_retry", "queued", "scheduled", None])
def test_a_task_on_its_way_still_wants_its_job(monkeypatch: pytest.MonkeyPatch, state: str | None) -> None:
    assert alive(monkeypatch, {"manual__1": {"sft.train": state}})


def test_where_nothing_is_known_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alive(monkeypatch, {})
    assert alive(monkeypatch, {"manual__1": {}})


def test_a_run_that_was_deleted_wants_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not alive(monkeypatch, {}, runs=0)


def test_of_a_mapped_task_its_own_instance_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"manual__1": {"sft.train_0": "success", "sft.train_1": "deferred"}}
    assert not alive(monkeypatch, states, map_index=0)
    assert alive(monkeypatch, states, map_index=1)


def test_it_looks_for_the_names_under_which_stages_submit(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job whose receipt is not written yet would pass for an orphan."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr("airflow_slurm.work.reconciler.reconcile", lambda *_, **settings: asked.update(settings) or [])
    assert reconcile_cluster() == []
    assert asked["name_of"](D[4], 3) == stage_work.job_name(D[4], 3) == f"align-{'0' * 16}-3"
    assert asked["name_of"](D[4], 3).startswith(asked["name_prefix"])
    assert asked["orphan_age_s"] == 600


def cancelled(plane: Plane) -> tuple[str, Path]:
    """A run whose first submission was ended by nobody's task: its key, and its attempt's folder in the store."""
    spec = stage_work.plan("sft", plane.run(), SFT_GIVEN).spec
    services.catalog().runs.plan(spec)
    receipts = CatalogReceipts(**services.receipts_config())
    receipts.claim(spec.key, OWNER)
    receipts.close(spec.key, 1, JobEnd("cancelled", closed_by="on_kill"))
    folder = Path(plane.store_root, RunDir(spec.key).attempt("1-41.0"))
    folder.mkdir(parents=True)
    return spec.key, folder


def test_the_report_of_a_cancelled_run_is_kept_when_it_appears_and_once(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_slurm.work.reconciler.reconcile", lambda *_, **__: [])
    key, folder = cancelled(plane)
    runs = services.catalog().runs
    assert reconcile_cluster() == []
    assert runs.attempts(key) == []
    report = Report(key, "1-41.0", "interrupted", "signal", 0, 17, 40, {"loss": 0.5}, {})
    (folder / "report.json").write_text(json.dumps(report.to_json()))
    assert reconcile_cluster() == []
    assert [(row.name, row.report) for row in runs.attempts(key)] == [("1-41.0", report)]
    assert runs.unreported("2000") == []
    assert runs.committed(key) is None
    (folder / "report.json").unlink()
    assert reconcile_cluster() == []


@pytest.mark.parametrize("said", ["no JSON", json.dumps(Report(D[7], "1-41.0", "interrupted", "signal", 0, 1, 4, {}, {}).to_json())])
def test_a_report_that_cannot_be_read_or_is_anothers_is_named_and_not_kept(plane: Plane, said: str) -> None:
    key, folder = cancelled(plane)
    (folder / "report.json").write_text(said)
    (found,) = reconciling.keep_reports()
    assert (found["kind"], found["key"]) == ("unreadable_report", key)
    assert services.catalog().runs.attempts(key) == []
