"""DPO and its variants on preference pairs, whatever the engine: all weights, or low-rank adapters.

The reference's log-probabilities are computed once, before the first update, kept in the store for other runs, and travel in
the checkpoint under the digests they were made with. Logits are computed at answer positions only.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from include.domain.errors import SpecError
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.errors import CheckpointError
from include.runtime.job import Job
from include.training.engines.engine import ENGINE_KEYS, Engine, EngineSettings, MakeEngine, MicroBatch
from include.training.engines.precision import precision_context
from include.training.examples.batching import micro_batches, pad_id_of, rows_at
from include.training.examples.heldout import answer_check
from include.training.examples.special import warn_of_special_tokens
from include.training.learning_guards import LearningGuards, LearningLimits
from include.training.loop import StepResult, run_steps
from include.training.lora import LoraSettings, add_adapters
from include.training.model_checks import check_frozen, check_trained
from include.training.model_io import load_causal_lm, load_tokenizer
from include.training.pairs.log_probs import Distance, PairSums, all_sums, reference_key, sums_of
from include.training.pairs.losses import DPO_LOSSES, DpoObjective, PairLogProbs
from include.training.pairs.mismatched import mismatched_side, moved, reference_point, unbalanced, with_mismatched
from include.training.pairs.reference_cache import ReferenceCache
from include.training.pairs.rows import PairsError, TokenPair, encoder, pairs_of, prompts_of, texts_of
from include.training.pairs.tensors import PairTokens, by_length, lay_out
from include.training.policy_export import export_policy
from include.training.schedule import ScheduleSettings, learning_rate_at
from include.training.scoring import AnswerScorer

CONFIG_KEYS = (
    *("steps", "global_batch", "warmup_steps", "schedule", "max_length", "beta", "loss", "label_smoothing", "max_identical_share"),
    *("eval_pairs", "eval_rows", "eval_max_new_tokens", "allow_early_stop", "nll_weight", "simpo_gamma", "guards", "lora"),
    *("desirable_weight", "undesirable_weight"),
    *ENGINE_KEYS,
)
OWN_SHARE_WARNING = 0.5
FAR_SHARE_WARNING = 0.1
SIDES = ("train", "validation")


@dataclass(frozen=True)
class Totals:
    """Of the whole step: pairs, their weights' sum, the chosen answers' tokens, and kto's reference point."""

    pairs: int
    weight: float
    chosen_tokens: float
    reference_point: float


