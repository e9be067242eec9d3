"""The evaluation on tiny models: what it measures, once, what it refuses, and that a stopped process is gone on with."""

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from include.domain.canonical import digest
from include.domain.outcomes import Verdict
from include.domain.records import Reference, SuiteItem
from include.gates.expected import expected_from
from include.gates.judge import judge
from include.gates.policies import policies_from
from include.gates.tables import MeasurementTable, table_from
from tests.eval.conftest import CHOICES, GENERATION, NAMES, SUITES, evaluation, run_here, suite
from tests.training.harness import Started, Store, question, sums


def measured(started: Started) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((started.output("measurements") / "measurements.json").read_text())
    return body


@pytest.fixture(scope="module")
def done(store: Store) -> Started:
    started = run_here(store, evaluation(store))
    assert started.code == 0, started.report.message
    return started


@pytest.fixture(scope="module")
def table(done: Started) -> MeasurementTable:
    return table_from(measured(done))


@pytest.mark.parametrize(
    ("metric", "suite", "count"),
    [
        ("exact_match", "words", 68),
        ("asked_form", "words", 68),
        ("length_tokens", "words", 68),
        ("reward_score", "words", 20),
        ("dimension_score.clarity", "words", 20),
        ("dimension_score.factuality", "words", 20),
        ("likelihood_choice", "choices", CHOICES),
        ("bbq_accuracy", "names", NAMES),
        ("bbq_ambiguous_named", "names", NAMES // 3),
    ],
)
def test_every_role_has_every_metric_item_by_item(table: MeasurementTable, metric: str, suite: str, count: int) -> None:
    for role in ("candidate", "sft", "base", "anchor"):
        row = table.find(role, metric, suite)
        assert row is not None
        assert len({item.id for item in row.items}) == count


def test_what_was_measured_is_what_the_specification_asks_for(store: Store, table: MeasurementTable) -> None:
    expected = expected_from(evaluation(store))
    assert [expected.refusal(row) for row in table.rows] == [None] * len(table.rows)


def test_a_measurement_of_another_deployment_would_be_refused(store: Store, table: MeasurementTable) -> None:
    other = expected_from(evaluation(store, generation={**GENERATION, "max_new_tokens": 9}))
    assert {refused[0] for row in table.rows if (refused := other.refusal(row))} == {"other_generation"}


def test_one_deployment_under_two_roles_is_measured_once(done: Started, table: MeasurementTable) -> None:
    pairs = [(table.find("sft", row.metric, row.suite), row) for row in table.rows if row.role == "anchor"]
    assert all(sft is not None and sft.items == anchor.items for sft, anchor in pairs)
    # words 68 items in 2 portions, choices 1, names 1, rewards 1: for three deployments; and latency once
    assert done.report.asked_steps == 3 * (2 + 1 + 1 + 1) + 1


def test_different_models_give_different_values(table: MeasurementTable) -> None:
    for metric in ("reward_score", "dimension_score.clarity", "dimension_score.factuality"):
        rows = [table.find(role, metric, "words") for role in ("candidate", "sft", "base")]
        assert len({tuple(item.value for item in row.items) for row in rows if row is not None}) == 3


def test_latency_is_measured_side_by_side_with_its_hardware(done: Started) -> None:
    rows = {row["role"]: row for row in measured(done)["latency"]}
    assert set(rows) == {"candidate", "sft", "anchor"}
    assert {len(row["samples"]) for row in rows.values()} == {3}
    assert len({row["hardware"] for row in rows.values()}) == 1
    assert all(row["seconds_p50"] > 0 and row["tokens_per_s"] > 0 for row in rows.values())


def test_the_report_has_flat_figures_that_are_the_items_means(done: Started, table: MeasurementTable) -> None:
    row = table.find("candidate", "length_tokens", "words")
    assert row is not None
    assert done.report.metrics["words.length_tokens.candidate"] == pytest.approx(sum(i.value for i in row.items) / len(row.items))


COPY_GATES = {
    "name": "copy",
    "version": 1,
    "demonstration": True,
    "defaults": {"min_n": 50},
    "gates": [
        {"name": "shorter", "group": "cost_latency", "metric": "length_tokens", "suite": "words", "kind": "superiority", "against": "sft"},
        {"name": "form", "group": "capability_format", "metric": "asked_form", "suite": "words", "kind": "superiority", "against": "sft"},
        {
            "name": "exact",
            "group": "capability_format",
            "metric": "exact_match",
            "suite": "words",
            "kind": "non_inferiority",
            "against": ["sft", "anchor"],
            "margin": 0.05,
        },
    ],
}


def test_an_untouched_copy_of_the_sft_model_is_refused_by_what_was_really_measured(store: Store) -> None:
    spec = evaluation(store, roles={"candidate": "sft", "sft": "sft", "base": "base", "anchor": "sft"}, latency=[])
    started = run_here(store, spec)
    assert started.code == 0, started.report.message
    report = judge(policies_from(COPY_GATES), table_from(measured(started)), expected_from(spec))
    found = {(r.name, r.against): (r.verdict, r.cause) for r in report.results if r.kind != "not_built"}
    assert found == {
        ("shorter", "sft"): (Verdict.FAIL, "no_improvement"),
        ("form", "sft"): (Verdict.FAIL, "no_improvement"),
        ("exact", "sft"): (Verdict.PASS, ""),
        ("exact", "anchor"): (Verdict.PASS, ""),
    }
    assert report.passed is False


def _wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        progress = folder / "progress.json"
        if progress.is_file() and json.loads(progress.read_text())["step"] >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGUSR1, 75), (signal.SIGKILL, -9)])
