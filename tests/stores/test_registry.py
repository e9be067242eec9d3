"""The registry against a real MLflow server."""

from __future__ import annotations

import json
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.domain.canonical import canonical_bytes, digest
from include.stores.catalog import Catalog
from include.stores.errors import RegistryError
from include.stores.registry import AttemptLog, ModelEntry, Registry, StageLog, Stopped
from include.stores.tracking import tags_of
from tests.stores.servers import free_port
from tests.stores.things import commit, manifest, some_digest, spec

pytestmark = pytest.mark.timeout(400)
"""An MLflow server takes long to start on a busy machine."""

CONFIG = {
    "learning_rate": 2e-5,
    "steps": 10,
    "clip": 7.0,
    "chat_template": "x" * 9000,
    "kl": {"target": 6.0},
    "empty": "",
    "betas": [0.9, 0.95],
    "a@b": 1,
}


def client_of(registry: Registry) -> Any:
    return registry._client


def stage_log(catalog: Catalog, **changes: Any) -> StageLog:
    asked = spec()
    done = commit(catalog, asked, {"policy": manifest("policy")})
    rows = [
        {"step": step, "loss": 1.0 / step, "time": 1000.0 + step, "tokens": 5, "odd": None, "grad norm (l2)": 1.0} for step in (1, 2, 3)
    ]
    body = {"attempts": [AttemptLog("1-7.0", done.report, rows)], "config": CONFIG, "artifacts": {"report.json": b"{}"}}
    return StageLog(asked, done, **(body | changes))


def entry(run_id: str, name: str = "one", **changes: Any) -> ModelEntry:
    body: dict[str, Any] = {
        "deployment": some_digest(name),
        "weights": some_digest(f"weights of {name}"),
        "weights_uri": "sftp://cluster-a/store/runs/x",
        "run_id": run_id,
        "card": f"# {name}",
        "manifest": {"kind": "model"},
        "config": CONFIG,
        "gates": {"verdict": "pass"},
        "tags": {"recipe": "tiny"},
    }
    return ModelEntry(**(body | changes))


@pytest.fixture
def run_id(registry: Registry, sqlite_catalog: Catalog) -> str:
    return registry.log_run(stage_log(sqlite_catalog))


@pytest.fixture
def model_name() -> str:
    return f"helper-{uuid.uuid4().hex[:8]}"


def test_preflight_makes_the_experiment_once(registry: Registry) -> None:
    assert registry.preflight() == registry.preflight()


def test_a_deleted_experiment_fails_within_seconds_and_names_both_ways_out(registry: Registry) -> None:
    registry.tracking.post("experiments/delete", experiment_id=registry.preflight())
    began = time.monotonic()
    with pytest.raises(RegistryError, match=r"restore it .* or choose another name"):
        Registry(registry.tracking.uri, registry.experiment).preflight()
    assert time.monotonic() - began < 5


def test_eight_that_make_the_experiment_at_once_all_succeed(registry: Registry) -> None:
    gate, found = threading.Barrier(8), []

    def make() -> None:
        gate.wait()
        found.append(Registry(registry.tracking.uri, registry.experiment).preflight())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_server_that_does_not_answer_fails_within_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(RegistryError, match="does not answer"):
        Registry(f"http://127.0.0.1:{free_port()}").preflight()
    assert time.monotonic() - began < 15


def test_a_tracking_uri_that_is_no_server_is_refused() -> None:
    with pytest.raises(RegistryError, match="not http"):
        Registry("sqlite:///mlflow.db")


def test_a_run_is_logged_once(registry: Registry, sqlite_catalog: Catalog) -> None:
    log = stage_log(sqlite_catalog)
    first = registry.log_run(log)
    assert Registry(registry.tracking.uri, registry.experiment).log_run(log) == first
    parents = client_of(registry).search_runs([registry.experiment_id], "tags.`align.stage` = 'sft'")
    assert [run.info.run_id for run in parents] == [first]
    assert parents[0].info.status == "FINISHED"


