"""Supervised fine-tuning on demonstrations, whatever the engine: all weights, or low-rank adapters.

The loss is the mean negative log-probability of the learned tokens of the whole global batch: it does not depend on how
the batch is cut into micro-batches or packed into rows, and a long answer weighs by its tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from include.domain.outcomes import StopReason
from include.runtime.chat import Encoded
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.errors import GuardTripped
from include.runtime.job import Job
from include.training.engines.engine import ENGINE_KEYS, Engine, EngineSettings, MakeEngine, MicroBatch
from include.training.errors import TrainingError
from include.training.examples.batching import Batch, collate, collate_packed, micro_batches, packed_bins, pad_id_of
from include.training.examples.example_order import OWN, ExampleOrder, Part, mixture_parts
from include.training.examples.heldout import answer_check, validation_loss
from include.training.examples.scratch import clears_scratch
from include.training.examples.tokenise import DemonstrationRows, JoinedRows, joined_rows, preflight_all
from include.training.learning_guards import LearningGuards, LearningLimits
from include.training.loop import StepResult, run_steps
from include.training.lora import LoraSettings, add_adapters
from include.training.model_checks import check_trained
from include.training.model_io import load_causal_lm, load_tokenizer
from include.training.policy_export import export_policy
from include.training.schedule import ScheduleSettings, learning_rate_at
from include.training.scoring import AnswerScorer
from include.training.validation import BestState, LookSettings

CONFIG_KEYS = (
    *("steps", "global_batch", "warmup_steps", "schedule", "max_length", "eval_rows", "eval_max_new_tokens"),
    *("learned_turns", "packing", "length_window", "mixture", "early_stop", "guards", "lora"),
    *ENGINE_KEYS,
)


class SftTrainer:
    """One update a step; the order of examples is a function of the step."""

    def __init__(self, job: Job, engine: Engine, rows: JoinedRows) -> None:
        config = job.config
        self.engine = engine
        self.rows = rows
        self.steps = config.positive("steps")
        self.global_batch = config.positive("global_batch")
        self.micro_batch = job.settings.positive("micro_batch", self.global_batch)
        self.max_length = config.positive("max_length")
        self.packing = config.flag("packing", False)
        self.length_window = config.integer("length_window", 0)
        self.order = example_order(job, rows)
        self.schedule = ScheduleSettings.of(config, self.steps)
        self.dataset = rows.identity(job)
        self.guards = LearningGuards(LearningLimits.of(config))
        self.best = best_state(job)
        self.keeps_best = job.settings.integer("keep_best", 0) > 0

    def train_step(self, step: int) -> StepResult:
        self.engine.train()
        chosen = self._examples(step)
        items = [self.rows[i] for i in self.engine.data.share(chosen)]
        learned = int(self.engine.data.total(sum(item.trained_tokens for item in items))[0])
        if learned == 0:
            raise GuardTripped("all_labels_masked", f"step {step + 1}: rows {chosen} hold no token to learn from")
        found = self.engine.learn(self._micro_batches(items, learned))
        rate = learning_rate_at(step, self.schedule)
        norm = self.engine.step(rate)
        loss, seen = self.engine.data.total(found["loss"], found["tokens"])
        figures = {"loss": loss, "grad_norm": norm, "learning_rate": rate, "learned_tokens": float(learned)}
        self.guards.check(step + 1, figures)
        return self._looked(step + 1, figures, int(seen))

    def _micro_batches(self, items: Sequence[Encoded], learned: int) -> Iterator[MicroBatch]:
        """`learned`: tokens that are learned in the whole step; the loss is their mean."""
        for batch, weight in self._equally_many(self._batches(items)):
            if len(batch.targets) or self.engine.data.count > 1:
                yield MicroBatch(batch.inputs, partial(_measured, batch.tokens, weight, learned))

    def _equally_many(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, float]]:
        """Each with weight 1; a rank that has fewer repeats its last one with weight 0, as all must call the engine equally often."""
        if self.engine.data.count == 1:
            yield from ((batch, 1.0) for batch in batches)
            return
        own = list(batches)
        missing = int(self.engine.data.most(len(own))[0]) - len(own)
        yield from ((batch, 1.0) for batch in own)
        yield from ((own[-1], 0.0) for _ in range(missing))

    def _examples(self, step: int) -> list[int]:
        if not self.length_window:
            return self.order.of_step(step)
        return self.order.of_step_by_length(step, self.length_window, lambda example: len(self.rows[example]))

    def _batches(self, items: Sequence[Encoded]) -> Iterator[Batch]:
        """A micro-batch counts rows of the tensor: dialogues, or packed rows of them."""
        pad_id = pad_id_of(self.rows.tokenizer)
        if not self.packing:
            yield from (collate(part, pad_id).to(self.engine.device) for part in micro_batches(items, self.micro_batch))
            return
        for part in micro_batches(packed_bins(items, self.max_length), self.micro_batch):
            yield collate_packed(part, pad_id).to(self.engine.device)

    def _looked(self, step: int, figures: dict[str, float], tokens: int) -> StepResult:
        """With a look at validation rows where one is due, and an end where they have not got better for long enough."""
        if self.best is None or not self.best.due(step, self.steps):
            return StepResult(figures, tokens)
        self.best.look(step, self.engine.module, self.engine.weights)
        seen = {**figures, "validation_loss": self.best.last, "best_step": float(self.best.step)}
        stop = StopReason.EARLY_STOP if self.best.done and step < self.steps else None
        return StepResult(seen, tokens, stop, keep=self.keeps_best and self.best.step == step)

    def capture(self) -> Snapshot:
        state = {"dataset": self.dataset, "rows": len(self.rows), "guards": self.guards.state()}
        groups = self.engine.capture()
        if self.best is not None:
            state["best"] = self.best.state()
            groups = {**groups, **({"best": self.best.weights} if self.best.weights else {})}
        return Snapshot(groups, state)

    def restore(self, checkpoint: Checkpoint) -> None:
        saved = (checkpoint.state["dataset"], checkpoint.state["rows"])
        if saved != (self.dataset, len(self.rows)):
            raise TrainingError(
                f"{checkpoint.path} was made on {saved}, this run reads {(self.dataset, len(self.rows))}: its position means nothing"
            )
        self.engine.restore(checkpoint)
        self.guards.load_state(checkpoint.state["guards"])
        if self.best is not None:
            self.best.load_state(checkpoint.state["best"], checkpoint.load("best") if "best" in checkpoint.groups else {})


def _measured(tokens: int, weight: float, learned: int, log_probs: torch.Tensor) -> tuple[torch.Tensor, Mapping[str, float]]:
    """Loss and figures of a micro-batch."""
    share = -log_probs.sum() / learned
    return share if weight else share * weight, {"loss": weight * float(share.detach()), "tokens": int(weight) * tokens}


def example_order(job: Job, rows: JoinedRows) -> ExampleOrder:
    """The order that the configuration asks for."""
    steps, batch = job.config.positive("steps"), job.config.positive("global_batch")
    if "mixture" not in job.config:
        return ExampleOrder([Part(OWN, len(rows))], steps, batch, job.seed)
    parts, mixture_seed = mixture_parts(job.config, {name: len(part) for name, part in rows.parts.items()})
    by_name = {part.name: part for part in parts}
    return ExampleOrder([by_name[name] for name in rows.parts], steps, batch, job.seed, mixture_seed)


def best_state(job: Job) -> BestState | None:
    """What follows the validation loss; None where the run does not ask for an early stop."""
    settings = LookSettings.of(job.config)
    if settings is None:
        return None
    rows = DemonstrationRows(job, OWN, "validation", load_tokenizer(job.input("base")))
    if len(rows) == 0:
        raise TrainingError(f"{rows.folder} has no validation row: an early stop would have nothing to go by")
    limit = job.config.integer("eval_rows", 0) or len(rows)
    micro_batch = job.settings.positive("micro_batch", 8)
    return BestState(settings, lambda module: validation_loss(module, rows, limit, micro_batch))


@clears_scratch
def train_sft(job: Job, make_engine: MakeEngine) -> None:
    """Base and demonstrations in, policy out; with LoRA the adapter too."""
    job.config.only(*CONFIG_KEYS)
    tokenizer = load_tokenizer(job.input("base"))
    rows = joined_rows(job, tokenizer)
    seen = preflight_all(job, rows)
    model = load_causal_lm(job.input("base"), job.config.text("attention", ("sdpa", "eager"), "sdpa"))
    lora = LoraSettings.of(job.config)
    if lora is not None:
        add_adapters(model, lora, job.seed)
    scorer = AnswerScorer(model)
    before = _loss(job, scorer, tokenizer, "before") | _answers(job, model, tokenizer, "before")
    engine = make_engine(scorer, EngineSettings.of(job.config))
    check_trained(engine)
    trainer = SftTrainer(job, engine, rows)
    outcome = run_steps(job, trainer, trainer.steps)
    if trainer.best is not None and trainer.best.step:
        engine.use(trainer.best.weights)
    after = _loss(job, engine.module, tokenizer, "after")
    engine.publish()
    chosen = _told_of_best(job, trainer.best)
    after |= _answers(job, model, tokenizer, "after")
    exported = export_policy(job, model, lora, "base")
    figures = {**outcome.metrics(), **seen, **trainer.order.shares(), **before, **after, **chosen, **exported}
    job.complete(figures, stop_reason=outcome.stop_reason)


def _told_of_best(job: Job, best: BestState | None) -> dict[str, float]:
    """Of the state with the smallest validation loss, which is handed on where one was looked for; warns of rows learned by heart."""
    if best is None or not best.step:
        return {}
    if best.overfit:
        job.warn(
            f"over-fitting: the validation loss is {best.last:.4g} at the end, {best.loss:.4g} after step {best.step}, which is handed on"
        )
    return {"best_step": float(best.step), "validation_loss_best": best.loss, "validation_loss_end": best.last}


def _validation_rows(job: Job, tokenizer: Any) -> DemonstrationRows | None:
    """None where the run asks for no look at them, or there are none."""
    if job.config.integer("eval_rows", 0) <= 0:
        return None
    rows = DemonstrationRows(job, OWN, "validation", tokenizer)
    return rows if len(rows) else None


def _loss(job: Job, scorer: Any, tokenizer: Any, when: str) -> dict[str, float]:
    """Validation loss, as far as the run asks for it, of a whole model or, by all ranks, of one that is cut; chance is left as it was."""
    rows = _validation_rows(job, tokenizer)
    if rows is None:
        return {}
    state = torch.get_rng_state()
    loss = validation_loss(scorer, rows, job.config.integer("eval_rows", 0), job.settings.positive("micro_batch", 8))
    torch.set_rng_state(state)
    return {} if loss is None else {f"heldout_loss_{when}": loss}


def _answers(job: Job, model: Any, tokenizer: Any, when: str) -> dict[str, float]:
    """Free answers of a whole model to validation prompts, as far as the run asks for them; chance is left as it was."""
    limit = job.config.integer("eval_rows", 0)
    rows = _validation_rows(job, tokenizer)
    if rows is None:
        if limit > 0:
            job.warn(f"no look at validation rows ({when}): there are none")
        return {}
    state = torch.get_rng_state()
    prompts = [rows.record(i).prompt for i in range(min(limit, len(rows)))]
    size = job.settings.positive("generation_batch", 64)
    found = answer_check(model, tokenizer, prompts, job.config.positive("eval_max_new_tokens", 32), size)
    torch.set_rng_state(state)
    return {f"heldout_{name}_{when}": value for name, value in found.items()}
