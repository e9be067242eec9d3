"""PPO: actor, frozen reference, frozen reward model, critic; answers by generators beside it, or by itself, so that the policy lag is 0.

An iteration: prompts → rollouts → scores → KL against the reference → values → advantages → update of actor and critic.
Differences from the papers: the KL penalty is per token and its controller steps by a factor (not proportionally);
rewards are measured in deviations of the reward model's validation set.

On several ranks each draws, scores and learns from its part; in between all of them hold the whole batch, so that KL,
advantages, normalisers and guards are those of one rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from include.domain.errors import SpecError
from include.domain.records import Prompt
from include.runtime.chat import eos_ids, prompt_ids
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.errors import CheckpointError
from include.runtime.job import Job
from include.training.errors import TrainingError
from include.training.examples.batching import pad_id_of
from include.training.examples.heldout import answer_check
from include.training.examples.special import warn_of_special_tokens
from include.training.loop import StepResult, run_steps
from include.training.model_io import load_tokenizer
from include.training.policy_export import export_policy
from include.training.rl.actor import MakeActorEngine
from include.training.rl.ages import Ages
from include.training.rl.arithmetic import gae, masked_mean, sequence_kl, token_rewards, whiten
from include.training.rl.batch import Plan, answer_mask
from include.training.rl.checks import check_same_sequence
from include.training.rl.chosen_source import answer_source
from include.training.rl.collect import Collected, Collector, batch_figures, check_lengths, encode_prompts
from include.training.rl.draw import DrawSettings
from include.training.rl.guard_limits import BatchFigures, GuardStop
from include.training.rl.guards import Guards
from include.training.rl.heldout import BestLook, HeldOut, Look, LookSettings, unwatched
from include.training.rl.models import Models
from include.training.rl.oddness import Oddness, known_accuracies
from include.training.rl.rewards import RewardScorer, usable_prompts
from include.training.rl.sampler import compare
from include.training.rl.settings import PpoSettings, guard_limits, kl_controller
from include.training.rl.sources import AnswerSource
from include.training.rl.update import Learner, Lesson, critic_quality
from include.transforms.datasets_io import read_rows

QUANTILES = (0.05, 0.5, 0.95)


class PpoTrainer:
    """A step is an iteration. State: both engines, KL controller, normalisers, guards' history, rollouts so far."""

    def __init__(
        self, job: Job, learner: Learner, collector: Collector, source: AnswerSource, pad_id: int, held_out: HeldOut | None = None
    ) -> None:
        self.job = job
        self.source = source
        self.settings = learner.settings
        self.learner = learner
        self.collector = collector
        self.pad_id = pad_id
        self.kl = kl_controller(job.config)
        self.guards = Guards(guard_limits(job.config), self.kl.target)
        self.micro_batch = job.settings.positive("micro_batch", self.settings.minibatch)
        self.updates = 0
        self.ages = Ages(job.input("policy"), self.settings, source)
        self.oddness = Oddness()
        self.held_out = held_out
        self.best = BestLook()
        self.keeps_best = job.settings.integer("keep_best", 0) > 0

    def train_step(self, step: int) -> StepResult:
        self._modes(training=False)
        first = self._look(0) if step == 0 else None
        if first is not None:
            self.guards.check_held_out(first)
        drawn = self.source.draw(step, self.learner.drawing, self.updates)
        self.learner.drawing.release()
        batch = self.collector.collect(step, drawn)
        figures = batch_figures(batch, self.settings) | self.ages.count(drawn)
        self.oddness.see(figures)
        self.guards.check_rewards(batch.missing, len(batch.scored))
        sizes = (self.settings.minibatch, self.micro_batch)
        plan = Plan.of(batch.sampled, sizes, self.pad_id, self.job.seed + step, self.job.ranks)
        lesson, told = self._lesson(batch, plan)
        self._modes(training=True)
        learnt = self.learner.update(plan, lesson, lambda gap: self._first(gap, figures))
        self.updates += self.settings.epochs * len(plan.minibatches)
        self.source.published(step + 1, self.learner.drawing, self.updates)
        figures |= {**told, **learnt, "kl_coefficient": self.kl.coefficient, "value_explained": critic_quality(lesson)}
        look = self._look(step + 1)
        figures |= {**(look.figures() if look else {}), **({f"{k}_first": v for k, v in first.figures().items()} if first else {})}
        self._guard(step, figures, look)
        figures["next_kl_coefficient"] = self.kl.update(figures["kl"])
        better = look is not None and self.best.see(step + 1, look)
        if look is not None:
            figures["heldout_best_step"] = float(self.best.step)
        return StepResult(figures, sum(len(answer.sequence) for answer in batch.sampled), keep=self.keeps_best and better)

    def _lesson(self, batch: Collected, plan: Plan) -> tuple[Lesson, dict[str, float]]:
        """Rewards, advantages and returns of a batch, and what is told of them.

        KL and entropy are of the version that drew each answer: of samples of another one the mean of log π is no estimate of either.
        """
        settings, mask_BT = self.settings, answer_mask(batch.sampled, batch.counted)
        looked = self.learner.look(plan, (mask_BT.shape[0], mask_BT.shape[1]))
        weighed = self.ages.weigh(self.learner, plan, batch, looked.old_BT, mask_BT)
        compared = compare(self.guards, settings, batch, looked.old_BT, mask_BT, weighed)
        mask_BT = mask_BT * compared.fair_B[:, None]
        ratio_BT = (looked.old_BT - looked.reference_BT) * mask_BT
        score_B = torch.tensor([0.0 if scored.missing else scored.score for scored in batch.scored])
        reward_BT = token_rewards(score_B, ratio_BT, mask_BT, self.kl.coefficient)
        seen = gae(reward_BT, looked.value_BT, mask_BT, settings.gamma, settings.lam)
        advantage_BT = whiten(seen.advantage_BT, mask_BT) if settings.whiten else seen.advantage_BT
        told = {
            "kl": float(sequence_kl(weighed.drawn_BT, looked.reference_BT, mask_BT)),
            "entropy": -float(masked_mean(weighed.drawn_BT, mask_BT)),
            "score_spread": _spread(score_B[mask_BT.any(1)]),
            "advantage_spread": _spread(seen.advantage_BT[mask_BT > 0], whitened=settings.whiten),
            **weighed.told,
            **compared.told,
            **_quantiles("score", score_B[mask_BT.any(1)]),
            **_quantiles("kl", ((weighed.drawn_BT - looked.reference_BT) * mask_BT).sum(1)[mask_BT.any(1)]),
            **_quantiles("advantage", seen.advantage_BT[mask_BT > 0]),
        }
        return Lesson(looked.old_BT, looked.value_BT, advantage_BT, seen.return_BT, mask_BT, weighed.weight_BT), told

    def _first(self, gap: float, figures: dict[str, float]) -> None:
        figures["first_ratio_gap"] = gap
        settings = self.settings
        self.guards.check_first_ratio(gap, settings.ratio_tolerance if settings.precision == "fp32" else settings.ratio_tolerance_bf16)

    def _look(self, iterations: int) -> Look | None:
        """At validation prompts, where one is due after so many iterations."""
        if self.held_out is None or not self.held_out.due(iterations):
            return None
        self._modes(training=False)
        return self.held_out.look(self.learner.drawing)

    def _guard(self, step: int, figures: Mapping[str, float], look: Look | None) -> None:
        seen = BatchFigures(
            kl=figures["kl"],
            ratio=figures["ratio"],
            policy_loss=figures["policy_loss"],
            value_loss=figures["value_loss"],
            entropy=figures["entropy"],
            mean_length=figures["answer_tokens"],
            distinct_share=figures["distinct_share"],
            model_reward=figures["model_reward"],
            verified=figures.get("verified_share"),
            gradient_norm=figures["actor_gradient_norm"],
            advantage_spread=figures["advantage_spread"],
            score_spread=figures["score_spread"] if self.settings.prompts_per_iteration > 1 else None,
        )
        try:
            self.guards.check(seen)
            if look is not None:
                self.guards.check_held_out(look)
        except GuardStop:
            self.job.record(step + 1, figures)  # so that what the guard saw is in the curves too
            raise

    def _modes(self, *, training: bool) -> None:
        for engine in (self.learner.actor, self.learner.critic):
            engine.train() if training else engine.eval()

    def capture(self) -> Snapshot:
        drawing, versions = self.source.capture()
        groups = {**self.learner.actor.capture("actor"), **self.learner.critic.capture("critic"), **drawing}
        state = {
            "kl": self.kl.state(),
            "guards": self.guards.state(),
            "normalisers": self.collector.scorer.state(),
            "rollouts": self.collector.log.state(),
            "updates": self.updates,
            "ages": self.ages.state(),
            "versions": versions,
            "oddness": self.oddness.state(),
            "best_look": asdict(self.best),
            "prompts": [self.job.input_digest("prompts"), len(self.collector.prompts)],
        }
        return Snapshot(groups, state)

    def restore(self, checkpoint: Checkpoint) -> None:
        own = [self.job.input_digest("prompts"), len(self.collector.prompts)]
        if (saved := list(checkpoint.state["prompts"])) != own:
            raise CheckpointError(f"{checkpoint.path} was made on prompts {saved}, this run reads {own}: its position means nothing")
        self.learner.actor.restore(checkpoint, "actor")
        self.learner.critic.restore(checkpoint, "critic")
        self.learner.drawing.release()
        self.kl.load_state(checkpoint.state["kl"])
        self.guards.load_state(checkpoint.state["guards"])
        self.collector.scorer.load_state(checkpoint.state["normalisers"])
        self.collector.log.load_state(checkpoint.state["rollouts"])
        self.updates = checkpoint.state["updates"]
        self.ages.load_state(checkpoint.state["ages"])
        self.source.restore(checkpoint, checkpoint.state.get("versions", {}))
        self.oddness.load_state(checkpoint.state["oddness"])
        self.best = BestLook(**checkpoint.state.get("best_look", {}))


