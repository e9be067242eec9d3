"""Drawing one iteration's answers: which prompts, with which seeds, in which portions. A function of the run's seed and nothing else."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.runtime.generation import Sampling, generate_batch
from include.runtime.ranks import Ranks
from include.training.engines.precision import precision_context
from include.training.examples.batching import micro_batches, rows_at
from include.training.rl.batch import Sampled


@dataclass(frozen=True)
class DrawSettings:
    """What is needed to draw; JSON throughout, so that another process can be told."""

    seed: int
    prompts_per_iteration: int
    temperature: float
    max_new_tokens: int
    precision: str
    stop_ids: tuple[int, ...]
    portion: int
    """So many answers are drawn together."""

    def portions(self, step: int, prompts: int) -> list[list[tuple[int, int]]]:
        """(row of the prompts, seed) of each answer of iteration `step` (from 0), in portions."""
        rows = rows_at(step, self.prompts_per_iteration, prompts, self.seed)
        wanted = [(row, answer_seed(self.seed, step, index)) for index, row in enumerate(rows)]
        return [list(part) for part in micro_batches(wanted, self.portion)]


@dataclass(frozen=True)
class Drawn:
    """One iteration's answers in the order of its prompts, each with the actor version that wrote it and the optimiser steps behind that.

    digests: of the weights by version, known at least to the first rank: of published ones their file's sha256, of the trainer's own
        `weights_digest`. The policy that nothing has been learnt of yet is named by its artifact, and may be left out.
    dropped: answers that were there and were not used (too old, or too late); made_again: those drawn anew by the trainer itself;
    kept_old: answers past the limit that are kept and weigh less.
    """

    rows: Sequence[int]
    answers: Sequence[Sampled]
    versions: Sequence[int]
    updates: Sequence[int]
    dropped: int = 0
    made_again: int = 0
    kept_old: int = 0
    digests: Mapping[int, str] = field(default_factory=dict)


def answer_seed(seed: int, step: int, index: int) -> int:
    """The seed of one answer: a function of the run's seed, the iteration and its place, and of nothing else."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{index}".encode()).digest()[:7], "big")


def draw(model: Any, encoded: Sequence[Sequence[int]], wanted: Sequence[tuple[int, int]], settings: DrawSettings) -> list[Sampled]:
    """The answers to `wanted` (row, seed), by the plain model in eval mode."""
    sampling = Sampling(settings.temperature, max_new_tokens=settings.max_new_tokens)
    with precision_context(settings.precision, next(model.parameters()).device.type):
        generated = generate_batch(
            model,
            [encoded[row] for row, _ in wanted],
            sampling,
            [seed for _, seed in wanted],
            stop_ids=set(settings.stop_ids),
            return_log_probs=True,
            max_rows=settings.portion,
        )
    return [
        Sampled(tuple(encoded[row]), tuple(g.tokens), tuple(g.log_probs or ()), g.finish_reason)
        for (row, _), g in zip(wanted, generated, strict=True)
    ]


def draw_together(
    ranks: Ranks, model: Any, encoded: Sequence[Sequence[int]], wanted: Sequence[tuple[int, int]], settings: DrawSettings
) -> list[Sampled]:
    """The answers to `wanted`, all of them on every rank; each draws its part with its own copy of `model`."""
    own = ranks.deal(wanted)
    drawn = draw(model, encoded, own, settings) if own else []
    made = ranks.collect([(answer.tokens, answer.log_probs, answer.finish_reason) for answer in drawn])
    return [
        Sampled(tuple(encoded[row]), tuple(tokens), tuple(log_probs), reason)
        for (row, _), (tokens, log_probs, reason) in zip(wanted, made, strict=True)
    ]
