"""The reward model's gate: better than chance, than 'longer wins' and than 'shorter wins', on enough pairs."""

from typing import Any

import pytest

from include.domain.outcomes import Verdict
from include.gates.errors import GateError
from include.gates.render import table
from include.gates.reward_model import reward_model_gate
from tests.gates.tables import some


def measurements(right: list[float], chosen: list[float], rejected: list[float]) -> dict[str, Any]:
    columns = {"pair_accuracy": right, "chosen_tokens": chosen, "rejected_tokens": rejected}
    shared = {"role": "reward_model", "model": some("m"), "deployment": None, "suite": "pairs", "suite_digest": some("s")}
    shared |= {"scorer": some("c"), "generation": some("g"), "backend": some("b")}
    rows = [
        {**shared, "metric": metric, "items": [{"id": str(i), "group": str(i), "value": v} for i, v in enumerate(values)]}
        for metric, values in columns.items()
    ]
    return {"schema": "align/measurements/v1", "rows": rows}


def verdicts(data: dict[str, Any], **settings: Any) -> dict[str, Verdict]:
    return {r.name: r.verdict for r in reward_model_gate(data, settings).results}


GOOD = [float(i % 4 != 0) for i in range(120)]
EVEN = [20.0 + i % 2 for i in range(120)]
ODD = [20.0 + (i + 1) % 2 for i in range(120)]


def test_three_of_four_pairs_right_whatever_the_length_passes() -> None:
    report = reward_model_gate(measurements(GOOD, EVEN, ODD), {})
    assert report.passed
    assert [r.n for r in report.results] == [120, 120, 120]


def test_chance_does_not_pass() -> None:
    assert verdicts(measurements([float(i % 2) for i in range(120)], EVEN, ODD))["better_than_chance"] is not Verdict.PASS


def test_a_model_that_only_prefers_the_longer_answer_fails_that_gate_alone() -> None:
    longer = [20.0 + 10 * value for value in GOOD]
    found = verdicts(measurements(GOOD, longer, [25.0] * 120))
    assert found == {"better_than_chance": Verdict.PASS, "better_than_longer_wins": Verdict.FAIL, "better_than_shorter_wins": Verdict.PASS}


def test_a_model_that_only_prefers_the_shorter_answer_fails_that_gate_alone() -> None:
    shorter = [30.0 - 10 * value for value in GOOD]
    assert verdicts(measurements(GOOD, shorter, [25.0] * 120))["better_than_shorter_wins"] is Verdict.FAIL


def test_fewer_pairs_than_asked_for_block() -> None:
    found = verdicts(measurements(GOOD[:99], EVEN[:99], ODD[:99]))
    assert set(found.values()) == {Verdict.INCONCLUSIVE}


def test_accuracy_by_length_and_length_matched_is_reported() -> None:
    chosen = EVEN[:60] + [40.0] * 60
    report = reward_model_gate(measurements(GOOD, chosen, ODD), {"min_pairs": 100, "alpha": 0.05})
    assert report.notes[0].startswith("all pairs: accuracy 0.750")
    assert report.notes[1].startswith("length-matched pairs: accuracy 0.750")
    assert report.notes[1].endswith("n=60")
    assert "longer answer was chosen" in table(report)


def test_an_accuracy_that_is_too_good_is_a_warning() -> None:
    assert "over-fitting" in reward_model_gate(measurements([1.0] * 120, EVEN, ODD), {}).notes[-1]


@pytest.mark.parametrize("missing", ["pair_accuracy", "chosen_tokens", "rejected_tokens"])
def test_a_missing_row_is_an_error_not_a_pass(missing: str) -> None:
    data = measurements(GOOD, EVEN, ODD)
    data["rows"] = [row for row in data["rows"] if row["metric"] != missing]
    with pytest.raises(GateError, match=f"{missing} was not measured"):
        reward_model_gate(data, {})


def test_no_pairs_at_all_are_an_error() -> None:
    with pytest.raises(GateError, match="0 pairs"):
        reward_model_gate(measurements([], [], []), {})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(GateError, match="'min_pair' is not known; it may have min_pairs, alpha"):
        reward_model_gate(measurements(GOOD, EVEN, ODD), {"min_pair": 10})


def test_what_is_foretold_of_dimensions_stands_in_the_notes_beside_the_training_mean() -> None:
    data = measurements(GOOD, EVEN, ODD)
    shared = {name: value for name, value in data["rows"][0].items() if name not in ("metric", "items")}
    for metric, value in (("dimension_error.clarity", 0.25), ("dimension_baseline_error.clarity", 0.75)):
        data["rows"].append({**shared, "metric": metric, "items": [{"id": str(i), "group": str(i), "value": value} for i in range(40)]})
    for metric in ("dimension_error.safety", "dimension_baseline_error.safety"):
        data["rows"].append({**shared, "metric": metric, "items": []})
    report = reward_model_gate(data, {})
    assert report.notes[-2:] == (
        "clarity: mean error 0.25 [0.25, 0.25] points of 1 to 5, the training mean's 0.75, n=40",
        "safety: no held-out pair has a score",
    )
    assert report.passed
    assert "the training mean's 0.75" in table(report)
    assert reward_model_gate(measurements(GOOD, EVEN, ODD), {}).notes == report.notes[:-2]