def test_the_whole_configuration_comes_back_byte_for_byte_with_its_hash(registry: Registry, run_id: str, tmp_path: Path) -> None:
    path = client_of(registry).download_artifacts(run_id, "config.json", str(tmp_path))
    assert Path(path).read_bytes() == canonical_bytes(CONFIG)
    assert client_of(registry).get_run(run_id).data.tags["align.config_digest"] == digest("config", CONFIG)


def test_a_long_value_is_no_parameter_and_that_is_visible(registry: Registry, run_id: str) -> None:
    data = client_of(registry).get_run(run_id).data
    expected = {"learning_rate": "0.00002", "steps": "10", "clip": "7", "kl.target": "6", "empty": "", "betas": "[0.9,0.95]"}
    assert data.params == expected
    assert data.tags["align.parameters_left_out"] == "a@b, chat_template"


def test_the_series_of_the_stage_and_of_each_attempt_are_there(registry: Registry, run_id: str) -> None:
    client = client_of(registry)
    history = [(m.step, m.value) for m in client.get_metric_history(run_id, "loss")]
    assert sorted(history) == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert set(client.get_run(run_id).data.metrics) == {"loss", "grad norm _l2_", "final.loss"}
    (child,) = client.search_runs([registry.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
    assert child.data.tags["align.attempt"] == "1-7.0"
    assert len(client.get_metric_history(child.info.run_id, "loss")) == 3


def test_what_died_half_way_is_told_to_its_end_without_doubling_points(
    registry: Registry, sqlite_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stage_log(sqlite_catalog)
    client = client_of(registry)
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "log_artifacts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            registry.log_run(log)
    run_id = registry.log_run(log)
    assert len(client.get_metric_history(run_id, "loss")) == 3
    assert len(client.search_runs([registry.experiment_id], "tags.`align.stage` = 'sft'")) == 1
    assert client.get_run(run_id).data.tags["align.logged"] == log.digest


def test_a_later_attempt_with_another_placement_is_recorded_and_not_fatal(registry: Registry, sqlite_catalog: Catalog) -> None:
    log = stage_log(sqlite_catalog)
    registry.log_run(log)
    placed = [replace(attempt, placement={"world_size": 4}) for attempt in log.attempts]
    second = AttemptLog("2-9.0", None, [], {"world_size": 8})
    run_id = registry.log_run(replace(log, attempts=[*placed, second], artifacts={"more.json": b"{}"}))
    children = client_of(registry).search_runs([registry.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
    seen = {c.data.tags["align.attempt"]: c.data.tags["align.placement.world_size"] for c in children}
    assert seen == {"1-7.0": "4", "2-9.0": "8"}


def test_a_run_that_a_guard_stopped_is_shown_with_its_reason_and_becomes_whole_when_it_is_committed(
    registry: Registry, sqlite_catalog: Catalog
) -> None:
    log, client = stage_log(sqlite_catalog), client_of(registry)
    told = "kl_negative: batch KL -2.6"
    failed = replace(log.attempts[0].report, outcome="failed", stop_reason="guard", message=told, summary={"guard": "kl_negative"})
    first = AttemptLog("1-6.0", failed, log.attempts[0].metrics)
    stopped = Stopped("1-6.0", "guard", told, "2026-01-01T00:00:00+00:00", "kl_negative")
    half = replace(log, committed=None, stopped=stopped, attempts=[first])
    run_id = registry.log_run(half)
    assert registry.log_run(replace(half, stopped=replace(stopped, at="2026-02-02T00:00:00+00:00"))) == run_id
    seen = client.get_run(run_id)
    assert (seen.info.status, seen.data.metrics) == ("FAILED", {})
    assert {name: seen.data.tags[f"align.{name}"] for name in half.outcome} == half.outcome
    (child,) = client.search_runs([registry.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
    assert (child.info.status, child.data.tags["align.guard"], child.data.tags["align.message"]) == ("FAILED", "kl_negative", told)
    assert [m.step for m in client.get_metric_history(child.info.run_id, "loss")] == [1, 2, 3]
    assert registry.log_run(replace(log, attempts=[first, *log.attempts])) == run_id
    whole = client.get_run(run_id)
    assert (whole.info.status, whole.data.tags["align.outcome"], whole.data.tags["align.guard"]) == ("FINISHED", "complete", "none")
    assert len(client.get_metric_history(run_id, "loss")) == 3


def test_a_run_is_committed_or_stopped_and_never_both(sqlite_catalog: Catalog) -> None:
    with pytest.raises(RegistryError, match="committed or stopped"):
        replace(stage_log(sqlite_catalog), committed=None)


def test_a_deployment_is_registered_once_with_its_papers(registry: Registry, run_id: str, model_name: str, tmp_path: Path) -> None:
    assert registry.register(model_name, entry(run_id)) == registry.register(model_name, entry(run_id)) == 1
    assert registry.register(model_name, entry(run_id, "two")) == 2
    version = client_of(registry).get_model_version(model_name, "1")
    assert version.source.startswith(f"runs:/{run_id}/model")
    assert version.run_id == run_id
    assert version.tags["align.weights_uri"] == "sftp://cluster-a/store/runs/x"
    folder = version.source.removeprefix(f"runs:/{run_id}/")
    local = Path(client_of(registry).download_artifacts(run_id, folder, str(tmp_path)))
    assert (local / "card.md").read_text() == "# one"
    assert json.loads((local / "gates.json").read_text()) == {"verdict": "pass"}
    assert (local / "config.json").read_bytes() == canonical_bytes(CONFIG)


def papers_at(registry: Registry, name: str, to: Path) -> tuple[str, Any, dict[str, str], str]:
    """Card and gates as they lie there, tags, and description, of the only version."""
    (version,) = registry.tracking.versions(name)
    _, folder = version["source"].removeprefix("runs:/").split("/", 1)
    local = Path(client_of(registry).download_artifacts(version["run_id"], folder, str(to)))
    return (local / "card.md").read_text(), json.loads((local / "gates.json").read_text()), tags_of(version), version["description"]


def test_a_deployment_that_is_judged_anew_gets_new_papers(registry: Registry, run_id: str, model_name: str, tmp_path: Path) -> None:
    registry.register(model_name, entry(run_id))
    assert registry.register(model_name, entry(run_id, card="# judged anew", gates={"verdict": "fail"}, tags={"approval": "open"})) == 1
    card, gates, tags, description = papers_at(registry, model_name, tmp_path)
    assert (card, gates, description) == ("# judged anew", {"verdict": "fail"}, "# judged anew")
    assert (tags["align.approval"], tags["align.recipe"], tags["align.weights"]) == ("open", "tiny", some_digest("weights of one"))


def test_renewing_papers_that_are_as_they_should_be_writes_nothing(registry: Registry, run_id: str, model_name: str) -> None:
    one = entry(run_id)
    registry.register(model_name, one)
    assert registry.renew(model_name, one.deployment, one.papers, {}) is False
    assert registry.renew(model_name, one.deployment, replace(one.papers, card="# decided"), {"canary": "passed"}) is True
    assert registry.renew(model_name, one.deployment, replace(one.papers, card="# decided"), {"canary": "passed"}) is False
    assert registry.renew(model_name, some_digest("unheard-of"), one.papers, {}) is False


def test_heads_of_the_ledger_on_versions_come_back(registry: Registry, run_id: str, model_name: str) -> None:
    assert registry.heads(model_name) == []
    registry.register(model_name, entry(run_id, tags={"ledger_head": f"7 {some_digest('head')}"}))
    registry.register(model_name, entry(run_id, "two"))
    assert registry.heads(model_name) == [{"seq": 7, "hash": some_digest("head")}]


def test_two_that_register_the_same_deployment_at_once_get_one_version(registry: Registry, run_id: str, model_name: str) -> None:
    gate, found = threading.Barrier(2), []
    registry.register(model_name, entry(run_id, "before"))

    def make() -> None:
        mine = Registry(registry.tracking.uri, registry.experiment)
        assert mine._client is not None
        gate.wait()
        found.append(mine.register(model_name, entry(run_id, "same")))

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    assert len(set(found)) == 1
    assert registry._versions_of(model_name, some_digest("same")) == [found[0]]


def test_a_name_with_a_quote_is_refused(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="quote"):
        list(registry.tracking.versions("it's"))
