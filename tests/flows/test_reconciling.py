"""Under which names the reconciler looks for our jobs, and what becomes of the reports of those that nobody waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.receipts import JobEnd
from include.domain.layout import RunDir
from include.domain.spec import Report
from include.flows import reconciling, services, stage_work
from include.flows.reconciling import reconcile_cluster
from include.stores.catalog.receipts import CatalogReceipts
from tests.flows.conftest import Plane
from tests.flows.things import SFT_GIVEN, D

OWNER = {"dag_id": "train_sft", "run_id": "manual__1", "task_id": "sft.train", "map_index": -1}


def test_it_looks_for_the_names_under_which_stages_submit(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job whose receipt is not written yet would pass for an orphan."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr("airflow_slurm.work.reconciler.reconcile", lambda *_, **settings: asked.update(settings) or [])
    assert reconcile_cluster() == []
    assert asked["name_of"](D[4], 3) == stage_work.job_name(D[4], 3) == f"align-{'0' * 16}-3"
    assert asked["name_of"](D[4], 3).startswith(asked["name_prefix"])
    assert asked["orphan_age_s"] == 600
    assert (asked["policy"].signal, asked["policy"].grace_s) == ("USR1", 60.0)


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
