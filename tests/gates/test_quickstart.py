"""The quickstart gates: each has measurements that fail only it; whatever is not of this candidate blocks."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from include.domain.outcomes import Verdict
from include.gates.policy import GROUPS, GateSet
from include.gates.results import GateReport
from tests.gates.tables import ROLES, change, good, judged, some


def verdicts(report: GateReport) -> dict[str, set[Verdict]]:
    found: dict[str, set[Verdict]] = {}
    for result in report.results:
        found.setdefault(result.name, set()).add(result.verdict)
    return found


def blocked(report: GateReport) -> dict[str, tuple[Verdict, str]]:
    return {f"{r.name}/{r.against}": (r.verdict, r.cause) for r in report.results if not r.lets_through}


def test_a_candidate_that_is_better_where_asked_and_no_worse_elsewhere_passes(quickstart: GateSet) -> None:
    report = judged(quickstart, good())
    assert (report.passed, blocked(report)) == (True, {})


FAILS_ONLY: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "asked_form_better": lambda d: change(d, "candidate", "asked_form", lambda i, old: float(i % 4 == 0)),
    "exact_match_no_worse": lambda d: _reward_as_sft(change(d, "candidate", "exact_match", lambda i, old: float(i % 50 == 0))),
    "piqa_no_worse": lambda d: change(d, "candidate", "likelihood_choice", lambda i, old: float(i % 3 == 1)),
    "bbq_no_worse": lambda d: change(d, "candidate", "bbq_accuracy", lambda i, old: float(i % 5 == 0)),
    "length_ratio": lambda d: change(d, "candidate", "length_tokens", lambda i, old: old * 1.5),
    "latency_ratio": lambda d: change(d, "candidate", "latency_s", lambda i, old: old * 1.5),
    "reward_up_exact_down": lambda d: change(d, "candidate", "exact_match", lambda i, old: 0.0 if i in (0, 100, 150, 200, 250) else old),
}


def _reward_as_sft(data: dict[str, Any]) -> dict[str, Any]:
    return change(data, "candidate", "reward_score", lambda i, old: old - 0.5)


@pytest.mark.parametrize("gate", FAILS_ONLY)
def test_each_gate_has_measurements_that_fail_only_it(quickstart: GateSet, gate: str) -> None:
    report = judged(quickstart, FAILS_ONLY[gate](good()))
    assert {r.name for r in report.results if not r.lets_through} == {gate}
    assert Verdict.FAIL in verdicts(report)[gate]
    assert report.passed is False


def test_every_gate_of_the_set_has_such_measurements(quickstart: GateSet) -> None:
    assert {gate.name for gate in quickstart.gates} == set(FAILS_ONLY)


def test_an_untouched_copy_of_the_sft_model_is_refused_for_no_improvement(quickstart: GateSet) -> None:
    data = good()
    sft = {(r["metric"], r["suite"]): r["items"] for r in data["rows"] if r["role"] == "sft"}
    for row in data["rows"]:
        if row["role"] == "candidate":
            row["items"] = copy.deepcopy(sft[(row["metric"], row["suite"])])
    report = judged(quickstart, data)
    assert blocked(report) == {"asked_form_better/sft": (Verdict.FAIL, "no_improvement")}
    assert "no improvement" in next(r.message for r in report.results if r.name == "asked_form_better")


STALE = {
    "model": "other_checkpoint",
    "deployment": "other_deployment",
    "suite_digest": "other_suite",
    "scorer": "other_scorer",
    "generation": "other_generation",
}


@pytest.mark.parametrize(("field", "cause"), STALE.items())
@pytest.mark.parametrize("role", ["candidate", "sft"])
def test_a_measurement_of_something_else_blocks_and_says_of_what(quickstart: GateSet, field: str, cause: str, role: str) -> None:
    data = good()
    for row in data["rows"]:
        if row["role"] == role and row["metric"] == "asked_form":
            row[field] = some("yesterday's")
    assert blocked(judged(quickstart, data)) == {"asked_form_better/sft": (Verdict.NOT_EVALUATED, cause)}


def test_measurements_on_two_backends_are_not_compared(quickstart: GateSet) -> None:
    data = good()
    for row in data["rows"]:
        if row["role"] == "candidate" and row["metric"] == "asked_form":
            row["backend"] = some("another backend")
    assert blocked(judged(quickstart, data)) == {"asked_form_better/sft": (Verdict.NOT_EVALUATED, "other_backend")}


def test_an_item_measured_of_one_side_only_blocks(quickstart: GateSet) -> None:
    data = good()
    next(r for r in data["rows"] if r["role"] == "candidate" and r["metric"] == "asked_form")["items"].pop()
    assert blocked(judged(quickstart, data)) == {"asked_form_better/sft": (Verdict.NOT_EVALUATED, "unpaired")}


@pytest.mark.parametrize("metric", ["asked_form", "reward_score"])
def test_a_missing_measurement_blocks(quickstart: GateSet, metric: str) -> None:
    data = good()
    data["rows"] = [r for r in data["rows"] if (r["role"], r["metric"]) != ("candidate", metric)]
    assert {cause for _, cause in blocked(judged(quickstart, data)).values()} == {"missing"}


def test_no_items_at_all_is_never_a_pass(quickstart: GateSet) -> None:
    data = good()
    for row in data["rows"]:
        row["items"] = []
    report = judged(quickstart, data)
    assert report.passed is False
    assert blocked(report)["asked_form_better/sft"] == (Verdict.NOT_EVALUATED, "empty")


def test_an_empty_table_is_never_a_pass(quickstart: GateSet) -> None:
    assert judged(quickstart, {"schema": "align/measurements/v1", "rows": []}).passed is False


def test_too_few_items_are_inconclusive_however_good(quickstart: GateSet) -> None:
    data = good()
    for row in data["rows"]:
        row["items"] = row["items"][:199] if row["suite"] == "word_problems" else row["items"]
    report = judged(quickstart, data)
    assert blocked(report)["asked_form_better/sft"] == (Verdict.INCONCLUSIVE, "too_few")


def test_without_a_champion_base_and_sft_model_are_the_baseline_by_name(quickstart: GateSet) -> None:
    roles = tuple(role for role in ROLES if role != "champion")
    report = judged(quickstart, good(roles), roles)
    assert [r.against for r in report.results if r.name == "exact_match_no_worse"] == ["base", "sft", "anchor"]
    assert report.notes[0] == "no champion: base and SFT model are the baseline"
    assert report.passed


def test_all_six_groups_stand_in_the_report_and_the_waived_ones_are_known_risks(quickstart: GateSet) -> None:
    report = judged(quickstart, good())
    assert list(dict.fromkeys(r.group for r in report.results)) == list(GROUPS)
    assert [risk.split(":")[0] for risk in report.known_risks] == ["human_pairwise", "multilingual_longtail"]


def test_a_waiver_covers_neither_fail_nor_inconclusive_nor_a_stale_measurement(quickstart: GateSet) -> None:
    waived = copy.deepcopy(quickstart)
    gate = next(g for g in waived.gates if g.name == "bbq_no_worse")
    object.__setattr__(gate, "waiver", "not today")
    failing = FAILS_ONLY["bbq_no_worse"](good())
    noisy = change(good(), "candidate", "bbq_accuracy", lambda i, old: float((i + (i % 6 == 0)) % 2 == 0) if i < 290 else old)
    stale = good()
    for row in stale["rows"]:
        if row["metric"] == "bbq_accuracy" and row["role"] == "candidate":
            row["model"] = some("yesterday's")
    for data in (failing, noisy, stale):
        assert judged(waived, data).passed is False


def test_a_waiver_covers_a_measurement_that_was_never_made(quickstart: GateSet) -> None:
    waived = copy.deepcopy(quickstart)
    object.__setattr__(next(g for g in waived.gates if g.name == "bbq_no_worse"), "waiver", "no safety data at hand")
    data = good()
    data["rows"] = [r for r in data["rows"] if r["metric"] != "bbq_accuracy"]
    report = judged(waived, data)
    assert report.passed
    assert any("no safety data at hand" in risk for risk in report.known_risks)
