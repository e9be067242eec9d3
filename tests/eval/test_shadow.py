"""The shadow run: on tiny models, and its verdict against each limit."""

import json
from dataclasses import replace
from typing import Any

import pytest

from include.domain.spec import RunSpec
from include.eval.errors import EvaluationError
from include.eval.observations import Observation, Reply, observe
from tests.eval.conftest import GENERATION, run_here
from tests.training.harness import Store

WIDE = {"error_share": 1.0, "latency_ratio": 100.0, "length_ratio": 100.0}
LIMITS = {"error_share": 0.1, "latency_ratio": 1.5, "length_ratio": 1.3}
ROLES = ("candidate", "champion")


def run_spec(store: Store, **changes: Any) -> RunSpec:
    config = {"requests": 6, "limits": WIDE, "generation": GENERATION, "dtype": "float32", "system_prompt": None, "max_new_tokens": 8}
    spec = store.spec("shadow", {"model_candidate": "candidate", "model_sft": "sft", "prompts": "prompts"}, {**config, **changes})
    return replace(spec, program="include.eval.shadow")


def test_both_models_answer_the_same_prompts_and_the_observations_say_so(store: Store) -> None:
    started = run_here(store, run_spec(store))
    assert started.code == 0, started.report.message
    body = json.loads((started.output("observations") / "observations.json").read_text())
    assert (body["kind"], body["requests"], len(body["replies"])) == ("shadow", 6, 6)
    assert all(reply["candidate"]["id"] == reply["sft"]["id"] for reply in body["replies"])
    assert body["verdict"] == started.report.summary["verdict"] == "passed"


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
