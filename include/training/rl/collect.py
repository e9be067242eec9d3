"""One iteration's rollouts: prompts → answers of the present actor → scores → records on disk, complete or not at all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.domain.records import Prompt, Rollout
from include.runtime.chat import answer_text, prompt_ids
from include.runtime.job import Job
from include.runtime.ranks import first_did
from include.training.engines.precision import precision_context
from include.training.errors import TrainingError
from include.training.model_io import compute_device
from include.training.rl.batch import Sampled
from include.training.rl.draw import Drawn
from include.training.rl.rewards import Answer, RewardScorer, Scored
from include.training.rl.rollouts import RolloutLog, Written, with_id
from include.training.rl.settings import PpoSettings


@dataclass(frozen=True)
class Collected:
    """One batch: answer, text and score of each prompt, in the same order."""

    sampled: Sequence[Sampled]
    texts: Sequence[str]
    scored: Sequence[Scored]
    lags: Sequence[int]
    step: int
    """The version of the trainer that uses it."""

    @property
    def counted(self) -> list[bool]:
        return [not scored.missing for scored in self.scored]

    @property
    def missing(self) -> int:
        return sum(scored.missing for scored in self.scored)


class Collector:
    """Has answers drawn, scores them, and writes them down."""

    def __init__(
        self, job: Job, settings: PpoSettings, tokenizer: Any, scorer: RewardScorer, encoded: Mapping[str, tuple[Prompt, Sequence[int]]]
    ) -> None:
        """`encoded`: prompts and their tokens, by prompt_id, in their order."""
        self.job = job
        self.settings = settings
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.prompts = [prompt for prompt, _ in encoded.values()]
        self.log = RolloutLog(job.out.parent, job.attempt)

    def collect(self, step: int, drawn: Drawn) -> Collected:
        """The batch of iteration `step` (from 0), the same on every rank, and its shard on disk, which the first rank writes."""
        texts = [answer_text(self.tokenizer, answer.tokens) for answer in drawn.answers]
        with precision_context(self.settings.precision, compute_device().type):
            scored = self.scorer.score(
                [
                    Answer(self.prompts[row], answer.sequence, len(answer.tokens), text)
                    for row, answer, text in zip(drawn.rows, drawn.answers, texts, strict=True)
                ],
                self.job.ranks,
            )
        batch = Collected(drawn.answers, texts, scored, [step - version for version in drawn.versions], step)

        def written() -> list[Any]:
            self.log.write(step + 1, step, self._records(step, drawn, batch), self.settings.prompts_per_iteration)
            return []

        first_did(self.job.ranks, written)
        return batch

    def _records(self, step: int, drawn: Drawn, batch: Collected) -> list[Written]:
        made = datetime.now(UTC).isoformat(timespec="milliseconds")
        rewards = tuple(self.job.input_digest(member.name) for member in self.scorer.members)
        written = []
        for index, (row, answer, text, scored) in enumerate(zip(drawn.rows, batch.sampled, batch.texts, batch.scored, strict=True)):
            rollout = Rollout(
                rollout_id="",
                prompt_id=self.prompts[row].prompt_id,
                actor_checkpoint=self._actor(drawn, index),
                reference_checkpoint=self.job.input_digest("reference"),
                reward_model_checkpoint=rewards,
                tokens=answer.tokens,
                token_log_probs=answer.log_probs,
                reward_components=scored.components,
                created_at=made,
            )
            written.append(Written(with_id(rollout, step + 1, index), answer.finish_reason, text, scored.missing))
        return written

    def _actor(self, drawn: Drawn, index: int) -> dict[str, Any]:
        """Which actor wrote an answer: its published version (the iterations behind it), its optimiser steps, and a digest: the policy
        artifact's of the very first one; else that of the published file, where a generator draws, or of the trainer's weights."""
        version, updates = drawn.versions[index], drawn.updates[index]
        actor = {"run_key": self.job.spec.key, "attempt": self.job.attempt, "published_version": version, "step": updates}
        digest = drawn.digests.get(version) if updates else self.job.input_digest("policy")
        return {**actor, "digest": digest} if digest else actor


def encode_prompts(tokenizer: Any, prompts: Sequence[Prompt]) -> dict[str, tuple[Prompt, tuple[int, ...]]]:
    """prompt_id → prompt and its tokens, in the order given."""
    return {p.prompt_id: (p, tuple(prompt_ids(tokenizer, p.messages, p.tools))) for p in prompts}


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
        "policy_lag": _mean(batch.lags),
        "policy_lag_max": float(max(batch.lags)),
    }
    if decided:
        figures["verified_share"] = _mean(decided)
    if in_form:
        figures["form_share"] = _mean(in_form)
    return figures


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
