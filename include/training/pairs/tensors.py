"""Pairs as tensors in which what both sides begin with stands once.

A pair is laid out as ``prefix | rest of the chosen side | rest of the rejected side``: the longest common prefix (prompt
and any equal start of the answers) is computed once, and its gradient is the sum of both sides'. An attention mask keeps
the sides apart and position ids count each side on from the prefix, so every hidden state is the one that the sequence
alone would have. Several pairs share a row as long as they fit into the width of the longest one: little is padding.
Where a model's attention cannot be told so (`shares_prefix`), each side is a row of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from include.runtime.reward_model import padded


class Sides(Protocol):
    """Two whole sequences, of which the first `prompt_length` tokens are the prompt."""

    @property
    def prompt_length(self) -> int: ...

    @property
    def chosen(self) -> tuple[int, ...]: ...

    @property
    def rejected(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class PairTokens:
    """P pairs in R rows of W positions. Where a list speaks of both sides, the chosen ones come first: 2P.

    input_ids: R × W. attention_mask: R × 1 × W × W, or R × W where each side is a row. position_ids: R × W or None.
    end_rows, end_columns: where each side's last token stands. rows, columns, targets: the positions that predict answer
    tokens, and those tokens, side by side; owners: which of the 2P sides each belongs to.
    tokens: real tokens of both sides, as if each stood alone; computed: positions that were really computed, padding left out.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor | None
    end_rows: Tensor
    end_columns: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    owners: Tensor
    tokens: int
    computed: int

    @property
    def pairs(self) -> int:
        return len(self.end_rows) // 2

    @property
    def answers(self) -> dict[str, Tensor | None]:
        """What a scorer of answer tokens is given, by the names of its arguments."""
        return {**self._shown, "rows": self.rows, "columns": self.columns, "targets": self.targets}

    @property
    def ends(self) -> dict[str, Tensor | None]:
        """What a scorer of whole sequences is given, by the names of its arguments."""
        return {**self._shown, "rows": self.end_rows, "columns": self.end_columns}

    @property
    def _shown(self) -> dict[str, Tensor | None]:
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask, "position_ids": self.position_ids}

    def to(self, device: torch.device) -> "PairTokens":
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return PairTokens(**{**vars(self), **moved})


def shares_prefix(model: Any) -> bool:
    """Whether `model` follows a mask of four dimensions and given positions: rotary positions, full attention in every layer."""
    config = model.config
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    rotary = any(getattr(config, name, None) is not None for name in ("rope_parameters", "rope_theta", "rope_scaling"))
    full = layers == {"full_attention"} and getattr(config, "sliding_window", None) is None
    return rotary and full and getattr(config, "_attn_implementation", None) in ("sdpa", "eager")


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def laid_out_tokens(pair: Sides) -> int:
    """Positions that a pair takes up when its prefix stands once."""
    return len(pair.chosen) + len(pair.rejected) - common_prefix(pair.chosen, pair.rejected)


def by_length(pairs: Sequence[Sides]) -> list[int]:
    """Indices of `pairs`, the longest laid out first: neighbours are of like length, and rows fill up well."""
    return sorted(range(len(pairs)), key=lambda i: (-laid_out_tokens(pairs[i]), i))


def lay_out(pairs: Sequence[Sides], pad_id: int, model: Any) -> PairTokens:
    """`pairs` as the tensors `model` can take; the order of sides is the order given."""
    if any(not pair.chosen or not pair.rejected for pair in pairs):
        raise ValueError("a side of a pair is empty: there is no last token to read anything at")
    return _shared(pairs, pad_id, model.config._attn_implementation) if shares_prefix(model) else _apart(pairs, pad_id)


def _apart(pairs: Sequence[Sides], pad_id: int) -> PairTokens:
    sides = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    input_ids, mask = padded(sides, pad_id)
    columns = [list(range(len(side))) for side in sides]
    return _assembled(pairs, input_ids, mask, None, (list(range(len(sides))), columns))


