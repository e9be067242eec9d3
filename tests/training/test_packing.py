"""Packing: the same loss and the same gradients as without it, as no dialogue sees another."""

import pytest
import torch

from include.runtime.chat import Encoded
from include.training.examples.batching import collate, collate_packed, packed_bins
from include.training.scoring import AnswerScorer
from tests.training.small_llama import dialogue_ids, small_llama

ITEMS = [dialogue_ids(number, 3 + number % 4, 2 + number * 2 % 7) for number in range(7)]


def _loss_and_gradients(attention: str, packed: bool, items: list[Encoded]) -> tuple[float, torch.Tensor]:
    scorer = AnswerScorer(small_llama(attention))
    batch = collate_packed(packed_bins(items, 24), 0) if packed else collate(items, 0)
    loss = -batch.scored_by(scorer).sum() / sum(item.trained_tokens for item in items)
    loss.backward()
    return float(loss), torch.cat([value.grad.flatten() for _, value in sorted(scorer.named_parameters())])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_dialogues_have_the_loss_and_the_gradients_of_single_ones(attention: str) -> None:
    plain, packed = (_loss_and_gradients(attention, how, ITEMS) for how in (False, True))
    assert packed[0] == pytest.approx(plain[0], abs=1e-6)
    assert torch.allclose(packed[1], plain[1], atol=1e-6)


def test_without_the_border_between_dialogues_the_loss_would_be_another() -> None:
    joined = Encoded(
        tuple(token for item in ITEMS[:3] for token in item.ids), tuple(learned for item in ITEMS[:3] for learned in item.loss_mask), 1
    )
    assert abs(_loss_and_gradients("sdpa", False, [joined])[0] - _loss_and_gradients("sdpa", True, ITEMS[:3])[0]) > 1e-3


def test_a_dialogue_is_scored_alike_whatever_shares_its_row() -> None:
    scorer = AnswerScorer(small_llama())
    with torch.no_grad():
        alone = collate_packed([[ITEMS[2]]], 0).scored_by(scorer)
        after = collate_packed([[ITEMS[5], ITEMS[2]]], 0).scored_by(scorer)
    assert torch.allclose(after[-len(alone) :], alone, atol=1e-6)


def test_rows_are_filled_first_fit_by_falling_length_and_none_is_lost() -> None:
    bins = packed_bins(ITEMS, 24)
    assert all(sum(len(item) for item in of_row) <= 24 for of_row in bins)
    assert sorted(item.ids for of_row in bins for item in of_row) == sorted(item.ids for item in ITEMS)
    assert len(bins) == 3 < len(ITEMS)
    batch = collate_packed(bins, 0)
    assert batch.tokens == sum(len(item) for item in ITEMS)
    assert batch.position_ids is not None
    assert batch.position_ids.max() == max(len(item) for item in ITEMS) - 1
