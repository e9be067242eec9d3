"""Losses, log-probabilities and gradients of the cases by this project's own code."""

from collections.abc import Sequence
from typing import Any

import torch

from include.runtime.chat import Encoded
from include.training.examples.batching import collate
from include.training.pairs.log_probs import pair_sums
from include.training.pairs.losses import DpoObjective, PairLogProbs, bradley_terry
from include.training.pairs.mismatched import moved, reference_point
from include.training.pairs.rows import TokenPair
from include.training.pairs.tensors import lay_out
from include.training.reward.head import SequenceScores
from include.training.scoring import AnswerScorer
from tests.training.parity.cases import BETA, DPO_SETTINGS, KTO_CASES, KTO_WEIGHTS, PAD, SMALL, Setup, gradients, mismatched


def sft(setup: Setup = SMALL) -> dict[str, Any]:
    scorer = AnswerScorer(setup.policy())
    log_probs = collate(setup.dialogues, PAD).scored_by(scorer)
    loss = -log_probs.sum() / len(log_probs)
    loss.backward()
    return {"loss": float(loss.detach()), "log_probs": log_probs.tolist(), "gradients": gradients(scorer.model.named_parameters())}


def token_pairs(pairs: Sequence[tuple[Encoded, Encoded]]) -> list[TokenPair]:
    made = []
    for number, (chosen, rejected) in enumerate(pairs):
        made.append(TokenPair(f"pair-{number}", "group", chosen.prompt_length, chosen.ids, rejected.ids, 1.0, {}, ()))
    return made


def dpo(name: str, setup: Setup = SMALL) -> dict[str, Any]:
    pairs = token_pairs(setup.pairs)
    settings: dict[str, Any] = DPO_SETTINGS[name]
    objective = DpoObjective(BETA, **settings)
    scorer, frozen = AnswerScorer(setup.policy()), AnswerScorer(setup.reference())
    laid = lay_out(pairs, PAD, scorer.model)
    own = pair_sums(scorer, laid)
    with torch.no_grad():
        theirs = pair_sums(frozen, laid)
    compared, against = (own.per_token(pairs), theirs.per_token(pairs)) if objective.averages_tokens else (own, theirs)
    loss = objective(PairLogProbs(compared.chosen, compared.rejected, against.chosen, against.rejected)).mean()
    loss = loss - objective.nll_weight * own.chosen.sum() / sum(pair.chosen_tokens for pair in pairs)
    loss.backward()
    return {
        "loss": float(loss.detach()),
        "log_probs": [*own.chosen.tolist(), *own.rejected.tolist()],
        "reference_log_probs": [*theirs.chosen.tolist(), *theirs.rejected.tolist()],
        "gradients": gradients(scorer.model.named_parameters()),
    }


def kto(name: str, setup: Setup = SMALL) -> dict[str, Any]:
    setup = setup.exchanged() if KTO_CASES[name] else setup
    pairs, apart = token_pairs(setup.pairs), token_pairs(mismatched(setup.pairs))
    objective = DpoObjective(BETA, "kto", **KTO_WEIGHTS)
    scorer, frozen = AnswerScorer(setup.policy()), AnswerScorer(setup.reference())
    with torch.no_grad():
        theirs, *shown = [pair_sums(by, lay_out(of, PAD, by.model)) for by, of in ((frozen, pairs), (scorer, apart), (frozen, apart))]
    point = reference_point(*moved(*shown))
    own = pair_sums(scorer, lay_out(pairs, PAD, scorer.model))
    loss = objective(PairLogProbs(own.chosen, own.rejected, theirs.chosen, theirs.rejected, point)).mean()
    loss.backward()
    return {
        "loss": float(loss.detach()),
        "reference_point": point,
        "log_probs": [*own.chosen.tolist(), *own.rejected.tolist()],
        "reference_log_probs": [*theirs.chosen.tolist(), *theirs.rejected.tolist()],
        "gradients": gradients(scorer.model.named_parameters()),
    }


def reward(setup: Setup = SMALL) -> dict[str, Any]:
    model, count = setup.reward_model(), len(setup.pairs)
    laid = lay_out(token_pairs(setup.pairs), PAD, model)
    scores = SequenceScores(model)(laid.input_ids, laid.attention_mask, laid.end_rows, laid.end_columns, laid.position_ids)
    loss = bradley_terry(scores[:count], scores[count:]).mean()
    loss.backward()
    return {"loss": float(loss.detach()), "scores": scores.tolist(), "gradients": gradients(model.named_parameters())}
