"""Losses, log-probabilities and gradients of the cases by this project's own code."""

from typing import Any

import torch

from include.training.batching import collate
from include.training.losses import DpoObjective, PairLogProbs, bradley_terry
from include.training.reward_head import SequenceScores
from include.training.scoring import AnswerScorer, sum_by_row
from tests.training.parity.cases import BETA, DIALOGUES, DPO_SETTINGS, PAD, gradients, pairs, policy, reference, reward_model


def sft() -> dict[str, Any]:
    scorer = AnswerScorer(policy())
    log_probs = collate(DIALOGUES, PAD).scored_by(scorer)
    loss = -log_probs.sum() / len(log_probs)
    loss.backward()
    return {"loss": float(loss.detach()), "log_probs": log_probs.tolist(), "gradients": gradients(scorer.model.named_parameters())}


def dpo(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = DPO_SETTINGS[name]
    objective = DpoObjective(BETA, **settings)
    sides = [chosen for chosen, _ in pairs()] + [rejected for _, rejected in pairs()]
    batch, count = collate(sides, PAD), len(pairs())
    scorer, frozen = AnswerScorer(policy()), AnswerScorer(reference())
    tokens = torch.tensor([item.trained_tokens for item in sides])

    def sums(of: AnswerScorer) -> torch.Tensor:
        return sum_by_row(batch.scored_by(of), batch.rows, batch.size)

    own = sums(scorer)
    with torch.no_grad():
        theirs = sums(frozen)
    compared, against = (own / tokens, theirs / tokens) if objective.averages_tokens else (own, theirs)
    loss = objective(PairLogProbs(compared[:count], compared[count:], against[:count], against[count:])).mean()
    loss = loss - objective.nll_weight * own[:count].sum() / tokens[:count].sum()
    loss.backward()
    told = gradients(scorer.model.named_parameters())
    return {"loss": float(loss.detach()), "log_probs": own.tolist(), "reference_log_probs": theirs.tolist(), "gradients": told}


def reward() -> dict[str, Any]:
    model = reward_model()
    batch = collate([chosen for chosen, _ in pairs()] + [rejected for _, rejected in pairs()], PAD)
    scores = SequenceScores(model)(batch.input_ids, batch.attention_mask)
    loss = bradley_terry(scores[: len(pairs())], scores[len(pairs()) :]).mean()
    loss.backward()
    return {"loss": float(loss.detach()), "scores": scores.tolist(), "gradients": gradients(model.named_parameters())}
