"""GAE, KL, clipped losses and whitening against numbers worked out by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from include.training.rl.arithmetic import (  # noqa: E402
    clipped_share,
    explained_variance,
    gae,
    largest_ratio_gap,
    masked_mean,
    policy_losses,
    sequence_kl,
    token_rewards,
    value_losses,
    whiten,
)


def _t(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_gae_equals_the_hand_worked_recursion() -> None:
    # δ2 = 1 − 0.8 = 0.2;  δ1 = −0.1 + 0.8 − 0.6 = 0.1;  δ0 = 0 + 0.6 − 0.5 = 0.1;  A1 = 0.1 + 0.5·0.2, A0 = 0.1 + 0.5·A1
    got = gae(_t([[0.0, -0.1, 1.0]]), _t([[0.5, 0.6, 0.8]]), torch.ones(1, 3, dtype=torch.float64), 1.0, 0.5)
    assert got.advantage_BT.tolist()[0] == pytest.approx([0.2, 0.2, 0.2], abs=1e-12)
    assert got.return_BT.tolist()[0] == pytest.approx([0.7, 0.8, 1.0], abs=1e-12)


def test_gae_discounts_by_gamma_and_lambda() -> None:
    # γ = 0.9, λ = 0.8: δ1 = 2 − 1 = 1;  δ0 = 0.5 + 0.9·1 − 0.4 = 1.0;  A0 = 1.0 + 0.72·1
    got = gae(_t([[0.5, 2.0]]), _t([[0.4, 1.0]]), torch.ones(1, 2, dtype=torch.float64), 0.9, 0.8)
    assert got.advantage_BT.tolist()[0] == pytest.approx([1.72, 1.0], abs=1e-12)


def test_with_lambda_one_the_return_is_the_sum_of_rewards_to_come() -> None:
    got = gae(_t([[1.0, 2.0, 3.0]]), _t([[0.3, -0.7, 0.1]]), torch.ones(1, 3, dtype=torch.float64), 1.0, 1.0)
    assert got.return_BT.tolist()[0] == pytest.approx([6.0, 5.0, 3.0], abs=1e-12)


def test_padding_after_a_short_answer_changes_nothing() -> None:
    short = gae(_t([[0.0, 1.0]]), _t([[0.5, 0.6]]), torch.ones(1, 2, dtype=torch.float64), 1.0, 0.95)
    padded = gae(_t([[0.0, 1.0, 0.0, 0.0]]), _t([[0.5, 0.6, 9.0, -4.0]]), _t([[1, 1, 0, 0]]), 1.0, 0.95)
    assert padded.advantage_BT[:, :2].tolist() == short.advantage_BT.tolist()
    assert padded.advantage_BT[:, 2:].tolist() == [[0.0, 0.0]]


def test_kl_is_the_mean_over_answers_of_the_sum_over_tokens_and_may_be_negative() -> None:
    policy, reference = _t([[-1.0, -2.0, -9.0], [-1.0, -9.0, -9.0]]), _t([[-1.5, -2.25, 0.0], [-0.2, 0.0, 0.0]])
    mask = _t([[1, 1, 0], [1, 0, 0]])
    assert sequence_kl(policy, reference, mask).item() == pytest.approx((0.75 - 0.8) / 2, abs=1e-12)


def test_kl_leaves_out_answers_that_do_not_count() -> None:
    policy, reference = _t([[-1.0, -1.0], [-1.0, -1.0]]), _t([[-2.0, -2.0], [-9.0, -9.0]])
    assert sequence_kl(policy, reference, _t([[1, 1], [0, 0]])).item() == pytest.approx(2.0)


def test_the_score_lands_on_the_last_token_and_the_kl_on_each() -> None:
    got = token_rewards(
        torch.tensor([2.0, 5.0], dtype=torch.float64), _t([[0.5, -1.0, 7.0], [1.0, 7.0, 7.0]]), _t([[1, 1, 0], [1, 0, 0]]), 0.1
    )
    assert got.tolist()[0] == pytest.approx([-0.05, 2.1, 0.0], abs=1e-12)
    assert got.tolist()[1] == pytest.approx([4.9, 0.0, 0.0], abs=1e-12)


def test_policy_loss_takes_the_worse_of_the_clipped_and_the_plain_ratio() -> None:
    old = _t([[0.0, 0.0, 0.0, 0.0]])
    new = _t([[math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5)]])
    got = policy_losses(new, old, _t([[1.0, -1.0, 1.0, -1.0]]), 0.2)
    assert got.tolist()[0] == pytest.approx([-1.2, 1.5, -0.5, 0.8], abs=1e-12)


def test_a_clipped_token_gives_no_gradient() -> None:
    new = _t([[math.log(1.5), math.log(1.1)]]).requires_grad_()
    policy_losses(new, _t([[0.0, 0.0]]), _t([[1.0, 1.0]]), 0.2).sum().backward()
    assert new.grad is not None
    assert new.grad.tolist()[0] == pytest.approx([0.0, -1.1], abs=1e-12)


def test_value_loss_takes_the_worse_of_the_clipped_and_the_plain_error() -> None:
    got = value_losses(_t([[2.0, 0.2, -1.0]]), _t([[0.0, 0.0, 0.0]]), _t([[2.0, 1.0, 1.0]]), 0.5)
    assert got.tolist()[0] == pytest.approx([0.5 * 1.5**2, 0.5 * 0.8**2, 0.5 * 2.0**2], abs=1e-12)


def test_whitening_gives_mean_zero_and_deviation_one_over_the_mask() -> None:
    got = whiten(_t([[1.0, 3.0, 100.0], [5.0, 7.0, 100.0]]), _t([[1, 1, 0], [1, 1, 0]]))
    deviation = math.sqrt(5.0)
    assert got.tolist()[0] == pytest.approx([-3 / deviation, -1 / deviation, 0.0], abs=1e-7)
    assert got.tolist()[1] == pytest.approx([1 / deviation, 3 / deviation, 0.0], abs=1e-7)


@pytest.mark.parametrize(
    ("group", "all_zero"),
    [
        ([1.0, None, 0.5, 0.2], False),
        ([None, None, None, None], True),
        ([0.7, 0.7, 0.7, 0.7], True),
        ([0.9], True),
        ([1.0, None, None, None], True),
    ],
)
def test_missing_rewards_and_groups_without_spread_give_finite_advantages(group: list[float | None], all_zero: bool) -> None:
    value = torch.tensor([[0.0 if reward is None else reward for reward in group]], dtype=torch.float64)
    mask = torch.tensor([[0.0 if reward is None else 1.0 for reward in group]], dtype=torch.float64)
    got = whiten(value, mask)
    assert torch.isfinite(got).all()
    assert (got == 0).all().item() is all_zero
    assert [v for v, reward in zip(got.tolist()[0], group, strict=True) if reward is None] == [0.0] * group.count(None)


def test_masked_mean_of_nothing_is_zero() -> None:
    assert masked_mean(_t([[3.0]]), _t([[0.0]])).item() == 0.0


def test_clipped_share_and_largest_gap_ignore_padding() -> None:
    new, mask = _t([[math.log(1.5), math.log(1.1), math.log(9.0)]]), _t([[1, 1, 0]])
    assert clipped_share(new, torch.zeros_like(new), mask, 0.2).item() == pytest.approx(0.5)
    assert largest_ratio_gap(new, torch.zeros_like(new), mask) == pytest.approx(0.5)


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one() -> None:
    returns, mask = _t([[1.0, 2.0, 4.0]]), torch.ones(1, 3, dtype=torch.float64)
    assert explained_variance(returns, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.full_like(returns, 0.3), returns, mask) == pytest.approx(0.0)
