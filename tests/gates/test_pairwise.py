"""A share of wins: how it is made of verdicts, what it is held against, and that it is of the very deployments."""

from __future__ import annotations

from typing import Any

import pytest

from include.domain.outcomes import Verdict
from include.gates.errors import GateError
from include.gates.pairwise import pairwise_scorer, row, share_of_wins, sides
from include.gates.policies import policies_from
from include.gates.results import GateResult
from tests.gates.tables import good, judged, some

BETTER = {"name": "better", "group": "human_pairwise", "metric": "human_win_rate", "suite": "piqa", "kind": "superiority", "against": "sft"}
NO_WORSE = {**BETTER, "name": "no_worse", "kind": "non_inferiority", "against": ["champion", "anchor"], "margin": 0.1}
WAIVED = dict.fromkeys(
    ("capability_format", "safety_privacy_refusal", "multilingual_longtail", "cost_latency", "reward_hacking"), "tried elsewhere"
)


def a_set(*gates: dict[str, Any]) -> Any:
    return policies_from(
        {
            "name": "p",
            "version": 1,
            "demonstration": True,
            "defaults": {"alpha": 0.05, "min_n": 20},
            "gates": list(gates),
            "not_built": {group: why for group, why in WAIVED.items() if group not in {gate["group"] for gate in gates}},
        }
    )


def with_wins(values: dict[str, list[float]], scorer: str | None = None) -> dict[str, Any]:
    """Measurements in which the candidate has these shares beside each role."""
    data, identity = good(), {"metric": "human_win_rate", "suite": "piqa", "suite_digest": some("suite piqa")}
    for role, of in values.items():
        plain = next(r for r in data["rows"] if r["role"] == "candidate" and r["suite"] == "piqa")
        kept = {k: plain[k] for k in ("model", "deployment", "generation", "backend")}
        items = [{"id": f"i{n}", "group": f"g{n}", "value": value, "slices": {}} for n, value in enumerate(of)]
        whole = {**kept, **identity, "scorer": scorer or some("code")}
        data["rows"].append(row(whole, {"role": role, "deployment": some(f"deployment {role}")}, items))
    return data


def results(data: dict[str, Any], *gates: dict[str, Any]) -> dict[str | None, GateResult]:
    return {r.against: r for r in judged(a_set(*gates), data).results if r.metric == "human_win_rate"}


def test_ties_and_two_bad_answers_are_half_a_win_and_what_nobody_can_judge_is_none() -> None:
    assert share_of_wins(["A", "tie", "both_bad", "B"], "A") == 0.5
    assert share_of_wins(["A"], "A") == 1.0
    assert share_of_wins(["A"], "B") == 0.0
    assert share_of_wins(["cannot_judge", "B"], "B") == 1.0
    assert share_of_wins(["cannot_judge"], "A") is None
    assert share_of_wins([], "A") is None


def test_sides_are_drawn_by_the_seed_about_as_often_one_as_the_other() -> None:
    items = [f"item-{n}" for n in range(400)]
    drawn = sides(7, some("a"), some("b"), items)
    assert drawn == sides(7, some("a"), some("b"), items)
    assert drawn != sides(8, some("a"), some("b"), items)
    assert 160 < sum(side == "A" for side in drawn.values()) < 240


def test_a_candidate_that_people_prefer_is_better_and_its_win_rate_is_the_estimate() -> None:
    found = results(with_wins({"sft": [1.0, 1.0, 0.5, 1.0, 0.0] * 40}), BETTER, NO_WORSE)
    assert (found["sft"].verdict, found["sft"].estimate, found["sft"].limit) == (Verdict.PASS, pytest.approx(0.7), 0.5)
    assert found["champion"].cause == "missing"
    assert "beside champion" in found["champion"].message


def test_a_candidate_that_nobody_tells_from_the_other_is_no_improvement_and_no_worse() -> None:
    half = [0.5] * 120
    found = results(with_wins({"sft": half, "champion": half, "anchor": half}), BETTER, NO_WORSE)
    assert (found["sft"].verdict, found["sft"].cause) == (Verdict.FAIL, "no_improvement")
    assert found["champion"].verdict is Verdict.PASS
    assert found["champion"].limit == pytest.approx(0.4)


def test_few_or_noisy_comparisons_decide_nothing() -> None:
    noisy = results(with_wins({"sft": [1.0, 0.0] * 20 + [1.0] * 3}), BETTER, NO_WORSE)["sft"]
    assert (noisy.verdict, noisy.cause) == (Verdict.INCONCLUSIVE, "within_noise")
    few = results(with_wins({"sft": [1.0] * 19}), BETTER, NO_WORSE)["sft"]
    assert (few.verdict, few.cause) == (Verdict.INCONCLUSIVE, "too_few")


def test_answers_of_one_prompt_group_count_as_one_piece_of_evidence() -> None:
    data = with_wins({"sft": [1.0] * 60})
    for item in data["rows"][-1]["items"]:
        item["group"] = "the same"
    found = results(data, BETTER, NO_WORSE)["sft"]
    assert (found.verdict, found.groups) == (Verdict.INCONCLUSIVE, 1)


def test_what_was_compared_with_another_deployment_is_refused() -> None:
    data = with_wins({"sft": [1.0] * 60})
    data["rows"][-1]["scorer"] = pairwise_scorer(some("code"), some("deployment of yesterday"))
    found = results(data, BETTER, NO_WORSE)["sft"]
    assert (found.verdict, found.cause) == (Verdict.NOT_EVALUATED, "other_scorer")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "exact_match"}, "human_pairwise takes human_win_rate"),
        ({"kind": "absolute", "against": [], "margin": 0.6}, "is for superiority and non_inferiority"),
        ({"kind": "non_inferiority", "scale": "ratio", "margin": 0.1}, "is for superiority and non_inferiority"),
        ({"margin": 0.5}, "no distance from a half"),
    ],
)
def test_gates_that_make_no_sense_of_a_share_of_wins_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(GateError, match=words):
        a_set({**BETTER, **change}, NO_WORSE)
