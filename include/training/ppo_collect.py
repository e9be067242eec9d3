"""One iteration's rollouts: prompts → answers of the present actor → scores → records on disk, complete or not at all."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.domain.records import Prompt, Rollout
from include.runtime.chat import answer_text, eos_ids, prompt_ids
from include.runtime.generation import Sampling, generate_batch
from include.runtime.job import Job
from include.training.batching import rows_at
from include.training.errors import TrainingError
from include.training.ppo_batch import Sampled
from include.training.ppo_settings import PpoSettings
from include.training.precision import precision_context
from include.training.reward_scoring import Answer, RewardScorer, Scored
from include.training.rollouts import RolloutLog, Written, with_id


@dataclass(frozen=True)
class Collected:
    """One batch: answer, text and score of each prompt, in the same order."""

    sampled: Sequence[Sampled]
    texts: Sequence[str]
    scored: Sequence[Scored]

    @property
    def counted(self) -> list[bool]:
        return [not scored.missing for scored in self.scored]

    @property
    def missing(self) -> int:
        return sum(scored.missing for scored in self.scored)


class Collector:
    """Draws answers from the actor and scores them."""

    def __init__(self, job: Job, settings: PpoSettings, tokenizer: Any, scorer: RewardScorer, prompts: Sequence[Prompt]) -> None:
        self.job = job
        self.settings = settings
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.prompts = prompts
        self.encoded = [tuple(prompt_ids(tokenizer, p.messages, p.tools)) for p in prompts]
        self.log = RolloutLog(job.out.parent, job.attempt)
        self._rows = job.settings.positive("generation_batch", 64)

    def collect(self, step: int, actor: Any, updates: int) -> Collected:
        """The batch of iteration `step` (from 0) and its shard on disk. `actor` is the plain model, in eval mode.

        `updates`: optimiser steps behind the actor; its published version is the iteration it was made in.
        """
        rows = rows_at(step, self.settings.prompts_per_iteration, len(self.prompts), self.job.seed)
        seeds = [answer_seed(self.job.seed, step, index) for index in range(len(rows))]
        sampling = Sampling(self.settings.temperature, max_new_tokens=self.settings.max_new_tokens)
        with precision_context(self.settings.precision):
            generated = generate_batch(
                actor,
                [self.encoded[row] for row in rows],
                sampling,
                seeds,
                stop_ids=eos_ids(self.tokenizer),
                return_log_probs=True,
                max_rows=self._rows,
            )
            sampled = [
                Sampled(self.encoded[row], tuple(g.tokens), tuple(g.log_probs or ()), g.finish_reason)
                for row, g in zip(rows, generated, strict=True)
            ]
            texts = [answer_text(self.tokenizer, answer.tokens) for answer in sampled]
            scored = self.scorer.score(
                [
                    Answer(self.prompts[row], answer.sequence, len(answer.tokens), text)
                    for row, answer, text in zip(rows, sampled, texts, strict=True)
                ]
            )
        batch = Collected(sampled, texts, scored)
        self.log.write(step + 1, step, self._records(step, rows, batch, updates), self.settings.prompts_per_iteration)
        return batch

    def _records(self, step: int, rows: Sequence[int], batch: Collected, updates: int) -> list[Written]:
        actor = {"run_key": self.job.spec.key, "attempt": self.job.attempt, "published_version": step, "step": updates}
        if not updates:
            actor["digest"] = self.job.input_digest("policy")
        made = datetime.now(UTC).isoformat(timespec="milliseconds")
        rewards = tuple(self.job.input_digest(member.name) for member in self.scorer.members)
        written = []
        for index, (row, answer, text, scored) in enumerate(zip(rows, batch.sampled, batch.texts, batch.scored, strict=True)):
            rollout = Rollout(
                rollout_id="",
                prompt_id=self.prompts[row].prompt_id,
                actor_checkpoint=actor,
                reference_checkpoint=self.job.input_digest("reference"),
                reward_model_checkpoint=rewards,
                tokens=answer.tokens,
                token_log_probs=answer.log_probs,
                reward_components=scored.components,
                created_at=made,
            )
            written.append(Written(with_id(rollout, step + 1, index), answer.finish_reason, text, scored.missing))
        return written


def answer_seed(seed: int, step: int, index: int) -> int:
    """The seed of one answer: a function of the run's seed, the iteration and its place, and of nothing else."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{index}".encode()).digest()[:7], "big")


def check_lengths(prompts: Mapping[str, Sequence[int]], settings: PpoSettings) -> None:
    """Refuses prompts that leave no room for an answer within max_length."""
    for prompt_id, ids in prompts.items():
        if len(ids) + settings.max_new_tokens > settings.max_length:
            raise TrainingError(
                f"prompt {prompt_id} has {len(ids)} tokens: with {settings.max_new_tokens} of an answer it passes max_length {settings.max_length}"
            )


def batch_figures(batch: Collected, settings: PpoSettings) -> dict[str, float]:
    """What is watched of a batch before it is learnt from: scores, verifier, lengths, how much answers differ."""
    counted = [scored for scored in batch.scored if not scored.missing]
    lengths = [len(answer.tokens) for answer in batch.sampled]
    decided = [scored.verified for scored in batch.scored if scored.verified is not None]
    in_form = [scored.in_form for scored in batch.scored if scored.in_form is not None]
    figures = {
        "score": _mean([scored.score for scored in counted]),
        "model_reward": _mean([scored.model for scored in counted if math.isfinite(scored.model)]),
        "missing_rewards": float(batch.missing),
        "answer_tokens": _mean(lengths),
        "cut_share": _mean([answer.finish_reason == "length" for answer in batch.sampled]),
        "distinct_share": len(set(batch.texts)) / len(batch.texts),
    }
    if decided:
        figures["verified_share"] = _mean(decided)
    if in_form:
        figures["form_share"] = _mean(in_form)
    return figures


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
