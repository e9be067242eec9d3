"""A step on preference pairs: the common prefix once, against each side in a row of its own; alternating in one process.

    PYTHONPATH=. python benchmarks/training/pairs.py BASE [--kind reward|dpo] [--steps 5] [--precision bf16_autocast|fp32]

BASE is a model folder. The pairs are made up: prompts of 60 ± 20 tokens, answers of 18 ± 6 that begin alike for 4. The same
loss, engine, optimiser, batch (8 pairs) and threads on both sides; the first step of each is not counted.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from include.training.engines.deepspeed import DeepSpeedEngine, engines
from include.training.engines.engine import EngineSettings
from include.training.model_io import load_causal_lm
from include.training.pairs import tensors as pair_tokens
from include.training.pairs.log_probs import pair_sums
from include.training.pairs.losses import bradley_terry
from include.training.pairs.rows import TokenPair
from include.training.pairs.tensors import PairTokens, lay_out
from include.training.reward.head import SequenceScores, new_reward_model
from include.training.scoring import AnswerScorer

PAIRS = 8


def made_up(count: int, vocabulary: int) -> list[TokenPair]:
    chance = random.Random(7)  # noqa: S311 - made-up data, not a secret

    def ids(length: int) -> tuple[int, ...]:
        return tuple(chance.randrange(5, vocabulary) for _ in range(max(length, 2)))

    pairs = []
    for _ in range(count):
        prompt, start = ids(round(chance.gauss(60, 20))), ids(4)
        sides = ((*prompt, *start, *ids(round(chance.gauss(14, 6)))) for _ in range(2))
        pairs.append(TokenPair("p", "g", len(prompt), *sides, 1.0, {}, ()))
    return pairs


def loss_of(kind: str, engine: Any) -> Callable[[PairTokens], torch.Tensor]:
    """Bradley-Terry over scores, or over sums of log-probabilities as DPO computes them."""

    def reward(laid: PairTokens) -> torch.Tensor:
        scores = engine(laid.input_ids, laid.attention_mask, laid.end_rows, laid.end_columns, laid.position_ids)
        return bradley_terry(scores[: laid.pairs], scores[laid.pairs :]).mean()

    def dpo(laid: PairTokens) -> torch.Tensor:
        sums = pair_sums(engine, laid)
        return bradley_terry(0.1 * sums.chosen, 0.1 * sums.rejected).mean()

    return reward if kind == "reward" else dpo


def step(engine: Any, loss: Callable[[PairTokens], torch.Tensor], pairs: Sequence[TokenPair]) -> tuple[float, float]:
    """Seconds and seconds of CPU of one update."""
    wall, cpu = time.monotonic(), time.process_time()
    engine.backward(loss(lay_out(pairs, 0, engine.module.model)))
    engine.step(1e-6)
    return time.monotonic() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--kind", choices=("reward", "dpo"), default="reward")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--precision", choices=("bf16_autocast", "fp32"), default="bf16_autocast")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    together = pair_tokens.shares_prefix
    with engines():
        model = new_reward_model(asked.base, 1) if asked.kind == "reward" else load_causal_lm(asked.base)
        module = SequenceScores(model) if asked.kind == "reward" else AnswerScorer(model)
        engine = DeepSpeedEngine(module, EngineSettings(1e-6, precision=asked.precision))
        engine.train()
        loss = loss_of(asked.kind, engine)
        pairs = made_up(PAIRS * (asked.steps + 1), model.config.vocab_size)
        seen: dict[str, list[tuple[float, float]]] = {"once": [], "apart": []}
        for at in range(asked.steps + 1):
            for name, times in seen.items():
                pair_tokens.shares_prefix = together if name == "once" else lambda _: False
                times.append(step(engine, loss, pairs[PAIRS * at : PAIRS * (at + 1)]))
        pair_tokens.shares_prefix = together
    for name, times in seen.items():
        print(
            f"{name:6} {statistics.median(t for t, _ in times[1:]):.2f} s a step, {statistics.median(c for _, c in times[1:]):.2f} s of CPU"
        )
    both = list(zip(seen["apart"][1:], seen["once"][1:], strict=True))
    print(
        f"ratio  {statistics.median(a[0] / b[0] for a, b in both):.2f} by the clock, {statistics.median(a[1] / b[1] for a, b in both):.2f} by CPU"
    )


if __name__ == "__main__":
    main()
