"""Linear layers that are cast once give the very bits of autocast."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from include.runtime.generation import Sampling, generate_batch
from include.training.engines.precision import keep_cast, precision_context

IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    torch.manual_seed(4)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "attention_bias": True}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, tie_word_embeddings=request.param, **shape)).eval()


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    with torch.no_grad(), precision_context("bf16_autocast"):
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


def test_a_model_that_keeps_cast_weights_answers_as_autocast_does(model: LlamaForCausalLM) -> None:
    frozen = copy.deepcopy(model).requires_grad_(False)
    keep_cast(frozen, "bf16_autocast")
    assert frozen.model.layers[0].mlp.up_proj.weight.dtype == frozen.lm_head.weight.dtype == torch.bfloat16
    assert frozen.model.embed_tokens.weight.dtype == torch.float32
    assert torch.equal(logits(frozen), logits(model))
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_drawn_answers_stay_the_same(model: LlamaForCausalLM) -> None:
    def drawn(model: LlamaForCausalLM) -> list[tuple[list[int], list[float] | None]]:
        sampling = Sampling(1.0, max_new_tokens=6)
        with precision_context("bf16_autocast"):
            found = generate_batch(model, IDS.tolist(), sampling, [1, 2], stop_ids={0}, return_log_probs=True)
        return [(answer.tokens, answer.log_probs) for answer in found]

    wanted = drawn(model)
    keep_cast(model, "bf16_autocast")
    assert drawn(model) == wanted


def test_in_float32_nothing_is_cast(model: LlamaForCausalLM) -> None:
    keep_cast(model, "fp32")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
