"""Supervised fine-tuning on demonstrations, whatever the engine.

The loss is the mean negative log-probability of the learned tokens of the whole global batch: it does not depend on how
the batch is cut into micro-batches, and a long answer weighs by its tokens.
"""

from collections.abc import Mapping
from typing import Any

import torch

from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.errors import GuardTripped
from include.runtime.job import Job
from include.training.batching import collate, micro_batches, pad_id_of, rows_at
from include.training.engine import ENGINE_KEYS, Engine, EngineSettings, MakeEngine
from include.training.errors import TrainingError
from include.training.heldout import answer_check, validation_loss
from include.training.loop import StepResult, run_steps
from include.training.model_io import load_causal_lm, load_tokenizer, save_model
from include.training.schedule import ScheduleSettings, learning_rate_at
from include.training.scoring import AnswerScorer
from include.training.tokenise import DemonstrationRows, preflight

CONFIG_KEYS = ("steps", "global_batch", "warmup_steps", "schedule", "max_length", "eval_rows", "eval_max_new_tokens", *ENGINE_KEYS)


class SftTrainer:
    """One update a step; all its state is in the engine, the order of rows is a function of the step."""

    def __init__(self, job: Job, engine: Engine, rows: DemonstrationRows) -> None:
        self.engine = engine
        self.rows = rows
        self.seed = job.seed
        self.global_batch = job.config.positive("global_batch")
        self.micro_batch = job.settings.positive("micro_batch", self.global_batch)
        self.schedule = ScheduleSettings.of(job.config, job.config.positive("steps"))
        self.dataset = job.input_digest("demonstrations")

    def train_step(self, step: int) -> StepResult:
        self.engine.train()
        chosen = rows_at(step, self.global_batch, len(self.rows), self.seed)
        items = [self.rows[i] for i in chosen]
        learned = sum(item.trained_tokens for item in items)
        if learned == 0:
            raise GuardTripped("all_labels_masked", f"step {step + 1}: rows {chosen} hold no token to learn from")
        loss, tokens = 0.0, 0
        for part in micro_batches(items, self.micro_batch):
            batch = collate(part, pad_id_of(self.rows.tokenizer)).to(self.engine.device)
            if len(batch.targets) == 0:
                continue
            log_probs = self.engine(batch.input_ids, batch.attention_mask, batch.rows, batch.columns, batch.targets)
            share = -log_probs.sum() / learned
            self.engine.backward(share)
            loss, tokens = loss + float(share.detach()), tokens + batch.tokens
        rate = learning_rate_at(step, self.schedule)
        norm = self.engine.step(rate)
        return StepResult({"loss": loss, "grad_norm": norm, "learning_rate": rate, "learned_tokens": float(learned)}, tokens)

    def capture(self) -> Snapshot:
        return Snapshot(self.engine.capture(), {"dataset": self.dataset, "rows": len(self.rows)})

    def restore(self, checkpoint: Checkpoint) -> None:
        saved = (checkpoint.state["dataset"], checkpoint.state["rows"])
        if saved != (self.dataset, len(self.rows)):
            raise TrainingError(
                f"{checkpoint.path} was made on {saved}, this run reads {(self.dataset, len(self.rows))}: its position means nothing"
            )
        self.engine.restore(checkpoint)


def train_sft(job: Job, make_engine: MakeEngine) -> None:
    """Base and demonstrations in, policy out."""
    job.config.only(*CONFIG_KEYS)
    tokenizer = load_tokenizer(job.input("base"))
    rows = DemonstrationRows(job.input("demonstrations"), "train", tokenizer, job.config.positive("max_length"))
    seen = preflight(rows)
    if seen.special_in_text:
        job.warn(f"{seen.special_in_text} of {seen.rows} rows spell out a special token in their text")
    model = load_causal_lm(job.input("base"), job.config.text("attention", ("sdpa", "eager"), "sdpa"))
    scorer = AnswerScorer(model)
    before = _look(job, model, scorer, tokenizer, "before")
    engine = make_engine(scorer, EngineSettings.of(job.config))
    outcome = run_steps(job, SftTrainer(job, engine, rows), job.config.positive("steps"))
    after = _look(job, model, scorer, tokenizer, "after")
    with job.output("policy", "model", {"stage": job.stage, "key": job.spec.key}) as folder:
        save_model(model, job.input("base"), folder)
    job.complete({**outcome.metrics(), **seen.metrics(), **before, **after}, stop_reason=outcome.stop_reason)


def _look(job: Job, model: Any, scorer: AnswerScorer, tokenizer: Any, when: str) -> Mapping[str, float]:
    """Validation loss and free answers, as far as the run asks for them; chance is left as it was."""
    limit = job.config.integer("eval_rows", 0)
    if limit <= 0:
        return {}
    rows = DemonstrationRows(job.input("demonstrations"), "validation", tokenizer, job.config.positive("max_length"))
    if len(rows) == 0:
        job.warn(f"no look at validation rows ({when}): {rows.folder} has none")
        return {}
    size = job.settings.positive("generation_batch", 64)
    state = torch.get_rng_state()
    loss = validation_loss(scorer, rows, limit, job.settings.positive("micro_batch", 8))
    prompts = [rows.record(i).prompt for i in range(min(limit, len(rows)))]
    found = answer_check(model, tokenizer, prompts, job.config.positive("eval_max_new_tokens", 32), size)
    torch.set_rng_state(state)
    figures = {f"heldout_{name}_{when}": value for name, value in found.items()}
    return figures if loss is None else {f"heldout_loss_{when}": loss, **figures}
