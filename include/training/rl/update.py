"""PPO's learning step: what the models say of a batch before it is learnt from, and the clipped update itself.

On several ranks each passes its part of every minibatch through the models. What they say is put together, so that all ranks
hold the whole batch, and whatever is counted over it (KL, whitening, guards) is one figure, the same on each.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from include.runtime.ranks import Ranks
from include.training.engines.precision import precision_context
from include.training.rl.actor import DrawingActor
from include.training.rl.arithmetic import clipped_share, explained_variance, largest_ratio_gap, masked_mean, policy_losses, value_losses
from include.training.rl.batch import MicroBatch, Plan
from include.training.rl.placing import present
from include.training.rl.settings import PpoSettings


@dataclass(frozen=True)
class Looked:
    """B × T each: log π_old, log π_ref, V, all before the update."""

    old_BT: Tensor
    reference_BT: Tensor
    value_BT: Tensor


@dataclass(frozen=True)
class Lesson:
    """What is learnt: B × T each. `mask_BT` is 1 on tokens that count."""

    old_BT: Tensor
    value_BT: Tensor
    advantage_BT: Tensor
    return_BT: Tensor
    mask_BT: Tensor
    weight_BT: Tensor | None = None
    """Importance weights of answers by an earlier actor; None: all were drawn by this one."""


@dataclass
class Figures:
    """Token-weighted means over all passes of an update."""

    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    weight: float = 0.0
    gradient_norms: dict[str, list[float]] = field(default_factory=lambda: {"actor": [], "critic": []})

    def add(self, values: Mapping[str, Tensor], weight: float) -> None:
        for name, value in values.items():
            self.totals[name] += float(value.detach()) * weight
        self.weight += weight

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Over the tokens of all ranks; every one of them calls it."""
        weight, *totals = ranks.total(self.weight, *self.totals.values())
        means = {name: total / weight for name, total in zip(self.totals, totals, strict=True)} if weight else {}
        norms = {f"{role}_gradient_norm": sum(norms) / len(norms) for role, norms in self.gradient_norms.items() if norms}
        return means | norms


