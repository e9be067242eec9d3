"""A reward model from preference pairs, or an ensemble of several seeds, whatever the engine.

Bradley-Terry with both sides of a pair in one forward, and beside it, where `dimensions` are named, the scores that labels gave the
chosen answers (`reward.objective`). It stops early on the accuracy of validation pairs, never on the
training loss; what is handed on is the best state seen there. Hold-out pairs are checked before the first step and scored once, when
everything is decided.
Members of an ensemble that were trained as runs of their own are taken as they are, and only measured together.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from include.domain.errors import SpecError
from include.domain.outcomes import StopReason
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.job import Job
from include.runtime.parts import taken
from include.runtime.pieces import Owned
from include.runtime.reward_stats import CLIP, EPSILON, RewardNormaliser, RunningStats
from include.training.engines.engine import ENGINE_KEYS, Engine, EngineSettings, MakeEngine, MicroBatch
from include.training.errors import TrainingError
from include.training.examples.batching import micro_batches, rows_at
from include.training.examples.special import warn_of_special_tokens
from include.training.learning_guards import LearningGuards, LearningLimits
from include.training.loop import LoopOutcome, StepResult, run_steps
from include.training.model_checks import check_trained
from include.training.model_io import load_tokenizer
from include.training.pairs.rows import PairCounts, PairsError, TokenPair, encoder, pairs_of, texts_of
from include.training.pairs.tensors import PairTokens, by_length, lay_out
from include.training.reward.dimension_report import dimension_figures, dimension_report, held_dimensions
from include.training.reward.dimensions import DIMENSION_KEYS, Dimensions
from include.training.reward.ensemble import EnsembleTrainer, ensemble_seeds, member_name
from include.training.reward.head import SequenceScores, new_reward_model, save_reward_model
from include.training.reward.measurements import write_measurements
from include.training.reward.objective import WholeStep, by_label, measured
from include.training.reward.pair_scores import MemberScores, PairScores, validation_accuracy
from include.training.reward.report import holdout_figures, holdout_report, overfit, validation_figures
from include.training.reward.taken_members import TakenMembers, hand_on
from include.training.schedule import ScheduleSettings, learning_rate_at

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
        "seeds",
        "guards",
    ),
    *DIMENSION_KEYS,
    *ENGINE_KEYS,
)


class RewardTrainer:
    """One update a step, a look at validation pairs every few; the best state seen there travels along."""

    def __init__(
        self, job: Job, engine: Engine, train: Sequence[TokenPair], validation: Sequence[TokenPair], seed: int, dimensions: Dimensions
    ) -> None:
        early = job.config.section("early_stop", {})
        early.only("every_steps", "patience")
        self.engine = engine
        self.train_pairs = train
        self.validation_pairs = validation[: job.config.positive("eval_pairs", 64)]
        self.seed = seed
        self.dimensions = dimensions
        self.total = job.config.positive("steps")
        self.global_batch = job.config.positive("global_batch")
        self.micro_batch = job.settings.positive("micro_batch", self.global_batch)
        self.schedule = ScheduleSettings.of(job.config, self.total)
        self.every_steps = early.positive("every_steps", 10)
        self.patience = early.positive("patience", 3)
        self.dataset = job.input_digest("preferences")
        self.guards = LearningGuards(LearningLimits.of(job.config))
        self.keeps_best = job.settings.integer("keep_best", 0) > 0
        self.best = Owned()
        """On the first rank."""
        self.best_step, self.best_seen, self.looks_since = 0, (-1.0, 0.0), 0

    def train_step(self, step: int) -> StepResult:
        self.engine.train()
        chosen = rows_at(step, self.global_batch, len(self.train_pairs), self.seed)
        pairs = [self.train_pairs[i] for i in self.engine.data.share(chosen)]
        found = self.engine.learn(self._micro_batches(pairs, len(chosen)))
        rate = learning_rate_at(step, self.schedule)
        norm = self.engine.step(rate)
        whole = dict(zip(found, self.engine.data.total(*found.values()), strict=True))
        tokens = int(whole.pop("tokens"))
        metrics = {**whole, "grad_norm": norm, "learning_rate": rate}
        self.guards.check(step + 1, metrics)
        if (step + 1) % self.every_steps and step + 1 < self.total:
            return StepResult(metrics, tokens)
        metrics |= self._look(step + 1)
        stop = StopReason.EARLY_STOP if self._done(step + 1) else None
        return StepResult(metrics, tokens, stop, keep=self.keeps_best and self.best_step == step + 1)

    def _micro_batches(self, pairs: Sequence[TokenPair], count: int) -> Iterator[MicroBatch]:
        """Of this rank's pairs; `count`: pairs of the whole step."""
        weight, scored = self.engine.data.total(sum(pair.weight for pair in pairs), math.fsum(self.dimensions.weights(pairs)))
        step = WholeStep(count, weight, scored)
        for part in micro_batches([pairs[i] for i in by_length(pairs)], self.micro_batch):
            yield MicroBatch(self._laid(part).ends, partial(measured, part, step, self.dimensions))

    def _laid(self, pairs: Sequence[TokenPair]) -> PairTokens:
        """Both sides of pairs for one forward; where a side stands in it means nothing."""
        return lay_out(pairs, 0, self.engine.module.model).to(self.engine.device)

    @torch.no_grad()
    def score(self, pairs: Sequence[TokenPair]) -> PairScores:
        """Raw scores of pairs under the present weights, without gradients."""
        self.engine.eval()
        good: list[list[float]] = [[]] * len(pairs)
        bad: list[list[float]] = [[]] * len(pairs)
        for part in micro_batches(by_length(pairs), self.micro_batch):
            outputs = by_label(self.engine(**self._laid([pairs[i] for i in part]).ends)).tolist()
            for index, of_chosen, of_rejected in zip(part, outputs[: len(part)], outputs[len(part) :], strict=True):
                good[index], bad[index] = of_chosen, of_rejected
        dimensions = [of_chosen[1:] for of_chosen in good] if self.dimensions.names else ()
        return PairScores([of_chosen[0] for of_chosen in good], [of_rejected[0] for of_rejected in bad], dimensions)

    def _look(self, step: int) -> dict[str, float]:
        seen = validation_accuracy(self.score(self.validation_pairs))
        if (seen["accuracy"], -seen["loss"]) > self.best_seen:
            self.best_step, self.best_seen, self.looks_since = step, (seen["accuracy"], -seen["loss"]), 0
            self.best = Owned(self.engine.weights())
        else:
            self.looks_since += 1
        return {f"validation_{name}": value for name, value in seen.items()} | {"best_step": float(self.best_step)}

    def _done(self, step: int) -> bool:
        return self.looks_since >= self.patience and step < self.total

    def capture(self) -> Snapshot:
        state = {
            "best_step": self.best_step,
            "best_seen": list(self.best_seen),
            "looks_since": self.looks_since,
            "guards": self.guards.state(),
        }
        groups = {**self.engine.capture(), **({"best": self.best} if self.best else {})}
        return Snapshot(groups, {**state, "dataset": self.dataset, "rows": len(self.train_pairs)})

    def restore(self, checkpoint: Checkpoint) -> None:
        saved = (checkpoint.state["dataset"], checkpoint.state["rows"])
        if saved != (self.dataset, len(self.train_pairs)):
            raise TrainingError(
                f"{checkpoint.path} was made on {saved}, this run reads {(self.dataset, len(self.train_pairs))}: its position means nothing"
            )
        self.engine.restore(checkpoint)
        self.guards.load_state(checkpoint.state["guards"])
        self.best_step, self.looks_since = checkpoint.state["best_step"], checkpoint.state["looks_since"]
        self.best_seen = (checkpoint.state["best_seen"][0], checkpoint.state["best_seen"][1])
        self.best = Owned(checkpoint.load("best") if "best" in checkpoint.groups else {})


