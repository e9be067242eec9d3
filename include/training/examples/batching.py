"""Which rows a step learns from, and how they lie in a tensor.

The order of rows is a function of (seed, epoch) and nothing else, so a resumed run, or one on another number of
processes, sees the same rows at the same step.
"""

import random
from collections.abc import Callable, Iterator, Sequence
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


@lru_cache(maxsize=8)
def epoch_order(seed: int | str, epoch: int, rows: int) -> tuple[int, ...]:
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
    position_ids: [row, position] where several dialogues lie in one row, None otherwise. attention_mask then holds the
    dialogue's number in its row (from 1; 0 is padding): a token sees its own dialogue alone.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    position_ids: torch.Tensor | None = None

    @property
    def size(self) -> int:
        return self.input_ids.shape[0]

    @property
    def tokens(self) -> int:
        """Real tokens, padding left out."""
        return int((self.attention_mask > 0).sum())

    def to(self, device: torch.device) -> "Batch":
        moved = (value if value is None else value.to(device) for value in vars(self).values())
        return Batch(*moved)

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What a scorer is given, by the names of its arguments."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def scored_by(self, scorer: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The log-probability of each learned token, [learned token]."""
        return scorer(**self.inputs)


def collate(items: Sequence[Encoded], pad_id: int) -> Batch:
    """Pads by length. What is learned is told by position, never by id: an end token that is also the pad is learned."""
    return _lay_out([[item] for item in items], pad_id, packed=False)


def collate_packed(bins: Sequence[Sequence[Encoded]], pad_id: int) -> Batch:
    """Each bin's dialogues one after another in one row; positions begin anew with each, and none sees another."""
    return _lay_out(bins, pad_id, packed=True)


def _lay_out(bins: Sequence[Sequence[Encoded]], pad_id: int, *, packed: bool) -> Batch:
    width = max(sum(len(item) for item in of_row) for of_row in bins)
    ids = torch.full((len(bins), width), pad_id, dtype=torch.long)
    mask, positions = torch.zeros_like(ids), torch.zeros_like(ids)
    rows, columns, targets = [], [], []
    for row, of_row in enumerate(bins):
        at = 0
        for number, item in enumerate(of_row, 1):
            end = at + len(item)
            ids[row, at:end] = torch.tensor(item.ids)
            mask[row, at:end] = number
            positions[row, at:end] = torch.arange(len(item))
            learned = [i for i in range(1, len(item)) if item.loss_mask[i]]
            rows += [row] * len(learned)
            columns += [at + i - 1 for i in learned]
            targets += [item.ids[i] for i in learned]
            at = end
    at_row, at_column, target = (torch.tensor(part, dtype=torch.long) for part in (rows, columns, targets))
    return Batch(ids, mask, at_row, at_column, target, positions if packed else None)


def packed_bins(items: Sequence[Encoded], capacity: int) -> list[list[Encoded]]:
    """The items in as few rows of at most `capacity` tokens as first-fit by falling length finds; the same for the same items."""
    bins: list[list[Encoded]] = []
    room: list[int] = []
    for item in sorted(items, key=len, reverse=True):
        at = next((i for i, left in enumerate(room) if left >= len(item)), None)
        if at is None:
            bins.append([item])
            room.append(capacity - len(item))
        else:
            bins[at].append(item)
            room[at] -= len(item)
    return bins


def pad_id_of(tokenizer: object) -> int:
    """The id to pad with: any id will do, as padding is masked by position."""
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if value is not None:
            return int(value)
    return 0
