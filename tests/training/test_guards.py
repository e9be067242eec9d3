"""Guards: noise passes, lasting or large trouble stops the run under its own name."""

import json
import math
from dataclasses import replace

import pytest

from include.training.rl.guard_limits import BatchFigures, GuardLimits, GuardStop
from include.training.rl.guards import Guards

CALM = BatchFigures(0.3, 1.0, 0.01, 0.5, 0.6, 12.0, 0.9, 0.1, 0.5, gradient_norm=0.4, advantage_spread=2.0, score_spread=1.5)
HEALTHY_KL = [(0.3, 1.01), (0.5, 1.01), (-0.02, 1.01), (0.8, 1.01), (1.1, 1.01), (1.0, 1.01)]
BROKEN_KL = [(0.4, 1.0), (-0.03, 1.01), (0.2, 1.02), (-2.6, 1.6), (-5.9, 3.8), (-41.0, 12.7)]


def _stops(batches: list[BatchFigures], limits: GuardLimits | None = None, kl_target: float = 6.0) -> tuple[int, str] | None:
    guards = Guards(limits or GuardLimits(), kl_target)
    for number, batch in enumerate(batches, 1):
        try:
            guards.check(batch)
        except GuardStop as stop:
            return number, stop.guard
    return None


def test_a_single_small_negative_kl_is_noise() -> None:
    assert _stops([replace(CALM, kl=kl, ratio=ratio) for kl, ratio in HEALTHY_KL]) is None


def test_a_kl_that_turns_negative_stops_by_the_fifth_batch_however_the_reward_rises() -> None:
    batches = [replace(CALM, kl=kl, ratio=ratio, model_reward=float(i)) for i, (kl, ratio) in enumerate(BROKEN_KL)]
    assert _stops(batches) == (4, "kl_negative")


def test_a_slightly_negative_kl_stops_when_it_lasts() -> None:
    assert _stops([replace(CALM, kl=-0.6)] * 5) == (3, "kl_negative")


def test_an_exploding_kl_stops_at_once_and_a_high_one_when_it_lasts() -> None:
    assert _stops([CALM, replace(CALM, kl=51.0)]) == (2, "kl_exploding")
    assert _stops([replace(CALM, kl=26.0)] * 5) == (3, "kl_exploding")


def test_a_ratio_far_from_one_stops() -> None:
    assert _stops([replace(CALM, ratio=3.8)]) == (1, "ratio_exploding")


def test_a_nan_loss_stops_and_is_named() -> None:
    with pytest.raises(GuardStop, match="non_finite: policy_loss is nan"):
        Guards(GuardLimits(), 6.0).check(replace(CALM, policy_loss=math.nan))


def test_a_value_loss_that_diverges_stops_with_its_checks_in_order() -> None:
    guards = Guards(GuardLimits(), 6.0)
    for batch in (CALM, replace(CALM, value_loss=11.0), replace(CALM, value_loss=11.0)):
        guards.check(batch)
    with pytest.raises(GuardStop) as stop:
        guards.check(replace(CALM, value_loss=11.0))
    text = str(stop.value)
    assert text.startswith("value_loss_diverging")
    assert text.index("inputs") < text.index("discount") < text.index("modes") < text.index("Levers")


def test_low_entropy_alone_is_no_collapse_but_with_the_same_answer_everywhere_it_is() -> None:
    assert _stops([replace(CALM, entropy=5e-3)] * 5) is None
    assert _stops([replace(CALM, entropy=5e-3, distinct_share=0.1)] * 5) == (3, "entropy_collapse")


def test_a_deterministic_policy_has_collapsed_though_its_answers_to_different_prompts_differ() -> None:
    still = replace(CALM, entropy=2e-5, distinct_share=1.0)
    assert _stops([still] * 5) == (3, "entropy_collapse")
    assert _stops([still, still, CALM, still, still]) is None
    assert _stops([replace(still, verified=None)] * 5) == (3, "entropy_collapse")
    assert _stops([replace(still, verified=1.0)] * 5) is None, "one right answer to a sum is all there is to learn"
    assert _stops([still] * 5, GuardLimits(entropy_floor=0.0)) is None


@pytest.mark.parametrize("nothing", [{"gradient_norm": 0.0}, {"advantage_spread": 0.0}])
def test_a_run_that_learns_nothing_stops_however_calm_it_looks(nothing: dict[str, float]) -> None:
    dead = replace(CALM, **nothing)
    assert _stops([CALM, dead, dead, dead]) == (4, "no_gradient")
    assert _stops([dead, dead, CALM, dead, dead]) is None
    with pytest.raises(GuardStop) as stop:
        Guards(GuardLimits(consecutive=1), 6.0).check(dead)
    text = str(stop.value)
    assert text.index("rewards: do score_p05") < text.index("verifier") < text.index("learning rate")
    assert "Levers" not in text