def train_reward_model(job: Job, make_engine: MakeEngine) -> None:
    """Base and preferences in; a scorer for each seed and their measurements on hold-out pairs out."""
    job.config.only(*CONFIG_KEYS)
    base = job.input("base")
    tokenizer = load_tokenizer(base)
    encode = encoder(tokenizer)
    train, train_counts = pairs_of(job, "train", encode)
    validation, validation_counts = pairs_of(job, "validation", encode)
    if not train or not validation:
        raise PairsError(f"{len(train)} training and {len(validation)} validation pairs: both are needed, as the run stops on the latter")
    texts = warn_of_special_tokens(job, tokenizer, "preferences", texts_of(job.input("preferences"), "train"))
    holdout, holdout_counts = pairs_of(job, "holdout", encode)  # what is wrong with them is said before anything is paid
    attention, dimensions = job.config.text("attention", ("sdpa", "eager"), "sdpa"), Dimensions.of(job, train)

    def begin(seed: int) -> RewardTrainer:
        model = new_reward_model(base, seed, attention, dimensions.names)
        engine = make_engine(SequenceScores(model), EngineSettings.of(job.config))
        check_trained(engine)
        return RewardTrainer(job, engine, train, validation, seed, dimensions)

    ensemble, outcome = _all_members(job, begin)
    members = [_scored(job, ensemble, index, (validation, holdout)) for index in range(len(ensemble.seeds))]
    ensemble.trainer.engine.publish()
    members = [_written(job, base, ensemble, index, member) for index, member in enumerate(members)]
    by_dimension = held_dimensions(dimensions, train, holdout, members)
    with job.output("measurements", "report", {"stage": job.stage}) as folder:
        write_measurements(job, folder, holdout, members, by_dimension)
    figures, report = holdout_figures(holdout, members) | dimension_figures(by_dimension), holdout_report(holdout, members)
    if by_dimension:
        report["dimensions"] = dimension_report(by_dimension)
    counts = {"train": train_counts, "validation": validation_counts, "holdout": holdout_counts}
    validated = validation_figures(members)
    job.complete(
        {**outcome.metrics(), **_told(counts), **texts, **validated, **figures, "best_step": float(members[0].best_step)},
        {**_summary(job, members, counts, {**validated, **figures}), "holdout": report},
        outcome.stop_reason,
    )


