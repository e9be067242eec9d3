"""Statistics merged by batches equal those of all numbers at once; missing rewards stay missing."""

import json
import math
import random
import statistics
from pathlib import Path

import pytest

from include.domain.errors import IntegrityError
from include.runtime.reward_stats import RewardNormaliser, RunningStats, combine


def test_merged_batches_equal_all_numbers_at_once() -> None:
    draw = random.Random(7)
    values = [draw.gauss(50, 3) for _ in range(1000)]
    merged = RunningStats()
    for start, stop in ((0, 1), (1, 10), (10, 400), (400, 1000)):
        merged = merged.merge(RunningStats.of(values[start:stop]))
    assert merged.count == 1000
    assert merged.mean == pytest.approx(statistics.fmean(values), rel=1e-13)
    assert merged.std == pytest.approx(statistics.pstdev(values), rel=1e-12)


def test_merging_two_small_sets_by_hand() -> None:
    merged = RunningStats.of([1.0, 3.0]).merge(RunningStats.of([5.0]))
    assert (merged.count, merged.mean, merged.squares) == (3, 3.0, 8.0)


def test_merging_with_nothing_changes_nothing() -> None:
    stats = RunningStats.of([1.0, 2.0])
    assert stats.merge(RunningStats()) == stats
    assert RunningStats().merge(stats) == stats


def test_a_reward_is_measured_in_deviations_and_clipped_at_five() -> None:
    normaliser = RewardNormaliser(RunningStats.of([1.0, 3.0]))
    assert normaliser.normalise(4.0) == pytest.approx(2.0, rel=1e-7)
    assert normaliser.clipped(normaliser.normalise(400.0)) == 5.0
    assert normaliser.clipped(normaliser.normalise(-400.0)) == -5.0


def test_adding_a_constant_to_every_raw_score_changes_nothing() -> None:
    plain, moved = [0.25, 1.5, -3.0], [100.25, 101.5, 97.0]
    assert RewardNormaliser(RunningStats.of(moved)).normalise(101.5) == pytest.approx(
        RewardNormaliser(RunningStats.of(plain)).normalise(1.5)
    )


def test_a_missing_reward_stays_missing_and_never_enters_the_statistics() -> None:
    normaliser = RewardNormaliser(RunningStats.of([1.0, 3.0]))
    assert math.isnan(normaliser.clipped(normaliser.normalise(math.nan)))
    assert normaliser.seen([math.nan, math.inf]) == normaliser


def test_it_is_written_and_read_back_exactly(tmp_path: Path) -> None:
    normaliser = RewardNormaliser(RunningStats.of([0.1, 0.7, -2.3]))
    normaliser.write(tmp_path)
    again = RewardNormaliser.read(tmp_path)
    assert again.stats.mean == normaliser.stats.mean
    assert again.stats.std == pytest.approx(normaliser.stats.std, rel=1e-15)
    assert (again.stats.count, again.epsilon, again.clip) == (3, 1e-8, 5.0)


def test_a_folder_without_statistics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"reward\.json is missing"):
        RewardNormaliser.read(tmp_path)


def test_statistics_without_spread_are_refused() -> None:
    flat = RewardNormaliser(RunningStats.of([2.0, 2.0])).to_json()
    with pytest.raises(IntegrityError, match="cannot normalise"):
        RewardNormaliser.from_json(flat)


def test_the_minimum_of_an_ensemble_is_never_above_its_mean() -> None:
    scores = [0.3, -1.2, 2.0]
    assert combine(scores, "minimum") == -1.2
    assert combine(scores, "mean") == pytest.approx(1.1 / 3)
    assert math.isnan(combine([0.3, math.nan], "minimum"))


def test_what_is_written_comes_back_to_the_bit_and_older_folders_to_rounding() -> None:
    draw = random.Random(5)
    for _ in range(50):
        normaliser = RewardNormaliser(RunningStats.of([draw.gauss(1, 3) for _ in range(37)]))
        written = json.loads(json.dumps(normaliser.to_json()))
        assert RewardNormaliser.from_json(written) == normaliser
        del written["squares"]
        assert RewardNormaliser.from_json(written).stats.squares == pytest.approx(normaliser.stats.squares, rel=1e-12)
