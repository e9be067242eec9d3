"""Losses, log-probabilities and gradients of the cases by this project's own code."""

from typing import Any

import torch

from include.training.examples.batching import collate
from include.training.pairs.log_probs import pair_sums
from include.training.pairs.losses import DpoObjective, PairLogProbs, bradley_terry
from include.training.pairs.rows import TokenPair
from include.training.pairs.tensors import lay_out
from include.training.reward.head import SequenceScores
from include.training.scoring import AnswerScorer
from tests.training.parity.cases import BETA, DIALOGUES, DPO_SETTINGS, PAD, gradients, pairs, policy, reference, reward_model


def sft() -> dict[str, Any]:
    scorer = AnswerScorer(policy())
    log_probs = collate(DIALOGUES, PAD).scored_by(scorer)
    loss = -log_probs.sum() / len(log_probs)
    loss.backward()
    return {"loss": float(loss.detach()), "log_probs": log_probs.tolist(), "gradients": gradients(scorer.model.named_parameters())}


def token_pairs() -> list[TokenPair]:
    made = []
    for number, (chosen, rejected) in enumerate(pairs()):
        made.append(TokenPair(f"pair-{number}", "group", chosen.prompt_length, chosen.ids, rejected.ids, 1.0, {}, ()))
    return made


def dpo(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = DPO_SETTINGS[name]
    objective = DpoObjective(BETA, **settings)
    scorer, frozen = AnswerScorer(policy()), AnswerScorer(reference())
    laid = lay_out(token_pairs(), PAD, scorer.model)
    own = pair_sums(scorer, laid)
    with torch.no_grad():
        theirs = pair_sums(frozen, laid)
    compared, against = (own.per_token(token_pairs()), theirs.per_token(token_pairs())) if objective.averages_tokens else (own, theirs)
    loss = objective(PairLogProbs(compared.chosen, compared.rejected, against.chosen, against.rejected)).mean()
    loss = loss - objective.nll_weight * own.chosen.sum() / sum(pair.chosen_tokens for pair in token_pairs())
    loss.backward()
    return {
        "loss": float(loss.detach()),
        "log_probs": [*own.chosen.tolist(), *own.rejected.tolist()],
        "reference_log_probs": [*theirs.chosen.tolist(), *theirs.rejected.tolist()],
        "gradients": gradients(scorer.model.named_parameters()),
    }


def reward() -> dict[str, Any]:
    model, count = reward_model(), len(pairs())
    laid = lay_out(token_pairs(), PAD, model)
    scores = SequenceScores(model)(laid.input_ids, laid.attention_mask, laid.end_rows, laid.end_columns, laid.position_ids)
    loss = bradley_terry(scores[:count], scores[count:]).mean()
    loss.backward()
    return {"loss": float(loss.detach()), "scores": scores.tolist(), "gradients": gradients(model.named_parameters())}
