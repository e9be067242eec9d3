"""Reading a scalar head: one score a sequence, at its last real token, found by length and never by token id.

Where padding and end token are the same id, a search for "the last token that is not padding" lands one too early.
`model` is a Hugging Face sequence-classification model with one label (anything with `base_model` and `score`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def padded(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """(input_ids, attention_mask) of shape B × longest, padded on the right."""
    longest = max(len(sequence) for sequence in sequences)
    input_ids = torch.full((len(sequences), longest), pad_id)
    mask = torch.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        if not sequence:
            raise ValueError(f"sequence {row} is empty: there is no last token to read a score at")
        input_ids[row, : len(sequence)] = torch.tensor(list(sequence))
        mask[row, : len(sequence)] = 1
    return input_ids, mask


def token_values(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The head's output at every position, shape B × T, fp32 or more."""
    hidden = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    return model.score(hidden).squeeze(-1).float()


def last_token_scores(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """One score a row, shape B, read at the last position of the mask (right-padded)."""
    hidden = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    last_B = attention_mask.sum(1) - 1
    return model.score(hidden[torch.arange(len(last_B)), last_B]).squeeze(-1).float()


@torch.no_grad()
def score_sequences(model: Any, sequences: Sequence[Sequence[int]], pad_id: int, rows: int = 16) -> list[float]:
    """The raw score of each sequence, in the order given; batches are of similar length. `model` must be in eval mode."""
    if model.training:
        raise ValueError("the reward model is in train mode: scores would depend on chance")
    scores = [0.0] * len(sequences)
    for chosen in _by_length(sequences, rows):
        input_ids, mask = padded([sequences[i] for i in chosen], pad_id)
        device = model.score.weight.device
        for index, score in zip(chosen, last_token_scores(model, input_ids.to(device), mask.to(device)).tolist(), strict=True):
            scores[index] = score
    return scores


def _by_length(sequences: Sequence[Sequence[int]], rows: int) -> Iterator[list[int]]:
    order = sorted(range(len(sequences)), key=lambda i: (len(sequences[i]), i))
    for start in range(0, len(order), rows):
        yield order[start : start + rows]