def _spread(values: torch.Tensor, *, whitened: bool = True) -> float:
    """The largest less the smallest, as whitening takes their mean away; else the largest as it is. Of nothing 0."""
    if not len(values):
        return 0.0
    return float(values.max() - values.min() if whitened else values.abs().max())


def _quantiles(name: str, values: torch.Tensor) -> dict[str, float]:
    if not len(values):
        return {}
    found = torch.quantile(values.double(), torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
    return {f"{name}_p{round(q * 100):02d}": value for q, value in zip(QUANTILES, found, strict=True)}


def train_ppo(job: Job, make_engine: MakeActorEngine) -> None:
    """Policy, reference, reward model(s) and prompts in; policy (with `lora` its adapter too) and rollouts out."""
    settings = PpoSettings.of(job.config)
    if settings.minibatch % job.ranks.count:
        raise SpecError(
            f"config.minibatch {settings.minibatch} cannot be shared equally by {job.ranks.count} ranks: set it to a multiple, or change job.tasks"
        )
    tokenizer = load_tokenizer(job.input("policy"))
    usable = usable_prompts(_prompts(job), settings.reward)
    if said := usable.words(settings.reward):
        job.warn(said)
    prompts = usable.prompts
    texts = warn_of_special_tokens(job, tokenizer, "prompts", (prompt.messages for prompt in prompts))
    models = Models.load(job, settings)
    actor, members = models.actor, models.members
    pad_id = pad_id_of(tokenizer)
    rows = job.settings.positive("micro_batch", settings.minibatch)
    encoded = encode_prompts(tokenizer, prompts)
    scorer = RewardScorer(members, settings.reward, settings.max_new_tokens, pad_id, rows)
    collector = Collector(job, settings, tokenizer, scorer, encoded)
    check_lengths({prompt_id: ids for prompt_id, (_, ids) in encoded.items()}, settings)
    check_same_sequence({name: _probe(job, name, prompts[0]) for name in ("policy", "reference", *(m.name for m in members))})
    before = _answers(job, actor, tokenizer, "before")
    learner = models.learner(job, settings, make_engine)
    draws = _draws(job, settings, tokenizer)
    looks = LookSettings.of(job.config)
    if said := unwatched(looks, prompts):
        job.warn(said)
    held_out = HeldOut(job, settings, tokenizer, scorer, draws, looks) if looks else None
    with answer_source(job, settings, [ids for _, ids in encoded.values()], draws) as source:
        trainer = PpoTrainer(job, learner, collector, source, pad_id, held_out)
        outcome = run_steps(job, trainer, settings.iterations)
    learner.publish()
    models = models.left()
    if said := trainer.oddness.warning(known_accuracies([job.input(member.name) for member in members])):
        job.warn(said)
    after = _answers(job, actor, tokenizer, "after")
    models.check_base()
    exported = export_policy(job, actor, settings.lora, "policy", {"reference": job.input_digest("reference")})
    with job.output("rollouts", "rollout_batch", {"stage": job.stage, "key": job.spec.key}) as folder:
        rollouts = collector.log.assemble(folder)
    counts = {name: float(rollouts[name]) for name in ("expected", "count", "missing_rewards")}
    metrics = {
        **outcome.metrics(),
        **{f"rollouts_{k}": v for k, v in counts.items()},
        "kl_coefficient": trainer.kl.coefficient,
        **trainer.ages.totals(),
        **({"heldout_best_step": float(trainer.best.step)} if held_out else {}),
        **before,
        **after,
        **exported,
    }
    job.complete({**metrics, **usable.metrics(), **texts}, {"rollouts": counts}, outcome.stop_reason)


def _draws(job: Job, settings: PpoSettings, tokenizer: Any) -> DrawSettings:
    return DrawSettings(
        seed=job.seed,
        prompts_per_iteration=settings.prompts_per_iteration,
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
        precision=settings.precision,
        stop_ids=tuple(sorted(eos_ids(tokenizer))),
        portion=job.settings.positive("generation_batch", 64),
    )


def _prompts(job: Job) -> list[Prompt]:
    """Training prompts set apart for RL."""
    rows = [row for row in read_rows(job.input("prompts"), "train") if row.use == "rl"]
    if not rows:
        raise TrainingError(f"{job.input('prompts')} has no training prompt of use 'rl'")
    return [Prompt.from_json(row.record) for row in rows]


def _probe(job: Job, name: str, prompt: Prompt) -> Sequence[int]:
    """One prompt as the tokenizer and template in this model's own folder write it."""
    return prompt_ids(load_tokenizer(job.input(name)), prompt.messages, prompt.tools)


def _answers(job: Job, model: Any, tokenizer: Any, when: str) -> dict[str, float]:
    """Greedy answers to validation prompts, as far as the run asks for them."""
    limit = job.config.integer("eval_rows", 0)
    if limit <= 0:
        return {}
    prompts = [Prompt.from_json(row.record) for row in read_rows(job.input("prompts"), "validation")][:limit]
    found = answer_check(model, tokenizer, prompts, job.config.positive("max_new_tokens"), job.settings.positive("generation_batch", 64))
    return {f"heldout_{name}_{when}": value for name, value in found.items()}
