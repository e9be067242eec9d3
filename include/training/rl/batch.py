"""One iteration's answers as tensors: flat over all answer tokens for the models, B × T for the arithmetic of rewards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from include.runtime.ranks import Ranks
from include.runtime.reward_model import padded
from include.training.examples.batching import micro_batches


@dataclass(frozen=True)
class Sampled:
    """A prompt's tokens, the answer's (end token included), and the sampler's log-probabilities of the latter."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str

    @property
    def sequence(self) -> tuple[int, ...]:
        return self.prompt + self.tokens


@dataclass(frozen=True)
class MicroBatch:
    """Some answers, padded on the right. Position (row, column) predicts `targets`; `cells` is where it lies in B × T."""

    input_ids: Tensor
    attention_mask: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    cells: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, answers: Sequence[Sampled], chosen: Sequence[int], pad_id: int) -> "MicroBatch":
        picked = [answers[i] for i in chosen]
        input_ids, mask = padded([answer.sequence for answer in picked], pad_id)
        lengths = [len(answer.tokens) for answer in picked]
        rows = torch.cat([torch.full((n,), row) for row, n in enumerate(lengths)])
        steps = torch.cat([torch.arange(n) for n in lengths])
        starts = torch.tensor([len(answer.prompt) - 1 for answer in picked])
        columns = starts[rows] + steps
        return cls(input_ids, mask, rows, columns, input_ids[rows, columns + 1], (torch.tensor(list(chosen))[rows], steps))


@dataclass(frozen=True)
class MiniBatch:
    """Answers of one update: `rows` of all ranks, and this rank's part of them in pieces."""

    rows: Tensor
    micros: tuple[MicroBatch, ...]


@dataclass(frozen=True)
class Plan:
    """Which answers learn together. Fixed for an iteration, so that the first pass of the update repeats the pass that
    gave the old log-probabilities in every bit."""

    minibatches: tuple[MiniBatch, ...]

    @classmethod
    def of(cls, answers: Sequence[Sampled], sizes: tuple[int, int], pad_id: int, seed: int, ranks: Ranks | None = None) -> "Plan":
        """Answers shuffled by `seed` into minibatches; within one, grouped by length and dealt out to the ranks.

        Args:
            sizes: answers of a minibatch over all ranks, and of a micro-batch on one.
        """
        (minibatch, micro), ranks = sizes, ranks or Ranks()
        order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(seed)).tolist()
        groups = [order[start : start + minibatch] for start in range(0, len(order), minibatch)]
        made = []
        for group in groups:
            own = ranks.deal(sorted(group, key=lambda i: (len(answers[i].sequence), i)))
            micros = tuple(MicroBatch.of(answers, part, pad_id) for part in micro_batches(own, micro))
            made.append(MiniBatch(torch.tensor(group), micros))
        return cls(tuple(made))

    def __iter__(self) -> Iterator[MicroBatch]:
        """This rank's micro-batches."""
        for minibatch in self.minibatches:
            yield from minibatch.micros


def answer_mask(answers: Sequence[Sampled], counted: Sequence[bool]) -> Tensor:
    """B × T: 1 on the tokens of answers that count."""
    mask_BT = torch.zeros(len(answers), max(len(answer.tokens) for answer in answers))
    for row, (answer, counts) in enumerate(zip(answers, counted, strict=True)):
        mask_BT[row, : len(answer.tokens)] = float(counts)
    return mask_BT


def sampler_log_probs(answers: Sequence[Sampled]) -> Tensor:
    """B × T, 0 on padding."""
    values_BT = torch.zeros(len(answers), max(len(answer.tokens) for answer in answers))
    for row, answer in enumerate(answers):
        values_BT[row, : len(answer.tokens)] = torch.tensor(answer.log_probs)
    return values_BT