def test_a_stopped_evaluation_goes_on_and_finds_the_same(store: Store, done: Started, sent: signal.Signals, code: int) -> None:
    spec = evaluation(store, salt=f"stopped by {sent.name}")
    arguments = store.prepare(spec, 1, 101)
    process = store.start(spec, arguments)
    _wait_for_step(Path(arguments[-1]), 3)
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == code
    again = store.run(spec, 2, generation_batch=5)
    assert again.code == 0, again.stderr
    assert again.report.first_step >= 3
    assert measured(again)["rows"] == measured(done)["rows"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"suite": {}}, "config.suite is not a setting"),
        ({"suites": {"words": {"scorers": ["exactness"]}}}, "must name at least one of exact_match"),
        ({"suites": {"choices": {"scorers": ["exact_match"]}}}, "need a reference, it has none"),
        ({"suites": {"words": {"scorers": ["likelihood_choice"]}}}, "needs at least two options"),
    ],
)
def test_a_specification_that_cannot_be_measured_fails_by_name(store: Store, change: dict[str, Any], message: str) -> None:
    started = run_here(store, evaluation(store, **change))
    assert (started.code, started.report.outcome) == (1, "failed")
    assert message in started.report.message


def test_a_deployment_of_other_weights_is_refused(store: Store) -> None:
    spec = evaluation(store)
    wrong = {**spec.config["deployments"], "candidate": spec.config["deployments"]["base"]}
    started = run_here(store, evaluation(store, deployments=wrong))
    assert "config.deployments.candidate.weights is" in started.report.message


def test_a_deployment_whose_digest_is_not_its_own_is_refused(store: Store) -> None:
    spec = evaluation(store)
    wrong = {**spec.config["deployments"], "candidate": {**spec.config["deployments"]["candidate"], "system_prompt": "Be brief."}}
    started = run_here(store, evaluation(store, deployments=wrong))
    assert "its own content gives" in started.report.message


def test_a_system_prompt_is_part_of_what_is_measured(store: Store, table: MeasurementTable) -> None:
    spec = evaluation(store)
    body = {k: v for k, v in spec.config["deployments"]["base"].items() if k != "digest"} | {
        "system_prompt": "Answer in one number, and nothing else."
    }
    prompted = {**spec.config["deployments"], "base": {**body, "digest": digest("deployment", body)}}
    small = {"suites": {"choices": {"scorers": ["likelihood_choice"]}, "words": {"scorers": ["length_tokens", "exact_match"], "limit": 30}}}
    started = run_here(store, evaluation(store, deployments=prompted, latency=[], **small))
    assert started.code == 0, started.report.message
    with_prompt, without = table_from(measured(started)), table
    assert with_prompt.find("base", "length_tokens", "words") is not None
    assert started.report.summary["deployments"]["base"] != spec.config["deployments"]["base"]["digest"]
    sft = with_prompt.find("sft", "likelihood_choice", "choices")
    plain = without.find("sft", "likelihood_choice", "choices")
    assert sft is not None
    assert plain is not None
    assert sft.items == plain.items


