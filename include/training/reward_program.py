"""A reward model from preference pairs, whatever the engine.

Bradley-Terry with both sides of a pair in one forward. It stops early on the accuracy of validation pairs, never on the
training loss; what is handed on is the best state seen there. Hold-out pairs are read once, when everything is decided.
"""

from collections.abc import Sequence

import torch

from include.domain.outcomes import StopReason
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.job import Job
from include.runtime.reward_stats import CLIP, EPSILON, RewardNormaliser, RunningStats
from include.training.batching import micro_batches, rows_at
from include.training.engine import ENGINE_KEYS, Engine, EngineSettings, MakeEngine
from include.training.errors import TrainingError
from include.training.loop import StepResult, run_steps
from include.training.losses import bradley_terry
from include.training.model_io import load_tokenizer
from include.training.pair_measurements import PairScores, validation_accuracy, write_measurements
from include.training.pair_tokens import by_length, lay_out
from include.training.reward_head import SequenceScores, new_reward_model, save_reward_model
from include.training.schedule import ScheduleSettings, learning_rate_at
from include.training.token_pairs import PairCounts, PairsError, TokenPair, encoder, pairs_of

CONFIG_KEYS = (
    *(
        "steps",
        "global_batch",
        "warmup_steps",
        "schedule",
        "max_length",
        "clip",
        "epsilon",
        "early_stop",
        "eval_pairs",
        "max_identical_share",
    ),
    *ENGINE_KEYS,
)
OVERFIT_ACCURACY = 0.80


class RewardTrainer:
    """One update a step, a look at validation pairs every few; the best state seen there travels along."""

    def __init__(self, job: Job, engine: Engine, train: Sequence[TokenPair], validation: Sequence[TokenPair]) -> None:
        early = job.config.section("early_stop", {})
        early.only("every_steps", "patience")
        self.engine = engine
        self.train_pairs = train
        self.validation_pairs = validation[: job.config.positive("eval_pairs", 64)]
        self.seed = job.seed
        self.total = job.config.positive("steps")
        self.global_batch = job.config.positive("global_batch")
        self.micro_batch = job.settings.positive("micro_batch", self.global_batch)
        self.schedule = ScheduleSettings.of(job.config, self.total)
        self.every_steps = early.positive("every_steps", 10)
        self.patience = early.positive("patience", 3)
        self.dataset = job.input_digest("preferences")
        self.best: dict[str, torch.Tensor] = {}
        self.best_step, self.best_seen, self.looks_since = 0, (-1.0, 0.0), 0

    def train_step(self, step: int) -> StepResult:
        self.engine.train()
        chosen = rows_at(step, self.global_batch, len(self.train_pairs), self.seed)
        pairs = [self.train_pairs[i] for i in chosen]
        weight = sum(pair.weight for pair in pairs)
        loss, right, margin, tokens = 0.0, 0.0, 0.0, 0
        for part in micro_batches([pairs[i] for i in by_length(pairs)], self.micro_batch):
            chosen_P, rejected_P = self._scores(part)
            weights_P = torch.tensor([pair.weight for pair in part], device=chosen_P.device)
            share = (bradley_terry(chosen_P, rejected_P) * weights_P).sum() / weight
            self.engine.backward(share)
            loss += float(share.detach())
            right += float((chosen_P > rejected_P).sum()) / len(pairs)
            margin += float((chosen_P - rejected_P).detach().sum()) / len(pairs)
            tokens += sum(len(pair.chosen) + len(pair.rejected) for pair in part)
        rate = learning_rate_at(step, self.schedule)
        norm = self.engine.step(rate)
        metrics = {"loss": loss, "accuracy": right, "margin": margin, "grad_norm": norm, "learning_rate": rate}
        if (step + 1) % self.every_steps and step + 1 < self.total:
            return StepResult(metrics, tokens)
        metrics |= self._look(step + 1)
        return StepResult(metrics, tokens, StopReason.EARLY_STOP if self._done(step + 1) else None)

    def _scores(self, pairs: Sequence[TokenPair]) -> tuple[torch.Tensor, torch.Tensor]:
        """Chosen and rejected scores out of one forward; where a side stands in it means nothing."""
        laid = lay_out(pairs, 0, self.engine.module.model).to(self.engine.device)
        scores = self.engine(laid.input_ids, laid.attention_mask, laid.end_rows, laid.end_columns, laid.position_ids)
        return scores[: len(pairs)], scores[len(pairs) :]

    @torch.no_grad()
    def score(self, pairs: Sequence[TokenPair]) -> PairScores:
        """Raw scores of pairs under the present weights, without gradients."""
        self.engine.eval()
        chosen, rejected = [0.0] * len(pairs), [0.0] * len(pairs)
        for part in micro_batches(by_length(pairs), self.micro_batch):
            scored = self._scores([pairs[i] for i in part])
            for index, good, bad in zip(part, scored[0].tolist(), scored[1].tolist(), strict=True):
                chosen[index], rejected[index] = good, bad
        return PairScores(chosen, rejected)

    def _look(self, step: int) -> dict[str, float]:
        seen = validation_accuracy(self.score(self.validation_pairs))
        if (seen["accuracy"], -seen["loss"]) > self.best_seen:
            self.best_step, self.best_seen, self.looks_since = step, (seen["accuracy"], -seen["loss"]), 0
            self.best = {name: value.detach().clone() for name, value in self.engine.module.named_parameters()}
        else:
            self.looks_since += 1
        return {f"validation_{name}": value for name, value in seen.items()} | {"best_step": float(self.best_step)}

    def _done(self, step: int) -> bool:
        return self.looks_since >= self.patience and step < self.total

    def use_best(self) -> None:
        """Puts the best state's weights in place of the last one's."""
        if not self.best:
            raise TrainingError("no look at the validation pairs was taken: there is no best state")
        own = dict(self.engine.module.named_parameters())
        with torch.no_grad():
            for name, value in self.best.items():
                own[name].copy_(value)

    def capture(self) -> Snapshot:
        state = {"best_step": self.best_step, "best_seen": list(self.best_seen), "looks_since": self.looks_since}
        groups = {**self.engine.capture(), **({"best": self.best} if self.best else {})}
        return Snapshot(groups, {**state, "dataset": self.dataset, "rows": len(self.train_pairs)})

    def restore(self, checkpoint: Checkpoint) -> None:
        saved = (checkpoint.state["dataset"], checkpoint.state["rows"])
        if saved != (self.dataset, len(self.train_pairs)):
            raise TrainingError(
                f"{checkpoint.path} was made on {saved}, this run reads {(self.dataset, len(self.train_pairs))}: its position means nothing"
            )
        self.engine.restore(checkpoint)
        self.best_step, self.looks_since = checkpoint.state["best_step"], checkpoint.state["looks_since"]
        self.best_seen = (checkpoint.state["best_seen"][0], checkpoint.state["best_seen"][1])
        self.best = checkpoint.load("best") if "best" in checkpoint.groups else {}