class DpoTrainer:
    """One update a step; what it must remember beside the engine's state is the reference's log-probabilities."""

    def __init__(self, job: Job, engine: Engine, pairs: Mapping[str, Sequence[TokenPair]], pad_id: int) -> None:
        self.job = job
        self.engine = engine
        self.pad_id = pad_id
        self.objective = DpoObjective(
            job.config.number("beta"),
            job.config.text("loss", DPO_LOSSES, "sigmoid"),
            job.config.number("label_smoothing", 0.0),
            job.config.number("nll_weight", 0.0),
            job.config.number("simpo_gamma", 0.0),
            job.config.number("desirable_weight", 1.0),
            job.config.number("undesirable_weight", 1.0),
        )
        self.pairs = with_mismatched(pairs, job.config.positive("max_length")) if self.objective.has_reference_point else pairs
        self.global_batch = job.config.positive("global_batch")
        self.micro_batch = job.settings.positive("micro_batch", self.global_batch)
        self.schedule = ScheduleSettings.of(job.config, job.config.positive("steps"))
        self.key = reference_key(job, list(self.pairs.values()))
        self.cache = ReferenceCache.of(job, self.key, self.micro_batch, engine.device)
        self.reference: dict[str, PairSums] = {}
        self.guards = LearningGuards(LearningLimits.of(job.config))

    def train_step(self, step: int) -> StepResult:
        if not self.reference:
            self.make_reference()
        chosen = rows_at(step, self.global_batch, len(self.pairs["train"]), self.job.seed)
        mine = self.engine.data.share(chosen)
        point = reference_point(*self.engine.data.total(*self._moved("train", mine))) if self.objective.has_reference_point else 0.0
        self.engine.train()
        found = self.engine.learn(self._micro_batches(mine, len(chosen), point))
        rate = learning_rate_at(step, self.schedule)
        norm = self.engine.step(rate)
        whole = dict(zip(found, self.engine.data.total(*found.values()), strict=True))
        seen = int(whole.pop("tokens"))
        figures = {**whole, "grad_norm": norm, "learning_rate": rate}
        if self.objective.has_reference_point:
            figures["reference_point"] = point
        self.guards.check(step + 1, figures)
        return StepResult(figures, seen)

    @torch.no_grad()
    def _moved(self, side: str, rows: Sequence[int]) -> tuple[float, int]:
        """How far the policy has moved on these pairs' mismatched answers, without dropout: nats in all, and their number."""
        self.engine.eval()
        apart = mismatched_side(side)
        policy = all_sums(self.engine, self.engine.module.model, [self.pairs[apart][i] for i in rows], self.micro_batch, self.pad_id)
        return moved(policy, self.reference[apart].rows(rows))

    def _micro_batches(self, mine: Sequence[int], count: int, point: float) -> Iterator[MicroBatch]:
        """Of this rank's pairs; `count`: pairs of the whole step; `point`: its reference point."""
        weight, words = self.engine.data.total(*self._counts(mine))
        ordered = [mine[i] for i in by_length([self.pairs["train"][i] for i in mine])]
        for part in micro_batches(ordered, self.micro_batch):
            laid = lay_out([self.pairs["train"][i] for i in part], self.pad_id, self.engine.module.model).to(self.engine.device)
            yield MicroBatch(laid.answers, partial(self._measured, part, laid, Totals(count, weight, words, point)))

    def _measured(
        self, part: Sequence[int], laid: PairTokens, totals: "Totals", log_probs: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, float]]:
        """Loss and figures of a micro-batch."""
        pairs = [self.pairs["train"][i] for i in part]
        sums = sums_of(log_probs, laid)
        compared = self._compare(pairs, sums, self.reference["train"].rows(part), totals.reference_point)
        weights_P = torch.tensor([pair.weight for pair in pairs], device=log_probs.device)
        share = (self.objective(compared) * weights_P).sum() / totals.weight
        if self.objective.nll_weight:
            share = share - self.objective.nll_weight * sums.chosen.sum() / max(totals.chosen_tokens, 1)
        return share, {"loss": float(share.detach()), **self._figures(compared, totals.pairs), "tokens": laid.tokens}

    def _counts(self, rows: Sequence[int]) -> tuple[float, int]:
        """Weight and chosen answers' tokens of training pairs."""
        pairs = [self.pairs["train"][i] for i in rows]
        return sum(pair.weight for pair in pairs), sum(pair.chosen_tokens for pair in pairs)

    def _compare(self, pairs: Sequence[TokenPair], policy: PairSums, reference: PairSums, point: float) -> PairLogProbs:
        if self.objective.averages_tokens:
            policy, reference = policy.per_token(pairs), reference.per_token(pairs)
        device = policy.chosen.device
        return PairLogProbs(policy.chosen, policy.rejected, reference.chosen.to(device), reference.rejected.to(device), point)

    def _figures(self, compared: PairLogProbs, total: int) -> dict[str, float]:
        """Sums over these pairs, divided by `total` pairs.

        kl_estimate: mean of log π_ref − log π over the answers; where the reference wrote them it estimates KL(reference ‖ policy).
        """
        chosen, rejected = self.objective.implicit_rewards(compared)
        moved = (compared.advantage_of_chosen + compared.advantage_of_rejected).detach()
        return {
            "accuracy": float((chosen > rejected).sum()) / total,
            "margin": float((chosen - rejected).sum()) / total,
            "reward_chosen": float(chosen.sum()) / total,
            "reward_rejected": float(rejected.sum()) / total,
            "kl_estimate": float(-moved.sum()) / (2 * total),
        }

    @torch.no_grad()
    def look(self, side: str, limit: int) -> dict[str, float]:
        """Loss and figures on the first `limit` pairs of a side under the present policy; {} without any."""
        pairs = list(self.pairs[side][:limit])
        if not pairs:
            return {}
        self.engine.eval()
        policy = all_sums(self.engine, self.engine.module.model, pairs, self.micro_batch, self.pad_id)
        point = reference_point(*self._moved(side, range(len(pairs)))) if self.objective.has_reference_point else 0.0
        compared = self._compare(pairs, policy, self.reference[side].rows(range(len(pairs))), point)
        return {f"{side}_loss": float(self.objective(compared).mean())} | {
            f"{side}_{k}": v for k, v in self._figures(compared, len(pairs)).items()
        }

    @torch.no_grad()
    def make_reference(self) -> None:
        """Runs the reference once over all pairs of which no run has kept it, before the first update.

        Where policy and reference are the same artifact, the policy still is its reference: no second model is held, and a model
        that is dealt out over ranks need not lie whole on one.
        """
        own = self.job.input_digest("reference") == self.job.input_digest("policy")
        if own:
            self.engine.eval()
        frozen = cache(self._frozen_reference)

        def compute(pairs: Sequence[TokenPair]) -> PairSums:
            scorer, model = (self.engine, self.engine.module.model) if own else (frozen(), frozen().model)
            with nullcontext() if own else precision_context(self.job.config.text("precision", default="fp32"), self.engine.device.type):
                return all_sums(scorer, model, pairs, self.micro_batch, self.pad_id)

        self.reference = {side: self.cache.sums(side, pairs, compute) for side, pairs in self.pairs.items() if pairs}

    def _frozen_reference(self) -> Any:
        """Chance is left as it was, so that a run which needs no second model draws the same."""
        with torch.random.fork_rng():
            model = load_causal_lm(self.job.input("reference"), self.job.config.text("attention", ("sdpa", "eager"), "sdpa"))
        scorer = self.engine.frozen(AnswerScorer(model))
        check_frozen("reference", scorer, self.engine)
        return scorer

    def capture(self) -> Snapshot:
        sums = {f"{side}.{name}": getattr(of_side, name) for side, of_side in self.reference.items() for name in ("chosen", "rejected")}
        return Snapshot({**self.engine.capture(), "reference": sums}, {"reference_key": self.key, "guards": self.guards.state()})

    def restore(self, checkpoint: Checkpoint) -> None:
        if (saved := checkpoint.state["reference_key"]) != self.key:
            raise CheckpointError(f"{checkpoint.path}: its reference log-probabilities are of {saved}, this run's are of {self.key}")
        self.engine.restore(checkpoint)
        self.guards.load_state(checkpoint.state["guards"])
        sums = checkpoint.load("reference")
        self.reference = {
            side: PairSums(sums[f"{side}.chosen"], sums[f"{side}.rejected"]) for side in self.pairs if f"{side}.chosen" in sums
        }


