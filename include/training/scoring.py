"""Log-probabilities of answers: the output layer is applied where an answer's token is predicted, and nowhere else."""

from typing import Any

import torch

from include.training.errors import TrainingError


class AnswerScorer(torch.nn.Module):
    """A causal language model whose forward gives the log-probability of each learned token, [learned token], float32.

    With `position_ids`, `attention_mask` numbers the dialogues that share a row (see `batching.Batch`), or has four axes
    and says itself who sees whom (see `pairs.tensors`).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        if model.get_output_embeddings() is None or getattr(model, model.base_model_prefix, None) is None:
            raise TrainingError(f"{type(model).__name__} is not a causal language model with a separate output layer")
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        rows: torch.Tensor,
        columns: torch.Tensor,
        targets: torch.Tensor,
        temperature: float = 1.0,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if position_ids is not None and attention_mask.dim() == 2:
            attention_mask = self._own_dialogue(attention_mask)
        body = getattr(self.model, self.model.base_model_prefix)
        hidden = body(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False)
        logits = self.model.get_output_embeddings()(hidden.last_hidden_state[rows, columns]).float()
        if temperature != 1.0:
            logits = logits / temperature
        return -torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    def _own_dialogue(self, numbers: torch.Tensor) -> torch.Tensor:
        """[row, 1, query, key] from the dialogues' numbers [row, position]: earlier positions of the same dialogue are seen.

        Padding (number 0) sees itself, as a row of a softmax must see something. Transformers 5 takes a mask of four axes
        as it is: booleans for sdpa, what is added to the scores for eager attention.
        """
        causal = torch.ones(numbers.shape[1], numbers.shape[1], dtype=torch.bool, device=numbers.device).tril()
        seen = ((numbers[:, :, None] == numbers[:, None, :]) & causal)[:, None]
        if self.model.config._attn_implementation == "sdpa":
            return seen
        dtype = next(self.model.parameters()).dtype
        return torch.zeros(seen.shape, dtype=dtype, device=numbers.device).masked_fill(~seen, torch.finfo(dtype).min)


def sum_by_row(log_probs: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """[row] sums of per-token log-probabilities."""
    return torch.zeros(count, dtype=log_probs.dtype, device=log_probs.device).index_add(0, rows, log_probs)