def test_rewards_that_are_all_the_same_stop_when_it_lasts_but_not_where_all_is_right() -> None:
    flat = replace(CALM, score_spread=0.0)
    assert _stops([flat] * 12) == (10, "reward_flat")
    assert _stops([flat] * 12, GuardLimits(flat_iterations=4)) == (4, "reward_flat")
    assert _stops([*[flat] * 9, CALM, *[flat] * 9]) is None
    for calm in (replace(flat, verified=1.0), replace(flat, score_spread=None)):
        assert _stops([calm] * 12) is None
    assert _stops([flat] * 12, GuardLimits(flat_iterations=0)) is None


def test_thresholds_below_0_are_refused() -> None:
    for limits in ({"entropy_floor": -1.0}, {"flat_iterations": -1}):
        with pytest.raises(ValueError, match="entropy_floor and flat_iterations must not be below 0"):
            GuardLimits.from_config(limits)


def test_answers_three_times_as_long_stop_when_it_lasts() -> None:
    assert _stops([CALM] + [replace(CALM, mean_length=40.0)] * 3) == (4, "length_explosion")


def test_reward_up_while_the_verifier_falls_is_named_with_the_first_check() -> None:
    batches = [CALM] * 3 + [replace(CALM, model_reward=2.5, verified=0.1)] * 3
    guards = Guards(GuardLimits(), 6.0)
    for batch in batches[:-1]:
        guards.check(batch)
    with pytest.raises(GuardStop) as stop:
        guards.check(batches[-1])
    text = str(stop.value)
    assert text.startswith("reward_hacking")
    assert text.index("accuracy suspiciously high") < text.index("KL out of hand") < text.index("read samples")


def test_too_many_missing_rewards_stop_the_run() -> None:
    with pytest.raises(GuardStop, match="8 of 17 answers have no finite reward"):
        Guards(GuardLimits(), 6.0).check_rewards(8, 17)
    Guards(GuardLimits(), 6.0).check_rewards(3, 17)


def test_a_first_ratio_away_from_one_or_not_a_number_stops() -> None:
    guards = Guards(GuardLimits(), 6.0)
    guards.check_first_ratio(9e-5, 1e-4)
    for gap in (2e-4, math.nan):
        with pytest.raises(GuardStop, match="ratio_at_lag_0"):
            guards.check_first_ratio(gap, 1e-4)


def test_a_sampler_that_is_apart_has_a_name_and_checks_of_its_own() -> None:
    guards = Guards(GuardLimits(), 6.0)
    guards.check_sampler(9e-5, 1e-4, "the present weights")
    for gap in (2e-4, math.nan):
        with pytest.raises(GuardStop) as stop:
            guards.check_sampler(gap, 1e-4, "the earlier weights")
        text = str(stop.value)
        assert text.startswith("sampler_apart: largest |ratio - 1| between sampler and trainer under the earlier weights is")
        assert "first minibatch" not in text
        assert text.index("weights: does the sampler hold") < text.index("precision, attention") < text.index("limit: is it one")
        assert "Levers" not in text


def test_a_few_answers_apart_are_no_trouble_and_too_many_are() -> None:
    Guards(GuardLimits(), 6.0).check_apart(2, 12, 0.2)
    Guards(GuardLimits(), 6.0).check_apart(0, 0, 0.2)
    with pytest.raises(
        GuardStop, match="sampler_apart: 3 of 12 answers are masked, as sampler and trainer are apart by more than 0.2 a token"
    ):
        Guards(GuardLimits(), 6.0).check_apart(3, 12, 0.2)


def test_history_travels_in_a_checkpoint() -> None:
    first = Guards(GuardLimits(), 6.0)
    for _ in range(2):
        first.check(replace(CALM, kl=-0.6))
    second = Guards(GuardLimits(), 6.0)
    second.load_state(json.loads(json.dumps(first.state())))
    with pytest.raises(GuardStop, match="kl_negative"):
        second.check(replace(CALM, kl=-0.6))


def test_a_new_guard_has_a_json_state_before_its_first_batch() -> None:
    fresh, again = Guards(GuardLimits(), 6.0), Guards(GuardLimits(), 6.0)
    again.load_state(json.loads(json.dumps(fresh.state(), allow_nan=False)))
    assert again.state() == fresh.state()


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"guards\.kl_most is not a limit; there are consecutive"):
        GuardLimits.from_config({"kl_most": 3})
