"""Guards of PPO: what goes wrong is recognised, named, and ends the run with the last good checkpoint kept.

A rising reward never outweighs one: the guards look at each batch before the optimiser does anything with the next.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from include.training.rl.guard_limits import BatchFigures, GuardLimits, GuardStop, HeldOutLook


@dataclass
class _History:
    below_zero: int = 0
    too_far: int = 0
    value_diverging: int = 0
    collapsed: int = 0
    too_long: int = 0
    still: int = 0
    flat: int = 0
    deterministic: int = 0
    least_value_loss: float = math.inf
    first_length: float = math.nan


class Guards:
    """Sees every batch once, in order; its history is part of a checkpoint."""

    def __init__(self, limits: GuardLimits, kl_target: float) -> None:
        self.limits = limits
        self._kl_target = kl_target
        self._history = _History()
        self._rewards: list[float] = []
        self._verified: list[float] = []
        self._first_look: dict[str, float | None] | None = None

    def check_rewards(self, missing: int, total: int) -> None:
        """Before anything is learnt from a batch: too many answers without a reward stop the run."""
        if not total or missing / total > self.limits.missing_reward_share:
            raise GuardStop(
                "reward_missing",
                f"{missing} of {total} answers have no finite reward, the limit is a share of {self.limits.missing_reward_share}",
            )

    def check_first_ratio(self, gap: float, tolerance: float) -> None:
        """Before the first step nothing has been learnt from a batch, so the first minibatch's ratio must be 1."""
        if not gap <= tolerance:
            raise GuardStop("ratio_at_lag_0", f"largest |ratio - 1| of the first minibatch is {gap:.3g}, allowed is {tolerance:g}")

    def check_sampler(self, gap: float, tolerance: float, whose: str) -> None:
        """The log-probabilities that the sampler told must be those that the trainer finds under the same weights; `whose` they are."""
        if not gap <= tolerance:
            raise GuardStop(
                "sampler_apart", f"largest |ratio - 1| between sampler and trainer under {whose} is {gap:.3g}, allowed is {tolerance:g}"
            )

    def check_apart(self, masked: int, total: int, tolerance: float) -> None:
        """Too many answers whose sampler and trainer are apart: what is left of the batch is no fair part of it."""
        if total and masked / total > self.limits.masked_share:
            raise GuardStop(
                "sampler_apart",
                f"{masked} of {total} answers are masked, as sampler and trainer are apart by more than {tolerance:g} a token; "
                f"the limit is a share of {self.limits.masked_share:g}",
            )

    def check(self, batch: BatchFigures) -> None:
        """After a batch's update. Raises GuardStop naming the guard."""
        self._finite(batch)
        self._still(batch)
        self._kl(batch)
        self._value(batch)
        self._collapse(batch)
        self._length(batch)
        self._hacking(batch)

    def _finite(self, batch: BatchFigures) -> None:
        for name, value in asdict(batch).items():
            if value is not None and not math.isfinite(value):
                raise GuardStop("non_finite", f"{name} is {value}")

    def _still(self, batch: BatchFigures) -> None:
        """A run that learns nothing would end as complete, with the policy that it began with."""
        limits, seen = self.limits, self._history
        still = batch.gradient_norm == 0 or batch.advantage_spread == 0
        seen.still = seen.still + 1 if still else 0
        if seen.still >= limits.consecutive:
            told = (
                "the actor's gradient is exactly 0"
                if batch.gradient_norm == 0
                else "all advantages are the same, so that nothing is preferred"
            )
            raise GuardStop("no_gradient", f"{told} ({seen.still} iterations in a row)")
        seen.flat = seen.flat + 1 if batch.score_spread == 0 and not _all_right(batch) else 0
        if limits.flat_iterations and seen.flat >= limits.flat_iterations:
            raise GuardStop("reward_flat", f"all answers of a batch have the same reward ({seen.flat} iterations in a row)")

    def _kl(self, batch: BatchFigures) -> None:
        limits, seen = self.limits, self._history
        seen.below_zero = seen.below_zero + 1 if batch.kl < -limits.kl_noise else 0
        if batch.kl < limits.kl_negative or seen.below_zero >= limits.consecutive:
            raise GuardStop(
                "kl_negative",
                f"batch KL {batch.kl:.4g} (below -{limits.kl_noise:g} for {seen.below_zero} batches; noise is small and single)",
            )
        seen.too_far = seen.too_far + 1 if batch.kl > limits.kl_max / 2 else 0
        if batch.kl > limits.kl_max or seen.too_far >= limits.consecutive:
            raise GuardStop("kl_exploding", f"batch KL {batch.kl:.4g} against a target of {self._kl_target:g} ({seen.too_far} batches)")
        if not 1 / limits.ratio_max <= batch.ratio <= limits.ratio_max:
            raise GuardStop("ratio_exploding", f"mean probability ratio {batch.ratio:.4g}, allowed up to {limits.ratio_max:g}")

    def _value(self, batch: BatchFigures) -> None:
        limits, seen = self.limits, self._history
        bound = min(limits.value_loss_max, max(limits.value_loss_factor * seen.least_value_loss, limits.value_loss_floor))
        high = batch.value_loss > bound
        seen.value_diverging = seen.value_diverging + 1 if high else 0
        seen.least_value_loss = min(seen.least_value_loss, batch.value_loss)
        if seen.value_diverging >= limits.consecutive:
            raise GuardStop("value_loss_diverging", f"value loss {batch.value_loss:.4g}, the smallest was {seen.least_value_loss:.4g}")

    def _collapse(self, batch: BatchFigures) -> None:
        limits, seen = self.limits, self._history
        collapsed = batch.entropy < limits.entropy_min and batch.distinct_share < limits.distinct_share_min
        seen.collapsed = seen.collapsed + 1 if collapsed else 0
        if seen.collapsed >= limits.consecutive:
            raise GuardStop("entropy_collapse", f"entropy {batch.entropy:.3g} nats, {batch.distinct_share:.0%} of answers differ")
        seen.deterministic = seen.deterministic + 1 if batch.entropy < limits.entropy_floor and not _all_right(batch) else 0
        if seen.deterministic >= limits.consecutive:
            raise GuardStop(
                "entropy_collapse",
                f"entropy {batch.entropy:.3g} nats a token, below {limits.entropy_floor:g} for {seen.deterministic} iterations: a prompt always "
                "gets the same answer",
            )

    def _length(self, batch: BatchFigures) -> None:
        limits, seen = self.limits, self._history
        if math.isnan(seen.first_length):
            seen.first_length = batch.mean_length
        seen.too_long = seen.too_long + 1 if batch.mean_length > limits.length_factor * seen.first_length else 0
        if seen.too_long >= limits.consecutive:
            raise GuardStop("length_explosion", f"mean answer length {batch.mean_length:.1f} tokens, at first {seen.first_length:.1f}")

    def _hacking(self, batch: BatchFigures) -> None:
        if batch.verified is None:
            return
        self._rewards.append(batch.model_reward)
        self._verified.append(batch.verified)
        if len(self._rewards) < 6:
            return
        reward, quality = _rise(self._rewards), _rise(self._verified)
        if reward > self.limits.hacking_reward and quality < -self.limits.hacking_quality:
            raise GuardStop(
                "reward_hacking", f"model reward rose by {reward:.3g} deviations while the verified share fell by {-quality:.3g}"
            )

    def check_held_out(self, look: HeldOutLook) -> None:
        """After a look at validation prompts; the first one is what the others are held against."""
        now = {name: getattr(look, name) for name in ("reward", "tokens", "verified", "disagreement")}
        if self._first_look is None:
            self._first_look = now
            return
        if (rise := now["reward"] - self._first_look["reward"]) <= self.limits.hacking_reward:
            return
        if worse := self._worse(self._first_look, now):
            raise GuardStop("reward_hacking", f"on held-out prompts the model reward rose by {rise:.3g} deviations while {worse}")

    def _worse(self, first: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
        """In which way held-out answers have got worse: by the verifier, where there is one; else by what stands in for it."""
        if first["verified"] is not None and now["verified"] is not None:
            fall = first["verified"] - now["verified"]
            return f"the verified share fell by {fall:.3g}" if fall > self.limits.hacking_quality else None
        if first["disagreement"] is not None and now["disagreement"] is not None:
            apart = now["disagreement"] - first["disagreement"]
            if apart > self.limits.hacking_disagreement:
                return f"the ensemble's members came apart by {apart:.3g} deviations more"
        if now["tokens"] > self.limits.hacking_length * first["tokens"]:
            return f"answers grew from {first['tokens']:.1f} to {now['tokens']:.1f} tokens"
        return None

    def state(self) -> dict[str, Any]:
        history = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in asdict(self._history).items()}
        return {"history": history, "rewards": list(self._rewards), "verified": list(self._verified), "first_look": self._first_look}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._history = _History(**{k: v for k, v in state["history"].items() if v is not None})
        self._rewards, self._verified = list(state["rewards"]), list(state["verified"])
        self._first_look = state["first_look"]


def _all_right(batch: BatchFigures) -> bool:
    """Then one answer to a prompt and one reward are what was to be learnt."""
    return batch.verified is not None and batch.verified >= 1


def _rise(series: list[float]) -> float:
    return math.fsum(series[-3:]) / 3 - math.fsum(series[:3]) / 3
