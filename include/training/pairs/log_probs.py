"""Log-probabilities of both answers of pairs, and the reference's, computed once and bound to what they were made with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from include.domain.canonical import digest
from include.runtime.job import Job
from include.training.examples.batching import micro_batches
from include.training.pairs.rows import TokenPair
from include.training.pairs.tensors import PairTokens, by_length, lay_out
from include.training.scoring import sum_by_row

Scorer = Callable[..., Tensor]
FAR_NATS = 3.0
"""A perplexity of 20: own samples of a tuned model lie well below 1 nat a token."""


@dataclass(frozen=True)
class PairSums:
    """Sums of log-probabilities over answer tokens, chosen and rejected; each of shape P."""

    chosen: Tensor
    rejected: Tensor

    def per_token(self, pairs: Sequence[TokenPair]) -> "PairSums":
        """Means over answer tokens instead."""
        chosen = torch.tensor([max(pair.chosen_tokens, 1) for pair in pairs], device=self.chosen.device)
        rejected = torch.tensor([max(pair.rejected_tokens, 1) for pair in pairs], device=self.chosen.device)
        return PairSums(self.chosen / chosen, self.rejected / rejected)

    def rows(self, index: Sequence[int]) -> "PairSums":
        picked = torch.tensor(list(index))
        return PairSums(self.chosen[picked], self.rejected[picked])


def pair_sums(scorer: Scorer, laid: PairTokens) -> PairSums:
    """The sums of one batch, whose prefixes stand once."""
    return sums_of(scorer(**laid.answers), laid)


def sums_of(log_probs: Tensor, laid: PairTokens) -> PairSums:
    """The sums of a batch from its answer tokens' log-probabilities."""
    sums = sum_by_row(log_probs, laid.owners, 2 * laid.pairs)
    return PairSums(sums[: laid.pairs], sums[laid.pairs :])


@torch.no_grad()
def all_sums(scorer: Scorer, model: Any, pairs: Sequence[TokenPair], micro_batch: int, pad_id: int) -> PairSums:
    """The sums of all pairs, on the CPU; pairs of like length go together. `model`: the causal model inside `scorer`."""
    chosen, rejected = torch.zeros(len(pairs)), torch.zeros(len(pairs))
    for part in micro_batches(by_length(pairs), micro_batch):
        laid = lay_out([pairs[i] for i in part], pad_id, model).to(next(model.parameters()).device)
        sums = pair_sums(scorer, laid)
        chosen[list(part)], rejected[list(part)] = sums.chosen.float().cpu(), sums.rejected.float().cpu()
    return PairSums(chosen, rejected)


def reference_key(job: Job, sides: Sequence[Sequence[TokenPair]]) -> str:
    """What reference log-probabilities are bound to: reference, tokenizer, template, precision and the very tokens."""
    return digest(
        "reference-log-probs",
        {
            "reference": job.input_digest("reference"),
            "tokenizer": job.spec.tokenizer,
            "chat_template": job.spec.chat_template,
            "precision": job.config.text("precision", default="fp32"),
            "pairs": [[[pair.pair_id, pair.prompt_length, list(pair.chosen), list(pair.rejected)] for pair in side] for side in sides],
        },
    )


@dataclass(frozen=True)
class Distance:
    """How far the pairs are from the reference that is to be improved.

    own_share: share of the answers that this very reference wrote. other_tokenizer: answers of a policy under another
    tokenizer or template (their text is encoded anew). nll_per_token: −log π_ref a token; of own samples it is the entropy.
    far_share: share of the answers whose −log π_ref a token is above FAR_NATS: the reference would hardly write them.
    """

    own_share: float
    other_tokenizer: int
    nll_per_token: float
    far_share: float = 0.0

    @classmethod
    def of(cls, job: Job, pairs: Sequence[TokenPair], reference: PairSums) -> "Distance":
        written = [origin for pair in pairs for origin in pair.written]
        own = sum(policy == job.input_digest("reference") for policy, _, _ in written)
        bound = (job.spec.tokenizer, job.spec.chat_template)
        other = sum(policy is not None and (tokenizer, template) != bound for policy, tokenizer, template in written)
        tokens = sum(pair.chosen_tokens + pair.rejected_tokens for pair in pairs)
        total = float((reference.chosen.double() + reference.rejected.double()).sum())
        means = reference.per_token(pairs)
        far = float((torch.cat([means.chosen, means.rejected]) < -FAR_NATS).double().mean())
        return cls(own / len(written), other, -total / tokens if tokens else 0.0, far)

    def metrics(self) -> dict[str, float]:
        told = {"own_share": self.own_share, "other_tokenizer": float(self.other_tokenizer), "far_share": self.far_share}
        return {**told, "reference_nll_per_token": self.nll_per_token}
