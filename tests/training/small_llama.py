"""A Llama of a few thousand weights that follow from a formula: the same on every machine, whatever draws random numbers."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from include.runtime.chat import Encoded

VOCABULARY = 61


def small_config(attention: str = "sdpa", **changes: Any) -> LlamaConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaConfig(
        **{"vocab_size": VOCABULARY, "max_position_embeddings": 64, "tie_word_embeddings": False, **sizes, **changes},
        attn_implementation=attention,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


@torch.no_grad()
def fill(model: Any, phase: float = 0.0) -> Any:
    """Sets every weight by a sine of its place."""
    for number, (_, value) in enumerate(sorted(model.named_parameters())):
        places = torch.arange(value.numel(), dtype=torch.float64)
        wave = torch.sin(places * 0.7310585 + number * 1.9 + phase) * 0.35
        value.copy_((wave if value.dim() > 1 else 1 + 0.1 * wave).reshape(value.shape).to(value.dtype))
    return model.eval()


def small_llama(attention: str = "sdpa", phase: float = 0.0, **changes: Any) -> Any:
    return fill(LlamaForCausalLM(small_config(attention, **changes)), phase)


def dialogue_ids(number: int, prompt: int, answer: int) -> Encoded:
    """A dialogue of so many prompt and answer tokens that follows from its number; the answer is learned."""
    ids = [1, *(3 + (number * 17 + at * 7 + at * at) % (VOCABULARY - 3) for at in range(prompt + answer - 2)), 2]
    return Encoded(tuple(ids), tuple(at >= prompt for at in range(len(ids))), prompt)
