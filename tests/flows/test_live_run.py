"""What is told of a run while it is under way, and that none stays shown as running."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from airflow_slurm.receipts import JobEnd
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView
from include.domain.layout import RunDir
from include.flows import live_run, services, stage_work
from include.flows.live_run import LiveRun, lines_of, rows_of, settle, settle_all, status_of
from include.settings.catalogue import cluster, store_root
from include.stores.catalog.receipts import CatalogReceipts
from include.stores.errors import RegistryError
from tests.flows.conftest import Plane
from tests.flows.things import SFT_GIVEN

OWNER = {"dag_id": "train_sft", "run_id": "manual__1", "task_id": "sft.train", "map_index": -1}


def planned(plane: Plane) -> str:
    spec = stage_work.plan("sft", plane.run(), SFT_GIVEN).spec
    services.catalog().runs.plan(spec)
    plane.registry.shown[spec.key] = "RUNNING"
    return spec.key


def closed(key: str, outcome: str) -> None:
    receipts = CatalogReceipts(**services.receipts_config())
    receipts.claim(key, OWNER)
    receipts.close(key, 1, JobEnd(outcome, closed_by="test"))


def test_the_file_is_that_of_the_attempt_that_the_watch_sees(plane: Plane) -> None:
    key = planned(plane)
    lines = lines_of(key, store_root(cluster()))
    file = lines.file(3, JobView("41", restarts=2))
    assert file == f"{plane.store_root}/{RunDir(key).attempt('3-41.2')}/metrics.jsonl"


def test_a_stages_job_is_followed(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_work, "whereabouts", lambda *_: lambda digest: f"datasets/{digest[-4:]}")
    asked = stage_work.prepare("sft", plane.run(), SFT_GIVEN)
    assert asked.lines is not None  # type: ignore[union-attr]
    assert asked.lines.config == {"key": asked.key}  # type: ignore[union-attr]
    assert isinstance(asked.lines.load(), LiveRun)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("outcome", "status"), [("failed", "FAILED"), ("cancelled", "KILLED"), ("interrupted", None), ("lost", None), ("ended", None)]
)
def test_a_run_that_nobody_works_on_any_more_ends_as_its_last_submission_did(plane: Plane, outcome: str, status: str | None) -> None:
    key = planned(plane)
    closed(key, outcome)
    assert settle(key) == status
    assert plane.registry.shown[key] == (status or "RUNNING")


@pytest.mark.parametrize("outcome", ["interrupted", "lost", "ended", "succeeded"])
def test_one_that_was_to_go_on_and_did_not_is_killed_in_time(plane: Plane, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = planned(plane)
    closed(key, outcome)
    monkeypatch.setattr(live_run, "GOES_ON_WITHIN", timedelta(seconds=-5))
    assert settle_all() == [{"key": key, "status": "KILLED"}]


def test_a_run_that_has_a_live_submission_goes_on_whatever_its_age(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    key = planned(plane)
    closed(key, "cancelled")
    CatalogReceipts(**services.receipts_config()).claim(key, OWNER)
    monkeypatch.setattr(live_run, "GOES_ON_WITHIN", timedelta(seconds=-5))
    assert settle_all() == []


def test_a_run_of_another_control_plane_is_left_alone(plane: Plane) -> None:
    plane.registry.shown["sha256:" + "5" * 64] = "RUNNING"
    assert settle_all() == []


def test_a_tracker_that_is_away_is_said_and_stops_nothing(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: Any) -> Any:
        raise RegistryError("MLflow does not answer")

    key = planned(plane)
    closed(key, "failed")
    monkeypatch.setattr(plane.registry, "end_run", away)
    assert settle(key) is None
    monkeypatch.setattr(plane.registry, "running", away)
    assert settle_all() == []
    assert "MLflow does not answer" in capsys.readouterr().out


@pytest.mark.parametrize("error", [ValueError("the client's own"), OperationalError("select", {}, Exception("locked"))])
def test_no_error_takes_the_place_of_the_tasks_own_end(plane: Plane, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_: Any) -> Any:
        raise error

    key = planned(plane)
    closed(key, "failed")
    monkeypatch.setattr(plane.registry, "end_run", fails)
    assert settle(key) is None


@pytest.mark.parametrize(
    ("state", "exit_code", "status"),
    [
        ("FAILED", 1, "FAILED"),
        ("FAILED", 75, "KILLED"),
        ("OUT_OF_MEMORY", 0, "FAILED"),
        ("TIMEOUT", 0, "KILLED"),
        ("CANCELLED", 0, "KILLED"),
    ],
)
def test_slurms_word_for_an_end_in_mlflows(state: str, exit_code: int, status: str) -> None:
    assert status_of(JobView("1", phase=Phase.FAILED, state=state, exit_code=exit_code)) == status


def test_a_job_that_completed_is_finished() -> None:
    assert status_of(JobView("1", phase=Phase.SUCCEEDED, state="COMPLETED", exit_code=0)) == "FINISHED"


def test_what_is_no_row_is_no_figure() -> None:
    assert rows_of(['{"step": 1}', "half a li", "[1]", "7", '{"step": 2}', "[" * 100_000]) == [{"step": 1}, {"step": 2}]
