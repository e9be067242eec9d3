"""A champion of an earlier base, with another tokenizer and template, is measured beside the candidate, each with its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from include.domain.parts import parts_of
from include.domain.spec import RunSpec
from include.eval.answers import Answer
from include.eval.models import load_tokenizer
from include.eval.tokens import token_ids, told_again
from include.gates.expected import expected_from
from include.gates.tables import MeasurementTable, table_from
from tests.eval.conftest import deployment, evaluation, run_here
from tests.training.harness import Started, Store

ROLES = {"candidate": "candidate", "champion": "earlier", "sft": "sft"}
ALONE = {"candidate": "earlier", "sft": "earlier"}


def measured(started: Started) -> MeasurementTable:
    assert started.code == 0, started.report.message
    return table_from(json.loads((started.output("measurements") / "measurements.json").read_text()))


def mixed(store: Store, **changes: Any) -> RunSpec:
    return evaluation(store, roles=ROLES, latency=["candidate", "champion"], **changes)


@pytest.fixture(scope="module")
def beside(store: Store) -> MeasurementTable:
    return measured(run_here(store, mixed(store)))


def values(table: MeasurementTable, role: str, metric: str, suite: str) -> dict[str, float]:
    row = table.find(role, metric, suite)
    assert row is not None, (role, metric)
    return {item.id: item.value for item in row.items}


def test_every_metric_is_there_for_the_same_items(store: Store, beside: MeasurementTable) -> None:
    expected = expected_from(mixed(store))
    assert [expected.refusal(row) for row in beside.rows] == [None] * len(beside.rows)
    for metric, suite in (
        ("exact_match", "words"),
        ("length_tokens", "words"),
        ("reward_score", "words"),
        ("likelihood_choice", "choices"),
    ):
        assert values(beside, "candidate", metric, suite).keys() == values(beside, "champion", metric, suite).keys()


def test_the_earlier_one_answers_as_it_does_by_itself(store: Store, beside: MeasurementTable) -> None:
    """Measured under its own tokenizer alone it says the same: nothing of the candidate's reached it."""
    suites = {"words": {"scorers": ["exact_match", "asked_form"], "limit": 68}, "choices": {"scorers": ["likelihood_choice"]}}
    plain = evaluation(store, roles=ALONE, latency=[], suites=suites, reward_hacking={"limit": 0})
    inputs = {name: value for name, value in plain.inputs.items() if name != "reward_model" and name != "suite_names"}
    alone = measured(run_here(store, replace(plain, inputs=inputs)))
    for metric, suite in (("exact_match", "words"), ("asked_form", "words"), ("likelihood_choice", "choices")):
        assert values(alone, "candidate", metric, suite) == values(beside, "champion", metric, suite)


def test_a_part_of_the_earlier_one_counts_in_the_runs_tokens_too(store: Store, beside: MeasurementTable) -> None:
    (part,) = [part for part in parts_of(mixed(store), {"parts": True}) if part.name == "champion"]
    alone = measured(run_here(store, part.spec))
    for metric in ("length_tokens", "reward_score"):
        assert values(alone, "model", metric, "words") == pytest.approx(values(beside, "champion", metric, "words"))


def test_what_a_token_costs_is_counted_in_the_runs_tokens(beside: MeasurementTable) -> None:
    """Seconds are each deployment's own; how many tokens they gave is counted alike, as the lengths are."""
    for role in ("candidate", "champion"):
        seconds, speed, cost = (values(beside, role, metric, "words") for metric in ("latency_s", "tokens_per_s", "device_s_per_1k_tokens"))
        lengths = values(beside, role, "length_tokens", "words")
        assert {item: speed[item] * seconds[item] for item in seconds} == pytest.approx({item: lengths[item] for item in seconds})
        assert cost == pytest.approx({item: 1000 * seconds[item] / lengths[item] for item in seconds})


def test_an_answer_told_again_keeps_its_text_and_its_end(store: Store) -> None:
    other = load_tokenizer(Path(store.places["earlier"].path))
    ours = load_tokenizer(Path(store.places["candidate"].path))
    text = "3 + 4 = 7"
    ended, cut = told_again([Answer(text, (1, 2), "eos"), Answer(text, (1, 2), "length")], other)
    assert (ended.text, cut.text) == (text, text)
    assert list(cut.tokens) == token_ids(other, text)
    assert list(ended.tokens) == [*token_ids(other, text), other.eos_token_id]
    assert ours.decode(told_again([cut], ours)[0].tokens) == text
    assert len(told_again([Answer("", (), "length")], other)[0].tokens) == 1


def test_a_deployment_with_another_tokenizer_than_its_weights_is_refused_by_name(store: Store) -> None:
    spec = mixed(store)
    wrong = deployment(store, "earlier", spec, tokenizer=spec.tokenizer)
    started = run_here(store, mixed(store, deployments={**spec.config["deployments"], "champion": wrong}))
    assert started.report.outcome == "failed"
    assert "input model_champion" in started.report.message
    assert "its tokenizer is" in started.report.message
