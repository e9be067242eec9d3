"""Whether a judge says what people say: its kappa with an interval, overall and by slice, against a floor that a bound must reach."""

from __future__ import annotations

import pytest

from include.domain.outcomes import Verdict
from include.gates.calibration import Both, calibration_of
from include.gates.errors import GateError
from tests.gates.tables import judged
from tests.gates.test_pairwise import BETTER, NO_WORSE, a_set, with_wins

BY_JUDGE = {**BETTER, "name": "judge", "group": "capability_format", "metric": "judge_win_rate"}


def pairs(n: int, agree: int, **slices: str) -> list[Both]:
    """So many pairs, of which `agree` in ten agree; people prefer either side equally often."""
    found = []
    for i in range(n):
        people = float(i % 2)
        found.append(Both(f"g{i}", people, people if i // 2 % 10 < agree else 1 - people, slices))
    return found


def test_a_judge_that_says_what_people_say_reaches_the_floor_and_one_at_random_does_not() -> None:
    good = calibration_of(pairs(200, 9))
    assert good.overall.kappa == pytest.approx(0.8)
    assert good.overall.lower is not None
    assert 0.6 < good.overall.lower < 0.8
    assert good.shortfalls(0.6, 50) == []
    assert calibration_of(pairs(200, 5)).shortfalls(0.4, 50) != []


def test_the_bound_decides_and_not_the_estimate() -> None:
    few = calibration_of(pairs(20, 8))
    assert few.overall.kappa is not None
    assert few.overall.kappa >= 0.4
    (why,) = few.shortfalls(0.4, 20)
    assert "lower bound must reach 0.4" in why


def test_few_pairs_or_one_that_always_says_the_same_say_nothing_for_a_judge() -> None:
    assert calibration_of(pairs(40, 10)).shortfalls(0.4, 50) == ["people and the judge both judged 40 pairs, 50 are asked for"]
    assert "not defined" in calibration_of([Both(f"g{i}", 1.0, 1.0) for i in range(60)]).shortfalls(0.4, 50)[0]
    assert calibration_of([]).shortfalls(0.4, 2) != []


def test_a_slice_on_which_people_do_not_agree_is_named() -> None:
    found = calibration_of([*pairs(400, 10, language="en"), *pairs(60, 5, language="de")])
    assert found.overall.lower is not None
    assert found.overall.lower > 0.4
    (why,) = found.shortfalls(0.4, 50)
    assert why.startswith("on language=de its kappa with people is 0.0")
    assert found.shortfalls(0.4, 100) == [], "a slice with few pairs blocks nothing"


def test_pairs_of_one_prompt_group_are_one_piece_of_evidence() -> None:
    same = [Both("the same", p.people, p.judge) for p in pairs(200, 9)]
    assert calibration_of(same).overall.lower is None
    assert calibration_of(same).shortfalls(0.4, 50) != []


def test_a_set_in_which_a_judge_alone_sees_something_better_is_refused() -> None:
    with pytest.raises(GateError, match="never alone at the gate"):
        a_set(BY_JUDGE, NO_WORSE)
    assert a_set(BY_JUDGE, BETTER, NO_WORSE).gates[0].metric == "judge_win_rate"
    with pytest.raises(GateError, match="nothing that people compared blindly"):
        a_set({**BY_JUDGE, "group": "human_pairwise"}, BETTER, NO_WORSE)


def test_rows_that_whoever_measured_them_refuses_are_not_evaluated_and_block() -> None:
    data = with_wins({"sft": [1.0] * 60})
    data["rows"].append({**data["rows"][-1], "metric": "judge_win_rate", "refused": {"cause": "uncalibrated", "message": "kappa is 0.1"}})
    found = {r.name: r for r in judged(a_set(BY_JUDGE, BETTER, NO_WORSE), data).results}
    assert (found["judge"].verdict, found["judge"].cause, found["judge"].message) == (Verdict.NOT_EVALUATED, "uncalibrated", "kappa is 0.1")
    assert not found["judge"].lets_through
    assert found["better"].verdict is Verdict.PASS
