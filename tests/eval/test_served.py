"""What is gated is the deployment: measured on the engine that will serve it, quantised as it will be, by a small server of the protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from include.domain.spec import RunSpec
from include.eval.deployment import Deployment
from include.eval.engines import devices_of
from include.eval.errors import EvaluationError
from include.gates.tables import MeasurementTable, table_from
from tests.eval.conftest import deployment, evaluation, run_here
from tests.eval.test_shadow import run_spec as shadow_spec
from tests.training.harness import PROJECT, Started, Store, cluster_python

pytestmark = pytest.mark.timeout(600)
"""Three evaluations with servers of their own take long on a busy machine."""

COMMAND = [cluster_python(), str(PROJECT / "tests" / "training" / "small_server.py")]
HOW = {"server_command": COMMAND, "server_start_s": 100}
ENGINE = {"engine": "vllm", "engine_version": "1.2.3", "engine_options": []}
ROLES = {"candidate": "candidate", "base": "base"}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))


def spec(store: Store, salt: str, of: Mapping[str, Mapping[str, Any]], roles: Mapping[str, str] = ROLES) -> RunSpec:
    """An evaluation in which the roles of `of` have those fields in their deployments."""
    plain = store.spec("evaluate", {"model_candidate": "candidate"}, {"any": 1})
    deployments = {role: deployment(store, model, plain, **of.get(role, {})) for role, model in roles.items()}
    return evaluation(store, salt, roles, deployments=deployments, latency=sorted(roles))


def measured(started: Started) -> MeasurementTable:
    assert started.code == 0, started.report.message
    return table_from(json.loads((started.output("measurements") / "measurements.json").read_text()))


@pytest.fixture(scope="module")
def tables(store: Store) -> dict[str, MeasurementTable]:
    """All in this program; the candidate on its server; and quantised there too, on two devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        quantised = {**ENGINE, "quantisation": "coarse", "engine_options": ["--tensor-parallel-size", "2"]}
        return {
            name: measured(run_here(store, spec(store, name, of), **HOW))
            for name, of in {"here": {}, "served": {"candidate": ENGINE}, "quantised": {"candidate": quantised}}.items()
        }


def values(table: MeasurementTable, metric: str, suite: str, role: str = "candidate") -> list[float]:
    row = table.find(role, metric, suite)
    assert row is not None
    return [item.value for item in row.items]


@pytest.mark.parametrize(
    ("metric", "suite"),
    [
        ("exact_match", "words"),
        ("length_tokens", "words"),
        ("reward_score", "words"),
        ("likelihood_choice", "choices"),
        ("bbq_accuracy", "names"),
    ],
)
def test_the_same_weights_on_the_engine_give_what_they_give_here(tables: dict[str, MeasurementTable], metric: str, suite: str) -> None:
    assert values(tables["served"], metric, suite) == pytest.approx(values(tables["here"], metric, suite))


def test_what_is_measured_is_the_quantised_model(tables: dict[str, MeasurementTable]) -> None:
    assert values(tables["quantised"], "length_tokens", "words") != values(tables["here"], "length_tokens", "words")
    assert values(tables["quantised"], "length_tokens", "words", "base") == values(tables["here"], "length_tokens", "words", "base")


def test_engines_are_compared_on_one_bench_and_not_over_two_runs(tables: dict[str, MeasurementTable]) -> None:
    ours, theirs = (tables["served"].find(role, "exact_match", "words") for role in ("candidate", "base"))
    here = tables["here"].find("base", "exact_match", "words")
    assert ours is not None
    assert theirs is not None
    assert here is not None
    assert ours.backend != theirs.backend
    assert ours.same_backend(theirs)
    assert not ours.same_backend(here)
    assert here.bench == ""
    assert theirs.backend == here.backend


def test_what_an_answer_costs_counts_every_device(tables: dict[str, MeasurementTable]) -> None:
    row = tables["quantised"].find("candidate", "latency_s", None)
    assert row is not None
    speed, cost = (values(tables["quantised"], metric, row.suite) for metric in ("tokens_per_s", "device_s_per_1k_tokens"))
    assert cost == pytest.approx([2 * 1000 / each for each in speed])
    one = [values(tables["served"], metric, row.suite) for metric in ("tokens_per_s", "device_s_per_1k_tokens")]
    assert one[1] == pytest.approx([1000 / each for each in one[0]])


def test_another_release_of_the_engine_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIGN_TEST_SERVER_VERSION", "9.9")
    started = run_here(store, spec(store, "version", {"candidate": ENGINE}), **HOW)
    assert started.code != 0
    assert "the server is vllm 9.9, and the deployment is of 1.2.3" in started.report.message


def test_a_server_that_does_not_start_fails_the_run_with_its_log(store: Store) -> None:
    quantised = {**ENGINE, "quantisation": "no-such"}
    started = run_here(store, spec(store, "starts", {"candidate": quantised}), **HOW)
    assert started.code != 0
    assert "ended with code 2 before it answered" in started.report.message
    assert "server-" in started.report.message


def test_the_shadow_run_asks_the_engines_too(store: Store) -> None:
    plain = shadow_spec(store, max_new_tokens=7)  # of its own: other tests share the store
    own = {role: deployment(store, role, plain, **ENGINE) for role in ("candidate", "sft")}
    started = run_here(store, replace(plain, config={**plain.config, "deployments": own}), **HOW)
    assert started.code == 0, started.report.message
    body = json.loads((started.output("observations") / "observations.json").read_text())
    assert (body["verdict"], body["requests"]) == ("passed", 6)
    alone = run_here(store, plain)
    told = json.loads((alone.output("observations") / "observations.json").read_text())
    assert [reply["candidate"]["tokens"] for reply in body["replies"]] == [reply["candidate"]["tokens"] for reply in told["replies"]]


@pytest.mark.parametrize("changed", [{"quantisation": "fp8"}, {"engine": "other"}, {"engine_version": "1"}, {"engine": "vllm"}])
def test_a_deployment_that_no_engine_here_can_run_is_refused(store: Store, changed: dict[str, Any]) -> None:
    with pytest.raises(EvaluationError):
        Deployment.read(
            deployment(store, "candidate", store.spec("evaluate", {"model_candidate": "candidate"}, {"any": 1}), **changed), "here"
        )


@pytest.mark.parametrize(
    ("arguments", "count"), [([], 1), (["-tp", "4"], 4), (["--tensor-parallel-size=2", "--pipeline-parallel-size", "3"], 6)]
)
def test_the_devices_of_a_server_are_those_its_flags_name(arguments: list[str], count: int) -> None:
    assert devices_of(arguments) == count


def test_a_count_of_devices_that_is_none_is_refused() -> None:
    with pytest.raises(EvaluationError, match="no count of devices"):
        devices_of(["--tensor-parallel-size", "many"])