def test_refusal_is_measured_in_both_directions_and_leaves_latency_and_reward_to_the_suite_that_is_rewarded(store: Store) -> None:
    items = []
    for at, (first, second) in enumerate(sums()[:12]):
        prompt = replace(question(first, second), safety_class="unsafe" if at % 3 == 0 else "none", topic=f"t{at % 2}", reference=None)
        items.append(SuiteItem(f"request-{at}", prompt))
    suite(store, "requests", items)
    suites = {"requests": {"scorers": ["refusal"], "slices": ["topic", "safety_class"]}, "words": SUITES["words"]}
    spec = evaluation(store, salt="refusal", suites=suites)
    kept = {name: value for name, value in spec.inputs.items() if not name.startswith("suite_") or name == "suite_words"}
    spec = replace(spec, inputs={**kept, "suite_requests": store.places["suite_requests"].digest})
    spec = replace(spec, config={**spec.config, "scorers": {**spec.config["scorers"], "refusal": digest("test", "refusal")}})
    started = run_here(store, spec)
    assert started.code == 0, started.report.message
    found = table_from(measured(started))
    over, declined = (found.find("candidate", metric, "requests") for metric in ("over_refusal", "unsafe_refusal"))
    assert over is not None
    assert declined is not None
    assert (len(over.items), len(declined.items)) == (8, 4)
    assert {item.slices["safety_class"] for item in declined.items} == {"unsafe"}
    assert {item.slices["topic"] for item in over.items} == {"t0", "t1"}
    assert [expected_from(spec).refusal(row) for row in found.rows] == [None] * len(found.rows)
    assert found.find("candidate", "reward_score", "words") is not None
    assert {row["suite"] for row in measured(started)["latency"]} == {"words"}


def test_answers_that_are_compared_side_by_side_are_given_out_and_measured_nowhere_here(store: Store) -> None:
    suites = {"words": {"scorers": ["exact_match", "human_win_rate"], "limit": 9}, "choices": SUITES["choices"]}
    spec = evaluation(store, salt="compared", suites=suites, latency=[])
    spec = replace(spec, inputs={name: value for name, value in spec.inputs.items() if name != "suite_names"})
    started = run_here(store, spec)
    assert started.code == 0, started.report.message
    given = json.loads((started.output("answers") / "answers.json").read_text())
    assert [item["id"] for item in given["suites"]["words"]["items"]] == [row["id"] for row in measured(started)["rows"][0]["items"]]
    assert given["suites"]["words"]["digest"] == spec.inputs["suite_words"]
    assert sorted(one["roles"] for one in given["answers"]) == [["anchor", "sft"], ["base"], ["candidate"]]
    assert {len(one["texts"]) for one in given["answers"]} == {9}
    assert {row["metric"] for row in measured(started)["rows"]} == {"exact_match", "likelihood_choice"}
    assert "answers" not in run_here(store, evaluation(store, salt="not compared", latency=[])).report.outputs


def test_items_of_several_verifiers_are_measured_by_their_own_and_sliced_by_its_name(store: Store) -> None:
    asked = [Reference("instructions", "1", [{"id": "length_constraints:number_words", "relation": "less than", "num_words": 1000}])]
    asked += [Reference("exact_text", "1", "no model of this size says this")]
    prompts = [question(first, second) for first, second in sums()[:12]]
    suite(store, "mixed", [SuiteItem(f"mixed-{at}", replace(p, reference=asked[at % 2])) for at, p in enumerate(prompts)])
    spec = evaluation(store, salt="mixed", suites={"mixed": {"scorers": ["exact_match"], "slices": ["verifier"]}, "words": SUITES["words"]})
    kept = {name: value for name, value in spec.inputs.items() if not name.startswith("suite_") or name == "suite_words"}
    started = run_here(store, replace(spec, inputs={**kept, "suite_mixed": store.places["suite_mixed"].digest}))
    assert started.code == 0, started.report.message
    found = table_from(measured(started)).find("candidate", "exact_match", "mixed")
    assert found is not None
    values = {name: {item.value for item in found.items if item.slices["verifier"] == name} for name in ("instructions", "exact_text")}
    assert values == {"instructions": {1.0}, "exact_text": {0.0}}


def test_an_item_whose_reference_no_verifier_reads_fails_before_anything_is_measured(store: Store) -> None:
    first, second = sums()[0]
    unread = replace(question(first, second), reference=Reference("pattern", "1", "(a+)+b"))
    suite(store, "unread", [SuiteItem("unread-1", unread)])
    spec = evaluation(store, salt="unread", suites={"unread": {"scorers": ["exact_match"]}})
    kept = {name: value for name, value in spec.inputs.items() if not name.startswith("suite_")}
    started = run_here(store, replace(spec, inputs={**kept, "suite_unread": store.places["suite_unread"].digest}))
    assert started.code == 1
    assert "config.suites.unread item unread-1: pattern@1" in str(started.report.message)
