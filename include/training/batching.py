"""Which rows a step learns from, and how they lie in a tensor.

The order of rows is a function of (seed, epoch) and nothing else, so a resumed run, or one on another number of
processes, sees the same rows at the same step.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch

from include.runtime.chat import Encoded
from include.training.errors import TrainingError

T = TypeVar("T")


def position(consumed: int, rows: int) -> tuple[int, int]:
    """(epoch, offset inside it) after `consumed` rows of a set of `rows`; epochs count from 0."""
    if rows <= 0:
        raise TrainingError("a data set without rows has no position")
    return divmod(consumed, rows)


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, rows: int) -> tuple[int, ...]:
    """A permutation of the rows, the same on every machine for the same (seed, epoch)."""
    order = list(range(rows))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
    return tuple(order)


def rows_at(step: int, global_batch: int, rows: int, seed: int) -> list[int]:
    """The rows of update `step` (from 0); a batch goes on into the next epoch where one ends."""
    chosen = []
    for consumed in range(step * global_batch, (step + 1) * global_batch):
        epoch, offset = position(consumed, rows)
        chosen.append(epoch_order(seed, epoch, rows)[offset])
    return chosen


def micro_batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`items` in pieces of at most `size`."""
    if size < 1:
        raise TrainingError(f"micro_batch is {size}, it must be at least 1")
    for at in range(0, len(items), size):
        yield items[at : at + size]


@dataclass(frozen=True)
class Batch:
    """Right-padded dialogues; the positions that predict a learned token are listed one by one.

    input_ids, attention_mask: [row, position]. rows, columns, targets: [learned token]; the logits at
    (rows[i], columns[i]) predict targets[i].
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor

    @property
    def size(self) -> int:
        return self.input_ids.shape[0]

    @property
    def tokens(self) -> int:
        """Real tokens, padding left out."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device) -> "Batch":
        moved = (self.input_ids, self.attention_mask, self.rows, self.columns, self.targets)
        return Batch(*(tensor.to(device) for tensor in moved))


def collate(items: Sequence[Encoded], pad_id: int) -> Batch:
    """Pads by length. What is learned is told by position, never by id: an end token that is also the pad is learned."""
    width = max(len(item) for item in items)
    ids = torch.full((len(items), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(items), width), dtype=torch.long)
    rows, columns, targets = [], [], []
    for row, item in enumerate(items):
        ids[row, : len(item)] = torch.tensor(item.ids)
        mask[row, : len(item)] = 1
        learned = [at for at in range(1, len(item)) if item.loss_mask[at]]
        rows += [row] * len(learned)
        columns += [at - 1 for at in learned]
        targets += [item.ids[at] for at in learned]
    return Batch(
        ids, mask, torch.tensor(rows, dtype=torch.long), torch.tensor(columns, dtype=torch.long), torch.tensor(targets, dtype=torch.long)
    )


def pad_id_of(tokenizer: object) -> int:
    """The id to pad with: any id will do, as padding is masked by position."""
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if value is not None:
            return int(value)
    return 0
