"""A small look at validation rows, before and after: the loss on their answers, and the form of freely written ones.

Only the validation side is read here; hold-out rows are read once, by the evaluation.
"""

from collections.abc import Sequence
from typing import Any

import torch

from include.domain.records import Prompt
from include.runtime.chat import answer_text, eos_ids, prompt_ids
from include.runtime.generation import Sampling, generate_batch
from include.training.examples.batching import collate, micro_batches, pad_id_of
from include.training.examples.tokenise import DemonstrationRows
from include.training.scoring import AnswerScorer
from include.verifiers.registry import verify


@torch.no_grad()
def validation_loss(scorer: AnswerScorer, rows: DemonstrationRows, limit: int, micro_batch: int) -> float | None:
    """Mean negative log-probability of a learned token over the first `limit` rows; None without any."""
    was_training = scorer.training
    scorer.eval()
    total, count = 0.0, 0
    for part in micro_batches(range(min(limit, len(rows))), micro_batch):
        batch = collate([rows[i] for i in part], pad_id_of(rows.tokenizer)).to(next(scorer.parameters()).device)
        log_probs = batch.scored_by(scorer)
        total, count = total - float(log_probs.double().sum()), count + len(log_probs)
    scorer.train(was_training)
    return total / count if count else None


def answer_check(model: Any, tokenizer: Any, prompts: Sequence[Prompt], max_new_tokens: int, max_rows: int) -> dict[str, float]:
    """Shares of greedy answers that are right, and in the asked form, by each prompt's own verifier ({} without one)."""
    checked = [prompt for prompt in prompts if prompt.reference is not None]
    if not checked:
        return {}
    ids = [prompt_ids(tokenizer, prompt.messages, prompt.tools) for prompt in checked]
    sampling = Sampling(temperature=0.0, max_new_tokens=max_new_tokens)
    was_training = model.training
    model.eval()
    answers = generate_batch(model, ids, sampling, [0] * len(ids), stop_ids=eos_ids(tokenizer), max_rows=max_rows)
    model.train(was_training)
    texts = [answer_text(tokenizer, answer.tokens) for answer in answers]
    verdicts = [verify(prompt.reference, text) for prompt, text in zip(checked, texts, strict=True) if prompt.reference is not None]
    return {
        "exact": sum(verdict.right is True for verdict in verdicts) / len(verdicts),
        "form": sum(verdict.in_form for verdict in verdicts) / len(verdicts),
    }
