"""Supervised fine-tuning by TRL's trainer under this project's contract: ``python -m include.training.foreign.trl_sft --spec …``.

It shows that a stage is replaceable: what reads spec.json and placement.json, writes below its attempt and ends with
report.json can be any trainer. Rows, order, schedule, checkpoints, tokenizer checks and the exported folder are ours, the
loop, the loss and the update are TRL's. It needs an environment that holds TRL beside what our programs need.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.errors import GuardTripped
from include.runtime.job import Job
from include.runtime.program import run_program
from include.training.engines.engine import ENGINE_KEYS, EngineSettings
from include.training.engines.optimizer_state import capture_state, restore_state
from include.training.errors import TrainingError
from include.training.examples.batching import rows_at
from include.training.examples.scratch import clears_scratch
from include.training.examples.tokenise import JoinedRows, joined_rows, preflight_all
from include.training.learning_guards import LearningGuards, LearningLimits
from include.training.loop import LoopOutcome
from include.training.model_io import load_causal_lm, load_tokenizer
from include.training.policy_export import export_policy
from include.training.schedule import ScheduleSettings, learning_rate_at

CONFIG_KEYS = (
    *("trainer", "steps", "global_batch", "warmup_steps", "schedule", "max_length", "learned_turns", "guards"),
    *("eval_rows", "eval_max_new_tokens"),
    *ENGINE_KEYS,
)


class InOrder(SFTTrainer):
    """TRL's trainer on rows that already lie in the order in which they are to be learned."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)


class Followed(TrainerCallback):
    """After each update: figures, guards, a checkpoint where one is due, and an end where one is asked for."""

    def __init__(self, job: Job, run: "ForeignRun", model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.job, self.run, self.model, self.optimizer = job, run, model, optimizer
        self.started = time.monotonic()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.monotonic()

    def on_log(self, _arguments: Any, state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        step, outcome = self.run.first + int(state.global_step), self.run.outcome
        outcome.train_seconds += time.monotonic() - self.started
        self.job.train_seconds = outcome.train_seconds
        figures = {name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate")}
        if not all(abs(value) < float("inf") for value in figures.values()):
            raise GuardTripped("non_finite_loss", f"step {step}: {figures}")
        self.run.guards.check(step, figures)
        tokens = self.run.tokens_of(step - 1)
        outcome.last_step, outcome.last, outcome.tokens = step, figures, outcome.tokens + tokens
        self.job.record(step, figures, tokens)
        wishes = self.job.wishes(step)
        if step == self.run.total or wishes.save:
            self._save(step)
        self.job.obey(wishes)

    def _save(self, step: int) -> None:
        started = time.monotonic()
        state_now = {"dataset": self.run.dataset, "guards": self.run.guards.state()}
        snapshot = Snapshot(capture_state(self.model, self.optimizer), state_now)
        self.job.saver.cost.stall_s += time.monotonic() - started
        self.job.save(step, snapshot)
        self.run.outcome.save_seconds += time.monotonic() - started


class ForeignRun:
    """The rows that are left of a run, in order, and what goes on between attempts."""

    def __init__(self, job: Job, rows: JoinedRows) -> None:
        self.rows, self.seed = rows, job.seed
        self.total, self.batch = job.config.positive("steps"), job.config.positive("global_batch")
        self.micro = min(job.settings.positive("micro_batch", self.batch), self.batch)
        if self.batch % self.micro:
            raise TrainingError(f"global_batch {self.batch} must be a multiple of micro_batch {self.micro}: TRL accumulates whole batches")
        self.dataset = rows.identity(job)
        self.guards = LearningGuards(LearningLimits.of(job.config))
        self.first = 0
        self.outcome = LoopOutcome(0, 0)

    def go_on(self, checkpoint: Checkpoint, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if checkpoint.state["dataset"] != self.dataset:
            raise TrainingError(f"{checkpoint.path} was made on {checkpoint.state['dataset']}, this run reads {self.dataset}")
        restore_state(checkpoint, model, optimizer)
        self.guards.load_state(checkpoint.state["guards"])
        self.first = checkpoint.step
        self.outcome = LoopOutcome(self.first, self.first)

    def examples(self, step: int) -> list[int]:
        return rows_at(step, self.batch, len(self.rows), self.seed)

    def tokens_of(self, step: int) -> int:
        return sum(len(self.rows[i]) for i in self.examples(step))

    def left(self) -> Dataset:
        """Ids and labels of every update that is still to be made."""
        items = [self.rows[i] for step in range(self.first, self.total) for i in self.examples(step)]
        labels = [[token if learned else -100 for token, learned in zip(item.ids, item.loss_mask, strict=True)] for item in items]
        return Dataset.from_dict({"input_ids": [list(item.ids) for item in items], "labels": labels})


@clears_scratch
def train(job: Job) -> None:
    """Base and demonstrations in, policy out."""
    job.config.only(*CONFIG_KEYS)
    job.config.text("trainer", ("trl",))
    settings = EngineSettings.of(job.config)
    if settings.zero_stage or job.ranks.count > 1:
        raise TrainingError(
            f"{job.ranks.count} processes, zero_stage {settings.zero_stage}: this wrapper trains in one process; ask for one, and stage 0"
        )
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # seeing them, accelerate would wait for other processes
        os.environ.pop(name, None)
    tokenizer = load_tokenizer(job.input("base"))
    rows = joined_rows(job, tokenizer)
    seen = preflight_all(job, rows)
    model = load_causal_lm(job.input("base"), job.config.text("attention", ("sdpa", "eager"), "sdpa"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay)
    run = ForeignRun(job, rows)
    job.expect(run.total)
    checkpoint = job.resume()
    if checkpoint is not None:
        run.go_on(checkpoint, model, optimizer)
        job.restore_random(checkpoint)
    if run.first < run.total:
        _train_on(job, run, settings, model, optimizer, tokenizer)
    job.peaks.look(job.ranks)
    exported = export_policy(job, model, None, "base")
    job.complete({**run.outcome.metrics(), **seen, **exported})


def _train_on(job: Job, run: ForeignRun, settings: EngineSettings, model: Any, optimizer: torch.optim.Optimizer, tokenizer: Any) -> None:
    schedule = ScheduleSettings.of(job.config, run.total)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_at(run.first + step, schedule) / settings.learning_rate)
    arguments = SFTConfig(
        output_dir=str(job.out / "trl"),
        per_device_train_batch_size=run.micro,
        gradient_accumulation_steps=run.batch // run.micro,
        max_steps=run.total - run.first,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.precision == "bf16_autocast",
        use_cpu=not torch.cuda.is_available(),
        seed=job.seed,
        max_length=None,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        activation_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=run.left(),
        processing_class=tokenizer,
        optimizers=(optimizer, rates),
        callbacks=[Followed(job, run, model, optimizer)],
    )
    trainer.train()


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("sft", train, argv)


if __name__ == "__main__":
    raise SystemExit(main())
