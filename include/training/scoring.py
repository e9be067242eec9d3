"""Log-probabilities of answers: the output layer is applied where an answer's token is predicted, and nowhere else."""

from typing import Any

import torch

from include.training.errors import TrainingError


class AnswerScorer(torch.nn.Module):
    """A causal language model whose forward gives the log-probability of each learned token, [learned token], float32."""

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
    ) -> torch.Tensor:
        hidden = getattr(self.model, self.model.base_model_prefix)(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        logits = self.model.get_output_embeddings()(hidden.last_hidden_state[rows, columns]).float()
        if temperature != 1.0:
            logits = logits / temperature
        return -torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def sum_by_row(log_probs: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """[row] sums of per-token log-probabilities."""
    return torch.zeros(count, dtype=log_probs.dtype, device=log_probs.device).index_add(0, rows, log_probs)
