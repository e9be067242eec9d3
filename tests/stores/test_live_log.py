"""A run on its way, on a real MLflow server: what it shows while the job runs, over attempts and restarts, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.domain.spec import Report
from include.stores import tracking
from include.stores.catalog import Catalog
from include.stores.live_log import LIVE_TAG
from include.stores.mlflow_runs import run_of
from include.stores.registry import AttemptLog, Registry, StageLog
from include.stores.tracking import tags_of
from tests.stores.things import commit, manifest, spec

pytestmark = pytest.mark.timeout(400)


def rows(*steps: int, base: float = 1000.0, value: float = 1.0) -> list[dict[str, Any]]:
    return [{"step": step, "time": base + step, "loss": value / step, "tokens": 5, "odd": None} for step in steps]


def history(registry: Registry, key: str, name: str = "loss") -> list[tuple[int, float]]:
    run = run_of(registry.tracking, registry.experiment_id, key)
    assert run is not None
    found = registry.tracking.get("metrics/get-history", run_id=run["info"]["run_id"], metric_key=name).get("metrics", [])
    return sorted((int(point["step"]), round(float(point["value"]), 6)) for point in found)


def status(registry: Registry, key: str) -> str:
    run = run_of(registry.tracking, registry.experiment_id, key)
    return str(run["info"]["status"]) if run else "none"


def test_a_run_is_shown_with_its_curves_before_anything_is_committed(registry: Registry) -> None:
    asked = spec()
    log = registry.live(asked, "1-7.0")
    assert log.begin() == 0
    log.tell(rows(1, 2), 80)
    log.tell(rows(3), 120)
    assert status(registry, asked.key) == "RUNNING"
    assert history(registry, asked.key) == [(1, 1.0), (2, 0.5), (3, 0.333333)]
    run = run_of(registry.tracking, registry.experiment_id, asked.key)
    assert run is not None
    assert {p["key"]: p["value"] for p in run["data"]["params"]} == {"learning_rate": "0.00002", "steps": "10"}
    assert tags_of(run["data"])["align.stage"] == "sft"
    assert registry.running() == [asked.key]


def test_the_same_lines_twice_are_the_same_points_and_a_restart_goes_on(registry: Registry) -> None:
    asked = spec()
    first = registry.live(asked, "1-7.0")
    first.begin()
    first.tell(rows(1, 2), 80)
    again = Registry(registry.tracking.uri, registry.experiment).live(asked, "1-7.0")
    assert again.begin() == 80
    again.tell(rows(2, 3), 120)
    first.tell(rows(1, 2, 3), 120)
    for key in (asked.key, f"{asked.key}/1-7.0"):
        assert [step for step, _ in history(registry, key)] == [1, 2, 3]


def test_steps_that_a_resumed_attempt_repeats_are_shown_once_and_in_its_own_run(registry: Registry, sqlite_catalog: Catalog) -> None:
    asked = spec()
    first = registry.live(asked, "1-7.0")
    first.begin()
    first.tell(rows(1, 2, 3, 4), 90)
    registry.end_attempt(asked.key, "1-7.0", "KILLED")
    second = registry.live(asked, "2-9.0")
    assert second.begin() == 0
    second.tell(rows(3, 4, 5, base=9000, value=1.1), 90)
    assert [step for step, _ in history(registry, asked.key)] == [1, 2, 3, 4, 5]
    assert [step for step, _ in history(registry, f"{asked.key}/2-9.0")] == [3, 4, 5]
    restarted = registry.live(asked, "2-9.0")
    assert restarted.begin() == 90
    restarted.tell(rows(6, base=9000), 120)
    done = commit(sqlite_catalog, asked, {"policy": manifest("policy")}, "2-9.0")
    interrupted = Report(asked.key, "1-7.0", "interrupted", "signal", 0, 4, 10, {}, {})
    complete = Report.from_json(done.report.to_json() | {"first_step": 2, "resumed_from": {"attempt": "1-7.0", "step": 2}})
    attempts = [
        AttemptLog("1-7.0", interrupted, rows(1, 2, 3, 4)),
        AttemptLog("2-9.0", complete, [*rows(3, 4, 5, base=9000, value=1.1), *rows(6, base=9000)]),
    ]
    registry.log_run(StageLog(asked, done, attempts, {"steps": 10}))
    assert [step for step, _ in history(registry, asked.key)] == [1, 2, 3, 4, 5, 6]
    assert status(registry, asked.key) == "FINISHED"
    assert [status(registry, f"{asked.key}/{name}") for name in ("1-7.0", "2-9.0")] == ["KILLED", "FINISHED"]
    assert registry.running() == []


def test_what_was_not_told_while_it_ran_is_told_at_the_commit(registry: Registry, sqlite_catalog: Catalog) -> None:
    asked = spec()
    log = registry.live(asked, "1-7.0")
    log.begin()
    log.tell(rows(1, 2), 80)
    done = commit(sqlite_catalog, asked, {"policy": manifest("policy")})
    told = [*rows(1, 2, 3), {"step": 2, "time": 1002.5, "validation_loss": 0.7}]
    registry.log_run(StageLog(asked, done, [AttemptLog("1-7.0", done.report, told)], {"steps": 10}))
    assert [step for step, _ in history(registry, asked.key)] == [1, 2, 3]
    assert history(registry, asked.key, "validation_loss") == [(2, 0.7)]


def test_who_comes_late_changes_nothing_of_a_finished_run(registry: Registry, sqlite_catalog: Catalog) -> None:
    asked = spec()
    done = commit(sqlite_catalog, asked, {"policy": manifest("policy")})
    registry.log_run(StageLog(asked, done, [AttemptLog("1-7.0", done.report, rows(1))], {"steps": 10}))
    assert registry.live(asked, "1-7.0").begin() is None
    assert registry.end_run(asked.key, "KILLED") is False
    assert status(registry, asked.key) == "FINISHED"


@pytest.mark.parametrize("end", ["FAILED", "KILLED"])
def test_a_run_ends_once_and_runs_again_with_its_next_attempt(registry: Registry, end: str) -> None:
    asked = spec()
    registry.live(asked, "1-7.0").begin()
    assert registry.end_run(asked.key, end) is True
    assert registry.end_run(asked.key, "FINISHED") is False
    assert status(registry, asked.key) == end
    registry.live(asked, "2-8.0").begin()
    assert status(registry, asked.key) == "RUNNING"


def test_figures_that_are_none_are_left_out_and_names_are_made_fit(registry: Registry) -> None:
    asked = spec()
    log = registry.live(asked, "1-7.0")
    log.begin()
    log.tell([{"loss": 1.0}, {"step": "x", "time": 1.0, "loss": 1}, {"step": 1, "time": 5.0, "a@b": 2.0, "n": float("inf"), "t": True}], 9)
    run = run_of(registry.tracking, registry.experiment_id, asked.key)
    assert run is not None
    assert [metric["key"] for metric in run["data"]["metrics"]] == ["a_b"]


def test_what_the_server_would_refuse_keeps_nothing_else_from_it(registry: Registry) -> None:
    asked = spec()
    log = registry.live(asked, "1-7.0")
    log.begin()
    names = ["loss", "", ".", "..", "../up", "/root", "a//b", "a/", "slice/en"]
    odd = [{"step": 1, "time": 1.0, "huge": 10**400}, {"step": 1e299, "time": 1.0, "far": 1}, {"step": 1, "time": 1e299, "late": 1}]
    log.tell([*odd, {"step": 1, "time": -5.0, "early": 1}, {"step": 2, "time": 5.0, **dict.fromkeys(names, 1.0)}], 9)
    run = run_of(registry.tracking, registry.experiment_id, asked.key)
    assert run is not None
    shown = sorted(metric["key"] for metric in run["data"]["metrics"])
    assert shown == sorted(["loss", "_", "_.", "_..", "_.._up", "__root", "_a__b", "_a_", "slice/en"])


def test_all_that_run_are_found_however_many(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_PAGE", 2)
    keys = [spec(seed=seed).key for seed in range(5)]
    for seed in range(5):
        registry.live(spec(seed=seed), "1-7.0").begin()
    assert set(keys) <= set(registry.running())


def test_a_tag_that_somebody_spoilt_is_begun_anew(registry: Registry) -> None:
    asked = spec()
    registry.live(asked, "1-7.0").begin()
    run = run_of(registry.tracking, registry.experiment_id, asked.key)
    assert run is not None
    registry.tracking.post("runs/set-tag", run_id=run["info"]["run_id"], key=LIVE_TAG, value="[oh")
    assert registry.live(asked, "1-7.0").begin() == 0


def test_figures_of_no_job_are_a_finished_run_told_once(registry: Registry) -> None:
    first = registry.show("collection:sha256:1", "preferences b1", {"kappa": 0.6}, {"align.batch": "b1"})
    assert registry.show("collection:sha256:1", "preferences b1", {"kappa": 0.7}, {"align.batch": "b1"}) == first
    assert history(registry, "collection:sha256:1", "kappa") == [(0, 0.6)]
    assert status(registry, "collection:sha256:1") == "FINISHED"


def test_what_saving_cost_is_among_the_final_figures(registry: Registry, sqlite_catalog: Catalog) -> None:
    asked = spec()
    done = commit(sqlite_catalog, asked, {"policy": manifest("policy")})
    costs = {"checkpoints": {"longest_s": 2.5, "stall_share": 0.1}, "tokens_per_s": 900.0, "warnings": ["x"]}
    done = replace(done, report=replace(done.report, summary=costs))
    registry.log_run(StageLog(asked, done, [AttemptLog("1-7.0", done.report, rows(1))], {"steps": 10}))
    run = run_of(registry.tracking, registry.experiment_id, asked.key)
    assert run is not None
    assert {metric["key"]: metric["value"] for metric in run["data"]["metrics"]} == {
        "loss": 1.0, "final.loss": 1.5, "final.checkpoints.longest_s": 2.5, "final.checkpoints.stall_share": 0.1, "final.tokens_per_s": 900.0,
    }  # fmt: skip
