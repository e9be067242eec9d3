"""Intervals: against formulas and simulation, so that a bound of 95 % is one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from include.gates.statistics import difference_interval, mean_interval, ratio_interval

COLUMN = st.lists(st.floats(-100, 100, allow_nan=False), min_size=2, max_size=30)


def names(count: int) -> list[str]:
    return [f"g{i}" for i in range(count)]


def test_without_clusters_it_is_the_paired_t_interval() -> None:
    source = np.random.RandomState(1)
    ours, theirs = source.normal(1, 2, 40), source.normal(0, 1, 40)
    found = difference_interval(ours, theirs, names(40), 0.05, binary=False)
    reference = stats.ttest_rel(ours, theirs).confidence_interval(0.90)
    assert (found.lower, found.upper) == pytest.approx((reference.low, reference.high))


def test_binary_differences_are_those_of_agresti_and_min() -> None:
    won, lost, n = 7, 2, 50
    ours = [1.0] * won + [0.0] * lost + [1.0] * (n - won - lost)
    theirs = [0.0] * won + [1.0] * lost + [1.0] * (n - won - lost)
    found = difference_interval(ours, theirs, names(n), 0.05, binary=True)
    centre = (won - lost) / (n + 2)
    spread = math.sqrt(((won + 0.5) + (lost + 0.5) - (won - lost) ** 2 / (n + 2)) * n / (n - 1)) / (n + 2) * stats.t.ppf(0.95, n - 1)
    assert (found.lower, found.upper) == pytest.approx((centre - spread, centre + spread))
    assert found.estimate == pytest.approx((won - lost) / n)


def test_no_difference_in_few_items_is_not_certainty() -> None:
    few, many = (difference_interval([1.0] * n, [1.0] * n, names(n), 0.05, binary=True) for n in (20, 200))
    assert few.lower < -0.05 < many.lower < 0


def test_items_of_one_group_count_as_one() -> None:
    source = np.random.RandomState(2)
    values = source.normal(0, 1, 30)
    once = mean_interval(values, names(30), 0.05, binary=False)
    thrice = mean_interval(np.repeat(values, 3), list(np.repeat(names(30), 3)), 0.05, binary=False)
    assert (thrice.lower, thrice.upper) == pytest.approx((once.lower, once.upper))


def test_one_group_alone_bounds_nothing() -> None:
    found = mean_interval([1.0, 2.0, 3.0], ["g"] * 3, 0.05, binary=False)
    assert (found.lower, found.upper) == (-math.inf, math.inf)


def test_the_lower_bound_misses_about_one_time_in_twenty() -> None:
    source = np.random.RandomState(3)
    misses = 0
    for _ in range(2000):
        effect = np.repeat(source.normal(0, 1, 25), 4)
        found = mean_interval(effect + source.normal(0, 1, 100), list(np.repeat(names(25), 4)), 0.05, binary=False)
        misses += found.lower > 0
    assert 0.035 < misses / 2000 < 0.07


def test_sparse_wins_do_not_miss_more_than_promised() -> None:
    source = np.random.RandomState(4)
    outcomes = source.choice([1.0, 0.0, -1.0], size=(2000, 200), p=[0.01, 0.98, 0.01])
    misses = sum(difference_interval(row, np.zeros(200), names(200), 0.05, binary=True).lower > 0 for row in outcomes)
    assert misses / 2000 < 0.06


@given(COLUMN)
def test_exchanging_the_sides_turns_the_interval(values: list[float]) -> None:
    zeros = [0.0] * len(values)
    there = difference_interval(values, zeros, names(len(values)), 0.05, binary=False)
    back = difference_interval(zeros, values, names(len(values)), 0.05, binary=False)
    assert (there.lower, there.upper) == pytest.approx((-back.upper, -back.lower), abs=1e-9)


@given(COLUMN)
def test_the_estimate_lies_between_the_bounds(values: list[float]) -> None:
    found = mean_interval(values, names(len(values)), 0.05, binary=False)
    assert found.lower - 1e-9 <= found.estimate <= found.upper + 1e-9


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_a_ratio_covers_what_it_is_drawn_from_and_repeats_itself(statistic: str) -> None:
    source = np.random.RandomState(5)
    theirs = source.uniform(1, 2, 60)
    ours = theirs * 1.2 * source.uniform(0.95, 1.05, 60)
    found = ratio_interval(ours, theirs, names(60), 0.05, statistic)
    assert 1.1 < found.lower < 1.2 < found.upper < 1.3
    assert found == ratio_interval(ours, theirs, names(60), 0.05, statistic)


def test_one_slow_request_does_not_move_the_ratio_of_medians() -> None:
    theirs = [1.0 + 0.01 * (i % 3) for i in range(16)]
    ours = [*theirs[:-1], 30.0]
    assert ratio_interval(ours, theirs, names(16), 0.05, "median").upper < 1.05
    assert ratio_interval(ours, theirs, names(16), 0.05, "mean").upper > 1.25


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=12), st.floats(0.2, 5))
def test_a_constant_factor_is_found_exactly(values: list[float], factor: float) -> None:
    found = ratio_interval([v * factor for v in values], values, names(len(values)), 0.05, "mean")
    assert (found.lower, found.upper) == pytest.approx((factor, factor))
