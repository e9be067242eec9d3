"""Guards of SFT and DPO: each trips on its own trouble, and none on a healthy run."""

import json
import math
import random

import pytest

from include.domain.errors import SpecError
from include.runtime.settings import Settings
from include.training.learning_guards import LearningGuards, LearningLimits, LearningStop


def _trips(updates: list[dict[str, float]], limits: LearningLimits | None = None) -> tuple[int, str] | None:
    guards = LearningGuards(limits or LearningLimits())
    for step, figures in enumerate(updates, 1):
        try:
            guards.check(step, {"grad_norm": 1.0, **figures})
        except LearningStop as stop:
            return step, stop.guard
    return None


def _healthy(steps: int = 300) -> list[dict[str, float]]:
    noise = random.Random(1)
    return [{"loss": 3 * math.exp(-step / 60) + 0.3 + 0.2 * noise.random(), "kl_estimate": step / 10} for step in range(steps)]


def test_a_healthy_run_trips_nothing() -> None:
    assert _trips(_healthy()) is None


def test_a_loss_that_never_moves_stops_after_the_window() -> None:
    assert _trips([{"loss": math.log(2)}] * 80) == (50, "loss_never_moves")
    assert _trips(_healthy(30) + [{"loss": 0.7}] * 80) == (80, "loss_never_moves")
    assert _trips([{"loss": math.log(2)}] * 80, LearningLimits(flat_steps=0)) is None


def test_a_gradient_of_zero_stops_when_it_lasts() -> None:
    assert _trips([{"loss": 1.0 + step, "grad_norm": 0.0} for step in range(9)], LearningLimits(loss_factor=100)) == (5, "no_gradient")


def test_a_loss_three_times_the_first_stops_when_it_lasts_and_a_single_peak_does_not() -> None:
    assert _trips(_healthy(20) + [{"loss": 40.0}] * 4 + _healthy(20)) is None
    assert _trips(_healthy(20) + [{"loss": 40.0 + step} for step in range(9)]) == (25, "loss_diverging")


@pytest.mark.parametrize("kl", [600.0, -600.0])
def test_a_policy_far_from_its_reference_on_either_side_stops(kl: float) -> None:
    updates = [{"loss": 0.5 + step / 100, "kl_estimate": kl} for step in range(9)]
    assert _trips(updates) == (5, "kl_exploding")


def test_the_message_names_what_was_seen_and_lists_the_checks_in_order() -> None:
    guards = LearningGuards(LearningLimits(consecutive=1))
    guards.check(1, {"loss": 1.0, "grad_norm": 1.0})
    with pytest.raises(LearningStop) as stop:
        guards.check(2, {"loss": 9.0, "grad_norm": 1.0})
    text = str(stop.value)
    assert text.startswith("loss_diverging: step 2: the loss is 9, at first it was 1")
    assert text.index("learning rate") < text.index("lengths within a batch") < text.index("tokenizers")


def test_history_travels_in_a_checkpoint() -> None:
    first, second = LearningGuards(LearningLimits()), LearningGuards(LearningLimits())
    assert json.loads(json.dumps(first.state(), allow_nan=False)) == first.state()
    for step in range(1, 50):
        first.check(step, {"loss": 0.7, "grad_norm": 1.0})
    second.load_state(json.loads(json.dumps(first.state())))
    with pytest.raises(LearningStop, match="loss_never_moves"):
        second.check(50, {"loss": 0.7, "grad_norm": 1.0})


def test_limits_come_from_the_recipe_and_unknown_or_senseless_ones_are_refused() -> None:
    assert LearningLimits.of(Settings({"guards": {"flat_steps": 7}}, "config")) == LearningLimits(flat_steps=7)
    assert LearningLimits.of(Settings({}, "config")) == LearningLimits()
    with pytest.raises(SpecError, match=r"config\.guards\.flat is not a setting"):
        LearningLimits.of(Settings({"guards": {"flat": 7}}, "config"))
    with pytest.raises(SpecError, match="loss_factor above 1"):
        LearningLimits.of(Settings({"guards": {"loss_factor": 1.0}}, "config"))
