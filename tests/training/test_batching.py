"""Rows and batches: order by (seed, epoch), position by count, and what is learned by position."""

import pytest
import torch

from include.runtime.chat import Encoded
from include.runtime.settings import Settings
from include.training.errors import TrainingError
from include.training.examples.batching import collate, epoch_order, micro_batches, position, rows_at
from include.training.schedule import ScheduleSettings, learning_rate_at

PAD_AND_END = 2


def test_an_end_token_that_is_also_the_pad_is_learned_and_padding_is_not() -> None:
    long = Encoded((1, 10, 11, 12, 13, 14, PAD_AND_END), (False, *([True] * 6)), 1)
    batch = collate([Encoded((1, 10, 11, 12, PAD_AND_END), (False, True, True, True, True), 1), long], PAD_AND_END)
    assert batch.input_ids[0].tolist() == [1, 10, 11, 12, 2, 2, 2]
    assert batch.attention_mask[0].tolist() == [1, 1, 1, 1, 1, 0, 0]
    first = batch.rows == 0
    assert batch.targets[first].tolist() == [10, 11, 12, 2]
    assert batch.columns[first].tolist() == [0, 1, 2, 3]
    assert batch.tokens == 12


def test_a_prompt_is_not_learned() -> None:
    batch = collate([Encoded((5, 6, 7, 8), (False, False, True, True), 2)], 0)
    assert (batch.columns.tolist(), batch.targets.tolist()) == ([1, 2], [7, 8])


def test_the_position_counts_rows_over_epochs() -> None:
    assert position(960, 900) == (1, 60)
    assert position(899, 900) == (0, 899)
    with pytest.raises(TrainingError, match="without rows"):
        position(1, 0)


def test_a_step_after_a_resume_sees_the_rows_it_would_have_seen() -> None:
    seen = [row for step in range(15) for row in rows_at(step, 64, 900, seed=3)]
    assert len(seen) == 960
    assert sorted(seen[:900]) == list(range(900))
    assert rows_at(15, 64, 900, seed=3) == list(epoch_order(3, 1, 900)[60:124])


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    orders = {(seed, epoch): epoch_order(seed, epoch, 50) for seed in (1, 2) for epoch in (0, 1)}
    assert len(set(orders.values())) == 4
    epoch_order.cache_clear()
    assert epoch_order(1, 1, 50) == orders[(1, 1)]


def test_the_order_is_pinned_for_every_machine_and_version() -> None:
    assert epoch_order(42, 0, 8) == (1, 2, 5, 7, 6, 0, 3, 4)


def test_micro_batches_hold_every_item_once() -> None:
    assert [list(part) for part in micro_batches(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(TrainingError, match="micro_batch is 0"):
        list(micro_batches([1], 0))


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_learning_rate_is_a_function_of_the_step(kind: str, rates: list[float]) -> None:
    schedule = ScheduleSettings.of(Settings({"learning_rate": 1.0, "warmup_steps": 2, "schedule": kind}, "config"), 6)
    assert [learning_rate_at(step, schedule) for step in range(6)] == pytest.approx(rates, abs=1e-6)


def test_batches_without_a_learned_token_have_empty_targets() -> None:
    batch = collate([Encoded((5, 6), (False, False), 2)], 0)
    assert batch.targets.shape == torch.Size([0])
