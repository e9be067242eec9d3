"""Generation on ragged lengths: `generate_batch` against a plain `model.generate` at its best batch size; alternating in one process.

    PYTHONPATH=. $CLUSTER -m benchmarks.training.generation [BASE] [--prompts 128] [--new-tokens 48] [--rounds 3]    # see docs/benchmarks.md

Without BASE a random Llama of 0.95 million parameters. Prompts of 5 to 60 tokens; an answer ends at one of many end tokens,
so lengths are ragged. Useful tokens (up to the end token) a second; the plain side is tried at each batch size first.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from include.runtime.generation import Sampling, generate_batch
from include.training.model_io import load_causal_lm

BATCHES = (8, 32, 128)
NEW_TOKENS = 48
END_SHARE = 0.04


def random_llama() -> Any:
    torch.manual_seed(1)
    shape = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 344}
    return LlamaForCausalLM(LlamaConfig(vocab_size=2048, tie_word_embeddings=True, **shape)).eval()


@torch.no_grad()
def plain(model: Any, prompts: list[list[int]], ends: set[int], batch: int, new_tokens: int = NEW_TOKENS) -> int:
    """Hugging Face's generate in batches by length, padded on the left; gives the useful tokens."""
    useful = 0
    ordered = sorted(prompts, key=len)
    for at in range(0, len(ordered), batch):
        part = ordered[at : at + batch]
        width = max(len(prompt) for prompt in part)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in part], device=model.device)
        given = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": new_tokens, "pad_token_id": 0}
        out = model.generate(input_ids=ids, attention_mask=mask, eos_token_id=sorted(ends), **given)[:, width:]
        ended = torch.isin(out, torch.tensor(sorted(ends), device=out.device))
        useful += int(torch.where(ended.any(1), ended.int().argmax(1) + 1, out.shape[1]).sum())
    return useful


def ours(model: Any, prompts: list[list[int]], ends: set[int], new_tokens: int = NEW_TOKENS) -> int:
    made = generate_batch(model, prompts, Sampling(1.0, max_new_tokens=new_tokens), list(range(len(prompts))), stop_ids=ends)
    return sum(len(answer.tokens) for answer in made)


def rate(call: Callable[[], int]) -> float:
    """Useful tokens a second."""
    started = time.monotonic()
    return call() / (time.monotonic() - started)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, nargs="?")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", action="store_true", help="the two medians as one line of JSON")
    return parser.parse_args()


def main() -> None:
    asked = _asked()
    torch.set_num_threads(asked.threads)
    model = (load_causal_lm(asked.base) if asked.base else random_llama()).to(asked.device, getattr(torch, asked.dtype))
    chance, vocabulary, new = random.Random(3), model.config.vocab_size, asked.new_tokens  # noqa: S311 - made-up data, not a secret
    prompts = [[chance.randrange(1, vocabulary) for _ in range(chance.randint(5, 60))] for _ in range(asked.prompts)]
    ends = set(chance.sample(range(1, vocabulary), max(1, round(END_SHARE * vocabulary))))
    ours(model, prompts[:8], ends, new)
    tried = {batch: rate(lambda batch=batch: plain(model, prompts, ends, batch, new)) for batch in BATCHES}
    best = max(tried, key=lambda batch: tried[batch])
    rounds = [
        (rate(lambda: ours(model, prompts, ends, new)), rate(lambda: plain(model, prompts, ends, best, new))) for _ in range(asked.rounds)
    ]
    own, other = (statistics.median(side) for side in zip(*rounds, strict=True))
    if asked.json:
        print(json.dumps({"ours": own, "plain": other, "batch": best}))
        return
    print("plain generate, useful tokens/s by batch size: " + ", ".join(f"{batch}: {value:.0f}" for batch, value in tried.items()))
    print(f"generate_batch {own:.0f} useful tokens/s, plain at batch {best} {other:.0f}")
    print(f"ratio {statistics.median(a / b for a, b in rounds):.2f}")


if __name__ == "__main__":
    main()