def train_dpo(job: Job, make_engine: MakeEngine) -> None:
    """Policy, reference and preferences in; policy out."""
    job.config.only(*CONFIG_KEYS)
    if job.config.flag("allow_early_stop", False):
        raise SpecError("config.allow_early_stop: DPO runs to its last step; a run that stops before it is not complete")
    tokenizer = load_tokenizer(job.input("policy"))
    encode = encoder(tokenizer)
    read = {side: pairs_of(job, side, encode) for side in SIDES}
    if not read["train"][0]:
        raise PairsError("there is no training pair: nothing can be learnt")
    told = {name: value for side in SIDES for name, value in read[side][1].metrics(side).items()}
    told |= warn_of_special_tokens(job, tokenizer, "preferences", texts_of(job.input("preferences"), "train"))
    model = load_causal_lm(job.input("policy"), job.config.text("attention", ("sdpa", "eager"), "sdpa"))
    lora = LoraSettings.of(job.config)
    if lora is not None:
        add_adapters(model, lora, job.seed)
    before = _answers(job, model, tokenizer, "before")
    engine = make_engine(AnswerScorer(model), EngineSettings.of(job.config))
    check_trained(engine)
    trainer = DpoTrainer(job, engine, {side: read[side][0] for side in SIDES}, pad_id_of(tokenizer))
    outcome = run_steps(job, trainer, job.config.positive("steps"))
    validated = trainer.look("validation", job.config.positive("eval_pairs", 64))
    engine.publish()
    distance = Distance.of(job, trainer.pairs["train"], trainer.reference["train"])
    _warn(job, distance, trainer.objective)
    after = _answers(job, model, tokenizer, "after")
    exported = export_policy(job, model, lora, "policy", {"reference": job.input_digest("reference")})
    dropped = {side: {"start": read[side][1].identical_at_start, "truncation": read[side][1].identical_after_truncation} for side in SIDES}
    summary = {"pairs_identical": dropped, "reference_log_probs": trainer.key, "reference_cache": trainer.cache.summary()}
    figures = {**outcome.metrics(), **told, **distance.metrics(), **validated, **before, **after, **exported}
    job.complete(figures, summary, outcome.stop_reason)


def _warn(job: Job, distance: Distance, objective: DpoObjective) -> None:
    if objective.has_reference_point and (said := unbalanced(objective.desirable_weight, objective.undesirable_weight)):
        job.warn(said)
    if distance.own_share < OWN_SHARE_WARNING:
        job.warn(
            f"off-policy pairs: the reference wrote a share of {distance.own_share:.2f} of the answers; "
            f"its negative log-probability a token is {distance.nll_per_token:.2f}. Collect pairs from this reference, or expect less"
        )
    if distance.far_share > FAR_SHARE_WARNING:
        job.warn(
            f"far pairs: to a share of {distance.far_share:.2f} of the answers the reference gives less than one in twenty a token; "
            "the policy learns to tell texts apart that it would not write"
        )
    if distance.other_tokenizer:
        job.warn(f"{distance.other_tokenizer} answers were written under another tokenizer or chat template; their texts were encoded anew")


def _answers(job: Job, model: Any, tokenizer: Any, when: str) -> dict[str, float]:
    """Greedy answers to validation prompts, as far as the run asks for them."""
    limit = job.config.integer("eval_rows", 0)
    if limit <= 0:
        return {}
    prompts = prompts_of(job.input("preferences"), "validation")[:limit]
    found = answer_check(
        model, tokenizer, prompts, job.config.positive("eval_max_new_tokens", 32), job.settings.positive("generation_batch", 64)
    )
    return {f"heldout_{name}_{when}": value for name, value in found.items()}
