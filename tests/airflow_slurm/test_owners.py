"""Who still wants a job, as Airflow says."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm import owners
from airflow_slurm.owners import has_decided, is_owner_alive

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
    monkeypatch.setattr(owners, "get_current_context", lambda: {"ti": Airflow(states, runs)})
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


@pytest.mark.parametrize(
    ("state", "decided"), [("failed", False), (None, False), ("deferred", False), ("success", True), ("skipped", True)]
)
def test_a_person_has_decided_about_a_task_that_failed_once_it_is_marked(
    monkeypatch: pytest.MonkeyPatch, state: Any, decided: bool
) -> None:
    assert alive(monkeypatch, {"manual__1": {"sft.train": state}}) is (state in (None, "deferred"))
    assert has_decided(OWNER) is decided


def test_whoever_deletes_a_run_has_decided_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not alive(monkeypatch, {}, runs=0)
    assert has_decided(OWNER)