def train_reward_model(job: Job, make_engine: MakeEngine) -> None:
    """Base and preferences in; a scorer and its measurements on hold-out pairs out."""
    job.config.only(*CONFIG_KEYS)
    base = job.input("base")
    encode = encoder(load_tokenizer(base))
    train, train_counts = pairs_of(job, "train", encode)
    validation, validation_counts = pairs_of(job, "validation", encode)
    if not train or not validation:
        raise PairsError(f"{len(train)} training and {len(validation)} validation pairs: both are needed, as the run stops on the latter")
    model = new_reward_model(base, job.seed, job.config.text("attention", ("sdpa", "eager"), "sdpa"))
    engine = make_engine(SequenceScores(model), EngineSettings.of(job.config))
    trainer = RewardTrainer(job, engine, train, validation)
    outcome = run_steps(job, trainer, trainer.total)
    trainer.use_best()
    normaliser, validated = _normaliser(job, trainer, validation)
    with job.output("reward_model", "reward_model", {"stage": job.stage, "key": job.spec.key, "best_step": trainer.best_step}) as folder:
        save_reward_model(model, base, folder, normaliser)
    holdout, holdout_counts = pairs_of(job, "holdout", encode)
    held = trainer.score(holdout) if holdout else PairScores([], [])
    with job.output("measurements", "report", {"stage": job.stage}) as folder:
        measured = write_measurements(job, folder, holdout, held, normaliser)
    counts = {"train": train_counts, "validation": validation_counts, "holdout": holdout_counts}
    summary = _summary(job, trainer, counts, validated["accuracy"], measured)
    figures = {f"validation_{name}": value for name, value in validated.items()} | {
        f"holdout_{name}": value for name, value in measured.items()
    }
    told = {name: value for side, of_side in counts.items() for name, value in of_side.metrics(side).items()}
    job.complete({**outcome.metrics(), **told, **figures, "best_step": float(trainer.best_step)}, summary, outcome.stop_reason)


def _normaliser(job: Job, trainer: RewardTrainer, validation: Sequence[TokenPair]) -> tuple[RewardNormaliser, dict[str, float]]:
    """From the raw scores of all validation answers, by the weights that are handed on."""
    scores = trainer.score(validation)
    stats = RunningStats.of([*scores.chosen, *scores.rejected])
    if not stats.std > 0:
        raise TrainingError(f"all {stats.count} validation answers have the score {stats.mean}: this model tells nothing apart")
    normaliser = RewardNormaliser(stats, job.config.number("epsilon", EPSILON), job.config.number("clip", CLIP))
    return normaliser, validation_accuracy(scores)


def _summary(
    job: Job, trainer: RewardTrainer, counts: dict[str, PairCounts], validated: float, measured: dict[str, float]
) -> dict[str, object]:
    highest = max(validated, measured.get("accuracy", 0.0))
    overfit = highest > OVERFIT_ACCURACY
    if overfit:
        job.warn(
            f"pair accuracy {highest:.2f} is above {OVERFIT_ACCURACY:.2f}: a sign of over-fitting; see that the policy's answers do not turn odd"
        )
    dropped = {
        side: {"identical_at_start": c.identical_at_start, "identical_after_truncation": c.identical_after_truncation}
        for side, c in counts.items()
    }
    return {"best_step": trainer.best_step, "overfit_warning": overfit, "pairs_dropped": dropped}
