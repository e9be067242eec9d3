"""Losses over pairs against numbers worked out by hand (with math alone) and gradients by their closed form."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from include.training.pairs.losses import DPO_LOSSES, DpoObjective, PairLogProbs, bradley_terry, pair_credit  # noqa: E402


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _pairs(pc: list[float], pr: list[float], rc: list[float], rr: list[float]) -> PairLogProbs:
    return PairLogProbs(*(torch.tensor(side, dtype=torch.float64, requires_grad=True) for side in (pc, pr, rc, rr)))


def test_bradley_terry_is_ln_2_for_equal_scores_and_minus_log_sigmoid_of_the_difference() -> None:
    loss = bradley_terry(torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64), torch.tensor([1.0, 0.5, 3.0], dtype=torch.float64))
    assert loss.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(4.0))], abs=1e-12)


def test_bradley_terry_gradient_is_sigmoid_minus_one_on_the_chosen_side_and_its_opposite_on_the_rejected() -> None:
    chosen = torch.tensor([0.3, -2.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([1.1, 0.25], dtype=torch.float64, requires_grad=True)
    bradley_terry(chosen, rejected).sum().backward()
    expected = [_sigmoid(0.3 - 1.1) - 1, _sigmoid(-2.25) - 1]
    assert chosen.grad.tolist() == pytest.approx(expected, abs=1e-12)
    assert rejected.grad.tolist() == pytest.approx([-g for g in expected], abs=1e-12)


def test_bradley_terry_sees_only_differences() -> None:
    chosen, rejected = torch.tensor([0.7, -0.2]), torch.tensor([0.1, 0.9])
    assert torch.allclose(bradley_terry(chosen + 100, rejected + 100), bradley_terry(chosen, rejected), atol=1e-5)


def test_bradley_terry_stays_finite_for_a_hopeless_pair() -> None:
    assert bradley_terry(torch.tensor([-500.0]), torch.tensor([500.0])).tolist() == [1000.0]


def test_dpo_at_the_reference_is_ln_2() -> None:
    pairs = _pairs([-3.0], [-4.0], [-3.0], [-4.0])
    assert DpoObjective(0.1)(pairs).item() == pytest.approx(math.log(2), abs=1e-12)


def test_dpo_sigmoid_equals_the_hand_worked_value_and_gradient() -> None:
    pairs = _pairs([-10.0], [-12.0], [-11.0], [-11.5])  # margin = (−10+11) − (−12+11.5) = 1.5
    loss = DpoObjective(0.2)(pairs)
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-0.3)), abs=1e-12)
    slope = -0.2 * _sigmoid(-0.3)
    assert pairs.policy_chosen.grad.item() == pytest.approx(slope, abs=1e-12)
    assert pairs.policy_rejected.grad.item() == pytest.approx(-slope, abs=1e-12)


def test_label_smoothing_mixes_in_the_flipped_loss() -> None:
    pairs = _pairs([-10.0], [-12.0], [-11.0], [-11.5])
    expected = 0.9 * math.log(1 + math.exp(-0.3)) + 0.1 * math.log(1 + math.exp(0.3))
    assert DpoObjective(0.2, label_smoothing=0.1)(pairs).item() == pytest.approx(expected, abs=1e-12)


def test_ipo_is_the_squared_distance_from_half_over_beta() -> None:
    pairs = _pairs([-1.0], [-2.0], [-1.5], [-2.25])  # margin = 0.5 − 0.25 = 0.25
    objective = DpoObjective(0.5, "ipo")
    loss = objective(pairs)
    loss.sum().backward()
    assert loss.item() == pytest.approx((0.25 - 1.0) ** 2, abs=1e-12)
    assert pairs.policy_chosen.grad.item() == pytest.approx(2 * (0.25 - 1.0), abs=1e-12)
    assert objective.averages_tokens


def _one() -> PairLogProbs:
    return _pairs([-10.0], [-12.0], [-11.0], [-11.5])  # log π/ref: chosen 1.0, rejected -0.5; margin 1.5


def test_the_robust_loss_takes_the_flipped_labels_out_again() -> None:
    right, wrong = math.log(1 + math.exp(-0.3)), math.log(1 + math.exp(0.3))
    assert DpoObjective(0.2, "robust", 0.1)(_one()).item() == pytest.approx((0.9 * right - 0.1 * wrong) / 0.8, abs=1e-12)


def test_over_labels_of_which_a_share_is_flipped_the_robust_loss_is_the_clean_one_on_average() -> None:
    objective = DpoObjective(0.2, "robust", 0.1)
    flipped = PairLogProbs(
        *(getattr(_one(), name) for name in ("policy_rejected", "policy_chosen", "reference_rejected", "reference_chosen"))
    )
    mean = 0.9 * objective(_one()).item() + 0.1 * objective(flipped).item()
    assert mean == pytest.approx(DpoObjective(0.2)(_one()).item(), abs=1e-12)


def test_the_hinge_is_what_is_left_to_one() -> None:
    assert DpoObjective(0.2, "hinge")(_one()).item() == pytest.approx(1 - 0.3, abs=1e-12)
    assert DpoObjective(0.9, "hinge")(_one()).item() == 0.0


def test_apo_zero_raises_the_chosen_and_lowers_the_rejected() -> None:
    assert DpoObjective(0.2, "apo_zero")(_one()).item() == pytest.approx(1 - _sigmoid(0.2) + _sigmoid(-0.1), abs=1e-12)


def test_apo_down_lowers_both_and_the_rejected_more() -> None:
    assert DpoObjective(0.2, "apo_down")(_one()).item() == pytest.approx(_sigmoid(0.2) + 1 - _sigmoid(0.3), abs=1e-12)


def test_exo_is_the_divergence_from_what_the_labels_say() -> None:
    right, wrong = _sigmoid(0.3), _sigmoid(-0.3)
    expected = right * math.log(right / 0.9) + wrong * math.log(wrong / 0.1)
    assert DpoObjective(0.2, "exo_pair", 0.1)(_one()).item() == pytest.approx(expected, abs=1e-12)


def test_nca_looks_at_each_side_by_itself() -> None:
    expected = -math.log(_sigmoid(0.2)) - 0.5 * math.log(_sigmoid(-0.2)) - 0.5 * math.log(_sigmoid(0.1))
    assert DpoObjective(0.2, "nca_pair")(_one()).item() == pytest.approx(expected, abs=1e-12)


def test_sppo_wants_each_ratio_at_half_over_beta() -> None:
    assert DpoObjective(0.2, "sppo_hard")(_one()).item() == pytest.approx((1.0 - 2.5) ** 2 + (-0.5 + 2.5) ** 2, abs=1e-12)


def test_simpo_takes_the_policys_means_and_a_margin_and_no_reference() -> None:
    objective = DpoObjective(2.0, "simpo", simpo_gamma=0.5)
    pairs = _pairs([-0.5], [-0.9], [-7.0], [-8.0])
    loss = objective(pairs)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-math.log(_sigmoid(2.0 * 0.4 - 0.5)), abs=1e-12)
    assert (pairs.reference_chosen.grad, pairs.reference_rejected.grad) == (None, None)
    assert objective.averages_tokens


def test_orpo_is_the_log_odds_ratio_and_no_reference() -> None:
    objective = DpoObjective(0.1, "orpo", nll_weight=1.0)
    odds = [math.exp(p) / (1 - math.exp(p)) for p in (-0.5, -0.9)]
    pairs = _pairs([-0.5], [-0.9], [-7.0], [-8.0])
    assert objective(pairs).item() == pytest.approx(-0.1 * math.log(_sigmoid(math.log(odds[0] / odds[1]))), abs=1e-12)
    assert objective.averages_tokens


def test_bco_sees_each_answer_by_itself() -> None:
    assert DpoObjective(0.2, "bco_pair")(_one()).item() == pytest.approx(-math.log(_sigmoid(0.2)) - math.log(_sigmoid(0.1)), abs=1e-12)


def test_kto_holds_each_answer_against_the_reference_point_by_its_weight() -> None:
    one = replace(_one(), reference_point=0.75)
    loss = DpoObjective(0.2, "kto", desirable_weight=1.5, undesirable_weight=0.5)(one)
    loss.sum().backward()
    gained, lost = _sigmoid(0.2 * (1.0 - 0.75)), _sigmoid(0.2 * (0.75 + 0.5))
    assert loss.item() == pytest.approx((1.5 * (1 - gained) + 0.5 * (1 - lost)) / 2, abs=1e-12)
    assert one.policy_chosen.grad.item() == pytest.approx(-1.5 * 0.2 * gained * (1 - gained) / 2, abs=1e-12)
    assert one.policy_rejected.grad.item() == pytest.approx(0.5 * 0.2 * lost * (1 - lost) / 2, abs=1e-12)


def test_only_kto_looks_at_the_reference_point() -> None:
    for loss in DPO_LOSSES:
        smoothing = 0.1 if loss == "exo_pair" else 0.0
        objective = DpoObjective(0.2, loss, smoothing, nll_weight=1.0)
        same = torch.equal(objective(_one()), objective(replace(_one(), reference_point=0.25)))
        assert same == (loss != "kto") == (not objective.has_reference_point), loss


def test_the_length_normalised_loss_is_sigmoids_over_means() -> None:
    assert DpoObjective(0.2, "sigmoid_norm")(_one()).item() == pytest.approx(math.log(1 + math.exp(-0.3)), abs=1e-12)
    assert DpoObjective(0.2, "sigmoid_norm").averages_tokens


def test_swapping_sides_mirrors_the_dpo_margin() -> None:
    pairs = _pairs([-10.0, -3.0], [-12.0, -5.0], [-11.0, -2.0], [-11.5, -5.5])
    swapped = PairLogProbs(pairs.policy_rejected, pairs.policy_chosen, pairs.reference_rejected, pairs.reference_chosen)
    assert swapped.margin.tolist() == [-m for m in pairs.margin.tolist()]
    total = torch.exp(-DpoObjective(0.3)(pairs)) + torch.exp(-DpoObjective(0.3)(swapped))
    assert total.tolist() == pytest.approx([1.0, 1.0], abs=1e-12)


def test_implicit_rewards_are_beta_times_the_log_ratios() -> None:
    chosen, rejected = DpoObjective(0.2).implicit_rewards(_pairs([-10.0], [-12.0], [-11.0], [-11.5]))
    assert (chosen.item(), rejected.item()) == pytest.approx((0.2, -0.1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beta": 0.0}, "beta"),
        ({"beta": 0.1, "loss": "rrhf"}, "sigmoid, ipo, robust"),
        ({"beta": 0.1, "desirable_weight": 1.3}, "belong to the loss kto"),
        ({"beta": 0.1, "loss": "kto", "undesirable_weight": 0.0}, "above 0"),
        ({"beta": 0.1, "nll_weight": -1.0}, "nll_weight"),
        ({"beta": 0.1, "label_smoothing": 0.5}, "label_smoothing"),
        ({"beta": 0.1, "loss": "ipo", "label_smoothing": 0.1}, "ipo has none"),
        ({"beta": 0.1, "loss": "exo_pair"}, "above 0"),
        ({"beta": 0.1, "loss": "orpo"}, "half of its objective"),
        ({"beta": 0.1, "simpo_gamma": 0.5}, "belongs to the loss simpo"),
    ],
)
def test_a_senseless_objective_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DpoObjective(**settings)  # type: ignore[arg-type]


def test_a_draw_counts_half() -> None:
    assert pair_credit(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 1.0, 2.0])).tolist() == [1.0, 0.0, 0.5]
