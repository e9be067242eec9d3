"""Pairs whose common prefix stands once: every score, log-probability and gradient is that of the sequences alone."""

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM  # noqa: E402

from include.training.pairs.log_probs import all_sums, pair_sums  # noqa: E402
from include.training.pairs.losses import bradley_terry  # noqa: E402
from include.training.pairs.rows import TokenPair  # noqa: E402
from include.training.pairs.tensors import _apart, by_length, laid_out_tokens, lay_out, shares_prefix  # noqa: E402
from include.training.scoring import AnswerScorer  # noqa: E402

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}


def _model(attention: str = "sdpa", seed: int = 3) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=40, attn_implementation=attention, **SHAPE)
    return LlamaForCausalLM(config).eval()


def _pair(prompt: Sequence[int], chosen: Sequence[int], rejected: Sequence[int]) -> TokenPair:
    whole = (*prompt, *chosen), (*prompt, *rejected)
    return TokenPair("p", "g", len(prompt), *whole, 1.0, {}, ())


PAIRS = [
    _pair([5, 6, 7, 8, 9], [11, 12, 13], [11, 14, 15, 16, 2]),
    _pair([5, 6], [7, 8, 2], [7, 8]),  # one side is the start of the other
    _pair([20, 21, 22], [30], [31, 32, 33, 34, 35, 36, 37]),
    _pair([9], [10, 2], [12, 2]),
    _pair([17, 18, 19, 20], [1, 2, 3, 4], [4, 3, 2, 1]),
]


def _alone(model: Any, pair: TokenPair, ids: tuple[int, ...]) -> Any:
    """Sum of the answer's log-probabilities, one unpadded sequence, logits at every position."""
    logits = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], -1)
    return torch.stack([logits[at - 1, ids[at]] for at in range(pair.prompt_length, len(ids))]).sum()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_log_probabilities_are_those_of_the_sequences_alone(attention: str) -> None:
    model = _model(attention)
    laid = lay_out(PAIRS, 0, model)
    assert laid.input_ids.shape[0] < len(PAIRS)  # several pairs share a row
    assert laid.computed < laid.tokens
    sums = pair_sums(AnswerScorer(model), laid)
    for index, pair in enumerate(PAIRS):
        assert float(sums.chosen[index]) == pytest.approx(float(_alone(model, pair, pair.chosen)), abs=2e-5)
        assert float(sums.rejected[index]) == pytest.approx(float(_alone(model, pair, pair.rejected)), abs=2e-5)


def test_gradients_are_those_of_the_sequences_alone() -> None:
    model, again = _model(), _model()
    sums = pair_sums(AnswerScorer(model), lay_out(PAIRS, 0, model))
    bradley_terry(sums.chosen, sums.rejected).mean().backward()
    losses = [bradley_terry(_alone(again, pair, pair.chosen), _alone(again, pair, pair.rejected)) for pair in PAIRS]
    torch.stack(losses).mean().backward()
    for (name, own), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.allclose(own.grad, other.grad, atol=1e-5), name


def test_end_positions_hold_the_hidden_state_of_each_sides_last_token() -> None:
    model = _model()
    laid = lay_out(PAIRS, 0, model)
    hidden = model.model(input_ids=laid.input_ids, attention_mask=laid.attention_mask, position_ids=laid.position_ids).last_hidden_state
    ends = hidden[laid.end_rows, laid.end_columns]
    for index, ids in enumerate([pair.chosen for pair in PAIRS] + [pair.rejected for pair in PAIRS]):
        alone = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        assert torch.allclose(ends[index], alone, atol=1e-5)


def test_a_neighbour_in_the_row_changes_nothing() -> None:
    model = _model()
    together = pair_sums(AnswerScorer(model), lay_out(PAIRS, 0, model))
    for index, pair in enumerate(PAIRS):
        single = pair_sums(AnswerScorer(model), lay_out([pair], 0, model))
        assert torch.allclose(together.chosen[index], single.chosen[0], atol=1e-5)


def test_swapping_the_sides_of_every_pair_leaves_the_reward_loss_equal() -> None:
    model = _model()
    swapped = [TokenPair("p", "g", p.prompt_length, p.rejected, p.chosen, 1.0, {}, ()) for p in PAIRS]
    one, two = (pair_sums(AnswerScorer(model), lay_out(pairs, 0, model)) for pairs in (PAIRS, swapped))
    assert torch.allclose(bradley_terry(one.chosen, one.rejected), bradley_terry(two.rejected, two.chosen), atol=1e-5)


def test_a_model_with_a_sliding_window_gets_each_side_in_a_row_of_its_own() -> None:
    torch.manual_seed(1)
    model = MistralForCausalLM(MistralConfig(vocab_size=40, sliding_window=3, attn_implementation="sdpa", **SHAPE)).eval()
    assert not shares_prefix(model)
    laid = lay_out(PAIRS, 0, model)
    assert laid.position_ids is None
    assert laid.input_ids.shape[0] == 2 * len(PAIRS)
    sums = pair_sums(AnswerScorer(model), laid)
    for index, pair in enumerate(PAIRS):
        assert float(sums.chosen[index]) == pytest.approx(float(_alone(model, pair, pair.chosen)), abs=2e-5)


def test_the_sums_of_all_pairs_come_back_in_their_order() -> None:
    model = _model()
    sums = all_sums(AnswerScorer(model), model, PAIRS, 2, 0)
    apart = pair_sums(AnswerScorer(model), _apart(PAIRS, 0))
    assert torch.allclose(sums.chosen, apart.chosen, atol=2e-5)
    assert torch.allclose(sums.rejected, apart.rejected, atol=2e-5)


def test_the_longest_pairs_come_first_and_an_empty_side_is_refused() -> None:
    lengths = [laid_out_tokens(PAIRS[i]) for i in by_length(PAIRS)]
    assert lengths == sorted(lengths, reverse=True)
    with pytest.raises(ValueError, match="empty"):
        lay_out([TokenPair("p", "g", 0, (), (1,), 1.0, {}, ())], 0, _model())
