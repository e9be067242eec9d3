"""The coefficient of the KL follows the batch's KL, by the rule of the mission."""

import pytest

from include.training.rl.kl_controller import KlController


def test_the_coefficient_grows_by_half_above_twice_the_target() -> None:
    assert KlController().update(12.1) == pytest.approx(0.15)


def test_the_coefficient_shrinks_below_half_the_target() -> None:
    assert KlController().update(2.9) == pytest.approx(0.1 / 1.5)


@pytest.mark.parametrize("kl", [3.0, 6.0, 12.0])
def test_between_half_and_twice_the_target_it_stays(kl: float) -> None:
    assert KlController().update(kl) == 0.1


def test_a_negative_kl_lowers_it_like_any_small_one() -> None:
    assert KlController().update(-0.3) == pytest.approx(0.1 / 1.5)


def test_it_never_falls_below_the_floor() -> None:
    controller = KlController()
    assert [controller.update(0.0) for _ in range(40)][-1] == 1e-4


def test_a_fixed_controller_never_moves() -> None:
    controller = KlController.from_config({"controller": "fixed", "initial": 0.05})
    assert [controller.update(kl) for kl in (100.0, 0.0)] == [0.05, 0.05]


def test_its_state_continues_where_it_was() -> None:
    first, second = KlController(), KlController()
    first.update(50.0)
    second.load_state(first.state())
    assert second.update(50.0) == first.update(50.0) == pytest.approx(0.225)


def test_an_unknown_setting_is_named_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match=r"kl\.goal is not a setting; there are controller, target"):
        KlController.from_config({"goal": 6.0})