class Learner:
    """Actor and critic in their engines, the frozen reference and the actor that draws beside them.

    reuse_first_pass: the passes that say what actor and critic think of the first minibatch are kept with their gradients, and the update
    learns from them instead of computing the same once more: the same in every bit, for the memory of a minibatch's activations in both.
    """

    def __init__(
        self, actor: Any, critic: Any, reference: Any, settings: PpoSettings, drawing: DrawingActor, *, reuse_first_pass: bool = False
    ) -> None:
        self.actor = actor
        self.drawing = drawing
        self.critic = critic
        self.reference = reference
        self.settings = settings
        self.reuse_first_pass = reuse_first_pass
        self._first_passes: list[tuple[Tensor, Tensor]] = []

    @property
    def ranks(self) -> Ranks:
        ranks: Ranks = self.actor.data
        return ranks

    @torch.no_grad()
    def look(self, plan: Plan, shape: tuple[int, int]) -> Looked:
        """Log-probabilities and values of every answer token, in the micro-batches the update will use. The reference comes first, so that
        it may go again before passes are kept."""
        seen = torch.zeros(3, *shape)
        old, reference, value = seen
        self._first_passes = []
        with present(self.reference) as model:
            for micro in plan:
                with precision_context(self.settings.precision, self.actor.device.type):
                    reference[micro.cells] = self._log_probs(model, micro).cpu()
        reused = len(plan.minibatches[0].micros) if self.reuse_first_pass else 0
        for at, micro in enumerate(plan):
            with torch.set_grad_enabled(at < reused):
                passed = self._log_probs(self.actor, micro), self._values(micro)
            if at < reused:
                self._first_passes.append(passed)
            old[micro.cells], value[micro.cells] = (found.detach().cpu() for found in passed)
        self.ranks.filled(seen)
        return Looked(old, reference, value)

    @torch.no_grad()
    def log_probs_of(self, model: Any, plan: Plan, shape: tuple[int, int]) -> Tensor:
        """B × T: the log-probabilities of every answer token under another actor, in the same micro-batches."""
        found = torch.zeros(shape)
        for micro in plan:
            with precision_context(self.settings.precision, self.actor.device.type):
                found[micro.cells] = self._log_probs(model, micro).cpu()
        return self.ranks.filled(found)

    def update(self, plan: Plan, lesson: Lesson, check_first: Callable[[float], None]) -> dict[str, float]:
        """`epochs` passes over the plan. `check_first` gets the largest |ratio − 1| of the first minibatch on any rank, before its step."""
        figures, first = Figures(), True
        for _ in range(self.settings.epochs):
            for minibatch in plan.minibatches:
                passes: list[tuple[Tensor, Tensor] | None] = [*self._first_passes] or [None for _ in minibatch.micros]
                self._first_passes = []
                tokens = float(lesson.mask_BT[minibatch.rows].sum())
                if not tokens:
                    continue
                gaps = [self._micro(micro, lesson, tokens, figures, passed) for micro, passed in zip(minibatch.micros, passes, strict=True)]
                if first:
                    check_first(self.ranks.most(_largest(gaps))[0])
                    first = False
                figures.gradient_norms["actor"].append(self.actor.step(self.settings.learning_rate))
                figures.gradient_norms["critic"].append(self.critic.step(self.settings.critic_learning_rate))
        self.drawing.release()
        return figures.means(self.ranks)

    def publish(self) -> None:
        """Ends learning: the actor's whole weights on the first rank, where the critic makes room; the other ranks end here."""
        self.actor.publish()
        self.critic.close()
        self.critic = None

    def _micro(self, micro: MicroBatch, lesson: Lesson, tokens: float, figures: Figures, passed: tuple[Tensor, Tensor] | None) -> float:
        """Forward (unless it has `passed` already) and backward of one micro-batch, weighted by its share of the minibatch's tokens on
        all ranks; gives the ratio gap."""
        settings, device = self.settings, self.actor.device
        told = (lesson.old_BT, lesson.mask_BT, lesson.advantage_BT, lesson.return_BT, lesson.value_BT)
        old, mask, advantage, returns, old_value = (value_BT[micro.cells].to(device) for value_BT in told)
        new = passed[0] if passed else self._log_probs(self.actor, micro)
        losses = policy_losses(new, old, advantage, settings.clip)
        if lesson.weight_BT is not None:
            losses = losses * lesson.weight_BT[micro.cells].to(device)
        policy_loss = masked_mean(losses, mask)
        share = float(mask.sum()) / tokens
        self.actor.backward(policy_loss * share)
        values = passed[1] if passed else self._values(micro)
        value_loss = masked_mean(value_losses(values, old_value, returns, settings.value_clip), mask)
        self.critic.backward(settings.value_coefficient * value_loss * share)
        seen = new.detach()
        figures.add(
            {
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "ratio": masked_mean((seen - old).exp(), mask),
                "clipped_share": clipped_share(seen, old, mask, settings.clip),
            },
            float(mask.sum()),
        )
        return largest_ratio_gap(seen, old, mask)

    def _log_probs(self, model: Any, micro: MicroBatch) -> Tensor:
        temperature = self.settings.temperature
        given = (micro.input_ids, micro.attention_mask, micro.rows, micro.columns, micro.targets)
        return model(*(value.to(self.actor.device) for value in given), temperature=temperature)

    def _values(self, micro: MicroBatch) -> Tensor:
        given = (micro.input_ids, micro.attention_mask, micro.rows, micro.columns)
        return self.critic(*(value.to(self.critic.device) for value in given))


def _largest(gaps: Sequence[float]) -> float:
    """Infinite where one is no number, which a maximum might not show."""
    return max(gaps) if all(math.isfinite(gap) for gap in gaps) else math.inf


def critic_quality(lesson: Lesson) -> float:
    """How much of the returns' spread the critic had foreseen."""
    return explained_variance(lesson.value_BT, lesson.return_BT, lesson.mask_BT)