def _shared(pairs: Sequence[Sides], pad_id: int, attention: str) -> PairTokens:
    prefixes = [common_prefix(pair.chosen, pair.rejected) for pair in pairs]
    places, width, height = _places([laid_out_tokens(pair) for pair in pairs])
    input_ids = torch.full((height, width), pad_id, dtype=torch.long)
    position_ids = torch.zeros_like(input_ids)
    owner_RW = torch.arange(width).repeat(height, 1) + 2 * len(pairs)  # padding: everyone's own, attends to itself alone
    segment_RW = torch.zeros_like(input_ids)
    columns: list[list[int]] = [[] for _ in range(2 * len(pairs))]
    for index, (pair, prefix, (row, start)) in enumerate(zip(pairs, prefixes, places, strict=True)):
        middle = start + len(pair.chosen)
        end = middle + len(pair.rejected) - prefix
        input_ids[row, start:end] = torch.tensor([*pair.chosen, *pair.rejected[prefix:]])
        position_ids[row, start:end] = torch.tensor([*range(len(pair.chosen)), *range(prefix, len(pair.rejected))])
        owner_RW[row, start:end] = index
        segment_RW[row, start + prefix : middle], segment_RW[row, middle:end] = 1, 2
        columns[index] = list(range(start, middle))
        columns[len(pairs) + index] = [*range(start, start + prefix), *range(middle, end)]
    mask = _block_mask(owner_RW, segment_RW)
    if attention == "eager":  # it adds the mask to the scores
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return _assembled(pairs, input_ids, mask, position_ids, ([row for row, _ in places] * 2, columns))


def _places(lengths: Sequence[int]) -> tuple[list[tuple[int, int]], int, int]:
    """(row, start) of each, into rows of the longest's width, each into the first row with room; the width; the rows used."""
    width = max(lengths)
    used: list[int] = []
    places = [(0, 0)] * len(lengths)
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        row = next((r for r, taken in enumerate(used) if taken + lengths[index] <= width), len(used))
        if row == len(used):
            used.append(0)
        places[index] = (row, used[row])
        used[row] += lengths[index]
    return places, width, len(used)


def _block_mask(owner_RW: Tensor, segment_RW: Tensor) -> Tensor:
    """R × 1 × W × W: a position sees what stands before it in its own pair: the prefix (segment 0) and its own side."""
    same_RWW = owner_RW[:, :, None] == owner_RW[:, None, :]
    side_RWW = (segment_RW[:, None, :] == 0) | (segment_RW[:, :, None] == segment_RW[:, None, :])
    width = owner_RW.shape[1]
    earlier_WW = torch.ones(width, width, dtype=torch.bool).tril()
    return (same_RWW & side_RWW & earlier_WW)[:, None]


def _assembled(
    pairs: Sequence[Sides],
    input_ids: Tensor,
    mask: Tensor,
    position_ids: Tensor | None,
    standing: tuple[list[int], list[list[int]]],
) -> PairTokens:
    """`standing`: the row of each of the 2P sides, and the column of each of its tokens."""
    side_rows, columns = standing
    prompts = [pair.prompt_length for pair in pairs] * 2
    sides = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    learned = [(side, at) for side, ids in enumerate(sides) for at in range(max(prompts[side], 1), len(ids))]
    return PairTokens(
        input_ids,
        mask,
        position_ids,
        torch.tensor(side_rows),
        torch.tensor([of_side[-1] for of_side in columns]),
        torch.tensor([side_rows[side] for side, _ in learned], dtype=torch.long),
        torch.tensor([columns[side][at - 1] for side, at in learned], dtype=torch.long),
        torch.tensor([sides[side][at] for side, at in learned], dtype=torch.long),
        torch.tensor([side for side, _ in learned], dtype=torch.long),
        sum(len(ids) for ids in sides),
        sum(len(ids) for ids in sides) if position_ids is None else sum(laid_out_tokens(pair) for pair in pairs),
    )
