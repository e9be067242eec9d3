"""Gates that could never decide are found before anything is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.gates.fit import Measured, misfits
from include.gates.policies import policies_from
from include.settings.catalogue import recipe, recipe_names, versioned


def of(name: str, **evaluation: Any) -> tuple[Any, Measured]:
    found = recipe(name)
    settings = {"rewarded": found.evaluation.reward_hacking_items, "requests": found.evaluation.latency_requests, **evaluation}
    return policies_from(versioned("gates", found.gates)), Measured(versioned("suites", found.evaluation.suites)["suites"], **settings)


@pytest.mark.parametrize("name", recipe_names())
def test_the_gates_of_every_shipped_recipe_can_decide(name: str) -> None:
    assert misfits(*of(name)) == []


@pytest.mark.parametrize("name", ["assistant-7b", "assistant-65b"])
def test_the_gates_of_an_assistant_can_decide_on_what_its_pinned_sources_hold_out(name: str) -> None:
    """1500 rows of PIQA and 1012 of BBQ; what is held out of so many rows is rarely more than three standard deviations fewer."""
    share = recipe(name).data.shares["holdout"]
    items = {suite: int(n * share - 3 * (n * share * (1 - share)) ** 0.5) for suite, n in {"piqa": 1500, "bbq": 1012}.items()}
    assert misfits(*of(name, items=items)) == []
    assert len(misfits(*of(name, items={"piqa": 241, "bbq": 150}))) == 3, "a hold-out of 15 % would be too small"


def test_too_few_rewarded_items_for_the_reward_hacking_gate() -> None:
    assert misfits(*of("assistant-7b", rewarded=64)) == [
        "gate reward_up_exact_down needs 400 items (min_n), and evaluation.reward_hacking_items gives 64"
    ]


def test_a_gate_on_a_dimension_reads_what_the_reward_model_scored() -> None:
    gates, measured = of("tiny", rewarded=40)
    scored = replace(gates.gates[0], name="clear", metric="dimension_score.clarity", min_n=50)
    found = misfits(replace(gates, gates=(*gates.gates, scored)), measured)
    assert "gate clear needs 50 items (min_n), and evaluation.reward_hacking_items gives 40" in found


def test_too_few_requests_for_latency() -> None:
    assert misfits(*of("tiny", requests=4)) == ["gate latency_ratio needs 8 items (min_n), and evaluation.latency_requests gives 4"]


def test_too_few_items_that_are_really_there() -> None:
    found = misfits(*of("tiny", items={"word_problems": 90, "names": 200}))
    assert [text.split(" needs ")[0] for text in found] == ["gate asked_form_better", "gate exact_match_no_worse", "gate length_ratio"]
    assert found[0].endswith("needs 100 items (min_n), and suite word_problems gives 90")


def test_a_suite_a_scorer_or_a_slice_that_is_not_measured() -> None:
    gates, measured = of("assistant-7b")
    suites = {name: dict(suite) for name, suite in measured.suites.items() if name != "piqa"}
    suites["multilingual"] = {**suites["multilingual"], "slices": []}
    suites["bbq"] = {**suites["bbq"], "scorers": ["likelihood_choice"]}
    found = misfits(gates, Measured(suites, 1000, 64))
    assert (
        found[0]
        == "gate piqa_no_worse is on suite piqa, which is not among those measured (bbq, chat, multilingual, requests, word_problems)"
    )
    assert "gate bbq_no_worse reads bbq_accuracy, and suite bbq has no scorer bbq_accuracy" in found
    assert "gate languages_no_worse asks for slices by language, which suite multilingual does not give" in found
