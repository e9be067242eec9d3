"""Reading a reward model's head: one score a sequence, at its last real token, found by length and never by token id.

Where padding and end token are the same id, a search for "the last token that is not padding" lands one too early.
`model` is a Hugging Face sequence-classification model (anything with `base_model` and `score`). Its first label is the
preference, and everything that wants a score reads that one; further labels are dimensions of a rubric.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from include.domain.errors import IntegrityError

PREFERENCE = "preference"
"""The first label's name where there are several."""
MIDDLE, HALF_SCALE = 3.0, 2.0


def points(output: float) -> float:
    """A dimension's output in points of the scale from 1 (poor) to 5 (excellent), whose middle is learnt as 0 and whose ends as −1 and 1."""
    return MIDDLE + HALF_SCALE * output


def dimensions_of(config: Any, where: Path | str) -> tuple[str, ...]:
    """The dimensions that the reward model `where`, of this Hugging Face configuration, has outputs for, in their order.

    Raises:
        IntegrityError: several labels, of which the first is not the preference: a classifier of something else.
    """
    labels = [str(config.id2label[at]) for at in range(config.num_labels)]
    if not labels or (len(labels) > 1 and labels[0] != PREFERENCE):
        raise IntegrityError(f"{where} is not a reward model: its labels are {labels}, not one, or {PREFERENCE} and then dimensions")
    return tuple(labels[1:])


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
    """The preference at every position, shape B × T, fp32 or more."""
    hidden = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    return model.score(hidden)[..., 0].float()


def last_token_outputs(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """All outputs of the head, shape B × labels, read at the last position of the mask (right-padded)."""
    hidden = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    last_B = attention_mask.sum(1) - 1
    outputs: Tensor = model.score(hidden[torch.arange(len(last_B)), last_B]).float()
    return outputs


def last_token_scores(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """One score a row, shape B."""
    return last_token_outputs(model, input_ids, attention_mask)[:, 0]


@torch.no_grad()
def output_sequences(model: Any, sequences: Sequence[Sequence[int]], pad_id: int, rows: int = 16) -> list[list[float]]:
    """The raw outputs for each sequence, preference first, in the order given; batches are of similar length. `model` must be in eval mode."""
    if model.training:
        raise ValueError("the reward model is in train mode: scores would depend on chance")
    found: list[list[float]] = [[]] * len(sequences)
    for chosen in _by_length(sequences, rows):
        input_ids, mask = padded([sequences[i] for i in chosen], pad_id)
        device = model.score.weight.device
        for index, outputs in zip(chosen, last_token_outputs(model, input_ids.to(device), mask.to(device)).tolist(), strict=True):
            found[index] = outputs
    return found


def score_sequences(model: Any, sequences: Sequence[Sequence[int]], pad_id: int, rows: int = 16) -> list[float]:
    """The raw score of each sequence (see `output_sequences`)."""
    return [outputs[0] for outputs in output_sequences(model, sequences, pad_id, rows)]


def _by_length(sequences: Sequence[Sequence[int]], rows: int) -> Iterator[list[int]]:
    order = sorted(range(len(sequences)), key=lambda i: (len(sequences[i]), i))
    for start in range(0, len(order), rows):
        yield order[start : start + rows]
