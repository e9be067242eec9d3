"""Guards of PPO: what goes wrong is recognised, named, and ends the run with the last good checkpoint kept.

A rising reward never outweighs one: the guards look at each batch before the optimiser does anything with the next.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from include.domain.errors import SpecError
from include.runtime.errors import GuardTripped

LEVERS = "Levers: a stronger KL (a smaller target, a larger initial coefficient), the minimum of a reward ensemble, a length penalty."
CHECKS: Mapping[str, tuple[str, ...]] = {
    "reward": (
        "reward-model accuracy suspiciously high (above 0.80 on held-out pairs)?",
        "KL out of hand (see kl and kl_coefficient in metrics.jsonl)?",
        "read samples: rollouts of the last iterations are kept beside this report",
    ),
    "kl": (
        "learning rate too large (a policy wants 10 to 100 times less than SFT)?",
        "lengths within a batch too different (group them)?",
        "tokenizers of actor, reference and reward model the same?",
    ),
    "value": (
        "inputs: do critic and policy see the same sequence?",
        "discount: is gamma 1.0, as the reward comes once for the whole answer?",
        "modes: actor and critic in train mode, reference and reward model in eval mode without gradients?",
    ),
    "sampler": (
        "weights: does the sampler hold the very version that its answers name?",
        "precision, attention and temperature: the same for sampler and trainer?",
        "limit: is it one for this precision (ratio_tolerance, ratio_tolerance_bf16)?",
    ),
    "modes": (
        "chance: does a pass in train mode differ from one in eval mode (dropout)?",
        "kernels: does the same pass twice give the same bits?",
    ),
}
_FAMILY = {
    "reward_hacking": ("reward", "kl"),
    "reward_missing": ("reward",),
    "kl_negative": ("kl", "reward"),
    "kl_exploding": ("kl", "reward"),
    "ratio_exploding": ("kl", "reward"),
    "ratio_at_lag_0": ("modes",),
    "sampler_apart": ("sampler", "modes"),
    "value_loss_diverging": ("value",),
    "entropy_collapse": ("reward", "kl"),
    "length_explosion": ("reward", "kl"),
    "non_finite": ("kl", "value"),
}


class GuardStop(GuardTripped):
    """A guard ended the run: its name, what was seen, and the checks in the order in which they pay."""

    def __init__(self, guard: str, seen: str) -> None:
        checks = [check for family in _FAMILY[guard] for check in CHECKS[family]]
        listed = " ".join(f"({i}) {check}" for i, check in enumerate(checks, 1))
        levers = "" if "modes" in _FAMILY[guard] else f" {LEVERS}"
        super().__init__(guard, f"{seen}. Check in this order: {listed}{levers}")


@dataclass(frozen=True)
class GuardLimits:
    """Thresholds; a recipe may set each of them.

    consecutive: batches in a row before a lasting trouble stops the run.
    kl_noise: a batch KL above −kl_noise is sampling noise; below it `consecutive` times in a row is not.
    kl_negative: below this once is enough.
    kl_max: batch KL above it once, or above half of it `consecutive` times in a row.
    ratio_max: largest mean of an update's probability ratio, or 1 / it.
    missing_reward_share: largest share of answers without a finite reward in one batch.
    masked_share: largest share of answers that are masked as sampler and trainer are apart (in bf16_autocast alone).
    value_loss_max: value loss above it; value_loss_factor: or above so many times the smallest batch's, if over value_loss_floor.
    entropy_min: nats a token, together with `distinct_share_min`: fewer different answers than this share of the batch.
    length_factor: mean answer length against the first batch's.
    hacking_reward, hacking_quality: model reward up by so many deviations while the verifier's share falls by so much,
        last three batches against first three; of looks at validation prompts, the newest against the first.
    hacking_disagreement, hacking_length: where no validation prompt has a reference, quality falls when the ensemble's members are apart
        by so many deviations more than at the first look, or answers are so many times as long.
    """

    consecutive: int = 3
    kl_noise: float = 0.5
    kl_negative: float = -1.0
    kl_max: float = 50.0
    ratio_max: float = 2.0
    missing_reward_share: float = 0.2
    value_loss_max: float = 100.0
    value_loss_factor: float = 20.0
    value_loss_floor: float = 5.0
    entropy_min: float = 0.01
    distinct_share_min: float = 0.3
    length_factor: float = 3.0
    hacking_reward: float = 1.0
    hacking_quality: float = 0.2
    masked_share: float = 0.2
    hacking_disagreement: float = 0.5
    hacking_length: float = 2.0

    def __post_init__(self) -> None:
        if self.kl_negative >= 0 or self.kl_noise < 0 or self.kl_max <= 0 or self.consecutive < 1:
            raise SpecError(f"guards: kl_negative must be below 0, kl_noise not, kl_max and consecutive above 0: {self}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "GuardLimits":
        names = [f.name for f in fields(cls)]
        if unknown := set(config) - set(names):
            raise SpecError(f"guards.{sorted(unknown)[0]} is not a limit; there are {', '.join(names)}")
        return cls(**config)


@dataclass(frozen=True)
class BatchFigures:
    """What the guards look at after one iteration. `verified` is the share the verifier found right, None without one."""

    kl: float
    ratio: float
    policy_loss: float
    value_loss: float
    entropy: float
    mean_length: float
    distinct_share: float
    model_reward: float
    verified: float | None


class HeldOutLook(Protocol):
    """What the guards look at of a look at validation prompts (`heldout.Look`)."""

    @property
    def reward(self) -> float: ...

    @property
    def tokens(self) -> float: ...

    @property
    def verified(self) -> float | None: ...

    @property
    def disagreement(self) -> float | None: ...


@dataclass
class _History:
    below_zero: int = 0
    too_far: int = 0
    value_diverging: int = 0
    collapsed: int = 0
    too_long: int = 0
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
        self._kl(batch)
        self._value(batch)
        self._collapse(batch)
        self._length(batch)
        self._hacking(batch)

    def _finite(self, batch: BatchFigures) -> None:
        for name, value in asdict(batch).items():
            if value is not None and not math.isfinite(value):
                raise GuardStop("non_finite", f"{name} is {value}")

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


def _rise(series: list[float]) -> float:
    return math.fsum(series[-3:]) / 3 - math.fsum(series[:3]) / 3
