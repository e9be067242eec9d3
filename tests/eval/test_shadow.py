"""The shadow run: on tiny models, and its verdict against each limit."""

import json
from dataclasses import replace
from typing import Any

import pytest

from include.domain.canonical import digest
from include.domain.spec import RunSpec
from include.eval.errors import EvaluationError
from include.eval.observations import Observation, Reply, observe
from tests.eval.conftest import deployment, run_here
from tests.training.harness import Store

WIDE = {"error_share": 1.0, "latency_ratio": 100.0, "length_ratio": 100.0}
LIMITS = {"error_share": 0.1, "latency_ratio": 1.5, "length_ratio": 1.3}
ROLES = ("candidate", "champion")


def run_spec(store: Store, other: str = "sft", **changes: Any) -> RunSpec:
    """A shadow run of the candidate beside `other`, whose role is champion unless it is the SFT model."""
    role = "sft" if other == "sft" else "champion"
    inputs = {"model_candidate": "candidate", f"model_{role}": other, "prompts": "prompts"}
    plain = store.spec("shadow", inputs, {"any": 1})
    deployments = {"candidate": deployment(store, "candidate", plain), role: deployment(store, other, plain)}
    config = {"requests": 6, "limits": WIDE, "deployments": deployments, "dtype": "float32", "max_new_tokens": 8, **changes}
    return replace(plain, program="include.eval.shadow", config=config)


def test_both_models_answer_the_same_prompts_and_the_observations_say_so(store: Store) -> None:
    started = run_here(store, run_spec(store))
    assert started.code == 0, started.report.message
    body = json.loads((started.output("observations") / "observations.json").read_text())
    assert (body["kind"], body["requests"], len(body["replies"])) == ("shadow", 6, 6)
    assert all(reply["candidate"]["id"] == reply["sft"]["id"] for reply in body["replies"])
    assert body["verdict"] == started.report.summary["verdict"] == "passed"


def test_a_champion_runs_as_it_was_released(store: Store) -> None:
    """Its own tokenizer, template, system prompt and generation, though the candidate has others."""
    spec = run_spec(store, "earlier")
    body = {**spec.config["deployments"]["champion"], "generation": {"temperature": 0.0, "max_new_tokens": 3}}
    del body["digest"]
    deployments = {**spec.config["deployments"], "champion": {**body, "digest": digest("deployment", body)}}
    started = run_here(store, run_spec(store, "earlier", deployments=deployments))
    assert started.code == 0, started.report.message
    seen = json.loads((started.output("observations") / "observations.json").read_text())
    assert seen["deployments"] == {role: one["digest"] for role, one in deployments.items()}
    cut = [reply["champion"] for reply in seen["replies"] if reply["champion"]["finish_reason"] == "length"]
    long = [reply["candidate"] for reply in seen["replies"] if reply["candidate"]["finish_reason"] == "length"]
    assert cut
    assert {reply["tokens"] for reply in long} <= {8}
    assert max(reply["tokens"] for reply in cut) < 8


def test_a_deployment_of_other_weights_or_of_another_tokenizer_is_refused(store: Store) -> None:
    own = run_spec(store).config["deployments"]
    wrong = run_here(store, run_spec(store, deployments={**own, "candidate": own["sft"]}))
    assert "config.deployments.candidate.weights is" in wrong.report.message
    foreign = deployment(store, "sft", run_spec(store), tokenizer=own["sft"]["chat_template"])
    wrong = run_here(store, run_spec(store, deployments={**own, "sft": foreign}))
    assert "input model_sft" in wrong.report.message
    assert "its tokenizer is" in wrong.report.message


def test_fewer_recorded_prompts_than_asked_for_abort(store: Store) -> None:
    started = run_here(store, run_spec(store, requests=50))
    assert started.code == 0, started.report.message
    assert started.report.summary["verdict"] == "aborted"
    assert "10 requests were observed, at least 50 are asked for" in started.report.summary["reasons"]


def pair(ours: tuple[float, int], theirs: tuple[float, int] = (1.0, 10), problem: str = "") -> dict[str, Reply]:
    return {"candidate": Reply("p", *ours, "eos", problem), "champion": Reply("p", *theirs, "eos", "")}


def seen(pairs: list[dict[str, Reply]], least: int = 4) -> Observation:
    return observe(pairs, ROLES, least, LIMITS)


def test_a_candidate_like_the_champion_passes() -> None:
    found = seen([pair((1.1, 11))] * 4)
    assert (found.verdict, found.reasons, found.latency_ratio, found.length_ratio) == ("passed", (), 1.1, 1.1)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([pair((1.0, 10))] * 3, "3 requests were observed, at least 4 are asked for"),
        ([pair((1.6, 10))] * 4, "latency_ratio is 1.6, above its limit 1.5"),
        ([pair((1.0, 14))] * 4, "length_ratio is 1.4, above its limit 1.3"),
        ([pair((1.0, 10))] * 3 + [pair((1.0, 10), problem="empty answer")], "error_share is 0.25, above its limit 0.1"),
    ],
)
def test_each_limit_aborts_alone_with_its_reason(pairs: list[dict[str, Reply]], reason: str) -> None:
    found = seen(pairs)
    assert (found.verdict, found.reasons) == ("aborted", (reason,))


def test_nothing_observed_is_aborted() -> None:
    found = seen([])
    assert found.verdict == "aborted"
    assert found.error_share == 1.0
    assert any("could not be observed" in reason for reason in found.reasons)


def test_a_missing_or_unknown_limit_is_refused() -> None:
    with pytest.raises(EvaluationError, match="needs error_share, latency_ratio, length_ratio"):
        observe([pair((1.0, 10))], ROLES, 1, {"error_share": 0.0})