def _all_members(job: Job, begin: Callable[[int], RewardTrainer]) -> tuple[EnsembleTrainer | TakenMembers, LoopOutcome]:
    """Every member with its training behind it: done here, or taken from the runs that did it."""
    seeds = ensemble_seeds(job.config, job.seed)
    if parts := taken(job):
        job.expect(len(seeds))
        found = TakenMembers(begin, seeds, list(parts.values()))
        job.record(len(seeds), {"members": float(len(seeds))})
        return found, LoopOutcome(0, len(seeds))
    if 0 < (kept := job.settings.integer("keep_best", 0)) < len(seeds) - 1:
        raise SpecError(f"settings.keep_best is {kept}: the members of an ensemble of {len(seeds)} are kept until all are trained; set 0")
    ensemble = EnsembleTrainer(begin, seeds)
    return ensemble, run_steps(job, ensemble, ensemble.total)


def _use_best(job: Job, ensemble: EnsembleTrainer | TakenMembers, index: int) -> None:
    """Puts a member's best state, which the first rank has or reads, in place of the present weights."""
    weights = ensemble.best_of(index, job.checkpoints.at) if job.ranks.main else {}
    if job.ranks.main and not weights:
        raise TrainingError("no look at the validation pairs was taken: there is no best state")
    ensemble.trainer.engine.use(weights)


def _scored(
    job: Job, ensemble: EnsembleTrainer | TakenMembers, index: int, sides: tuple[Sequence[TokenPair], Sequence[TokenPair]]
) -> MemberScores:
    """What one member's best state says of both sides, by the model as the ranks hold it, and the statistics of its validation scores."""
    _use_best(job, ensemble, index)
    validated, held = (ensemble.trainer.score(side) for side in sides)
    finished = ensemble.finished[index]
    return MemberScores(finished.seed, finished.best_step, _normaliser(job, validated), validated, held)


def _written(job: Job, base: Path, ensemble: EnsembleTrainer | TakenMembers, index: int, member: MemberScores) -> MemberScores:
    """One member's best state as a model with its statistics, of the whole weights on the first rank."""
    meta = {"stage": job.stage, "key": job.spec.key, "best_step": member.best_step, "seed": member.seed}
    with job.output(member_name(index), "reward_model", meta) as folder:
        if isinstance(ensemble, TakenMembers):
            hand_on(ensemble.folders[index], folder)
            return replace(member, normaliser=RewardNormaliser.read(folder))
        _use_best(job, ensemble, index)
        accuracy = validation_accuracy(member.validated)["accuracy"]
        save_reward_model(ensemble.trainer.engine.module.model, base, folder, member.normaliser, {"validation_accuracy": accuracy})
    return member


def _normaliser(job: Job, scores: PairScores) -> RewardNormaliser:
    """From the raw scores of all validation answers, by the weights that are handed on."""
    stats = RunningStats.of([*scores.chosen, *scores.rejected])
    if not stats.std > 0:
        raise TrainingError(f"all {stats.count} validation answers have the score {stats.mean}: this model tells nothing apart")
    return RewardNormaliser(stats, job.config.number("epsilon", EPSILON), job.config.number("clip", CLIP))


def _told(counts: Mapping[str, PairCounts]) -> dict[str, float]:
    return {name: value for side, of_side in counts.items() for name, value in of_side.metrics(side).items()}


def _summary(
    job: Job, members: Sequence[MemberScores], counts: Mapping[str, PairCounts], figures: Mapping[str, float]
) -> dict[str, object]:
    found = overfit(figures["validation_accuracy"], figures.get("holdout_accuracy"))
    if found:
        job.warn(found)
    dropped = {
        side: {"identical_at_start": c.identical_at_start, "identical_after_truncation": c.identical_after_truncation}
        for side, c in counts.items()
    }
    listed = [{"name": member_name(i), "seed": m.seed, "best_step": m.best_step} for i, m in enumerate(members)]
    return {"best_step": members[0].best_step, "overfit_warning": found is not None, "pairs_dropped": dropped, "members": listed}
