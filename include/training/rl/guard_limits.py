"""What PPO's guards go by: their thresholds, what they are shown of a batch, and the checks that a stop names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
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
    "signal": (
        "rewards: do score_p05 and score_p95 in metrics.jsonl ever differ? Do the reward model's scores of two unlike answers?",
        "verifier: does it read the references, and does the policy ever get one right? Begin with easier prompts or a better policy",
        "learning: is the actor's learning rate above 0, are its weights trainable, does any answer count (missing_rewards, answers_masked)?",
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
    "no_gradient": ("signal",),
    "reward_flat": ("signal",),
    "non_finite": ("kl", "value"),
}


class GuardStop(GuardTripped):
    """A guard ended the run: its name, what was seen, and the checks in the order in which they pay."""

    def __init__(self, guard: str, seen: str) -> None:
        checks = [check for family in _FAMILY[guard] for check in CHECKS[family]]
        listed = " ".join(f"({i}) {check}" for i, check in enumerate(checks, 1))
        levers = "" if {"modes", "signal"} & set(_FAMILY[guard]) else f" {LEVERS}"
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
    entropy_floor: nats a token, alone: below it `consecutive` times in a row nothing is explored any more, and answers differ only as their
        prompts do. Not where every answer is verified as right. 0 looks at nothing.
    flat_iterations: so many iterations in a row all rewards are one number, and not every answer is verified as right. 0 looks at nothing.
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
    entropy_floor: float = 1e-3
    flat_iterations: int = 10

    def __post_init__(self) -> None:
        if self.kl_negative >= 0 or self.kl_noise < 0 or self.kl_max <= 0 or self.consecutive < 1:
            raise SpecError(f"guards: kl_negative must be below 0, kl_noise not, kl_max and consecutive above 0: {self}")
        if self.entropy_floor < 0 or self.flat_iterations < 0:
            raise SpecError(f"guards: entropy_floor and flat_iterations must not be below 0, which looks at nothing: {self}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "GuardLimits":
        names = [f.name for f in fields(cls)]
        if unknown := set(config) - set(names):
            raise SpecError(f"guards.{sorted(unknown)[0]} is not a limit; there are {', '.join(names)}")
        return cls(**config)


@dataclass(frozen=True)
class BatchFigures:
    """What the guards look at after one iteration.

    verified: share the verifier found right, None without one. gradient_norm: mean of the actor's over the update's steps.
    advantage_spread: largest advantage less the smallest before whitening; without whitening the largest. score_spread: largest reward less
    the smallest, None for one answer an iteration.
    """

    kl: float
    ratio: float
    policy_loss: float
    value_loss: float
    entropy: float
    mean_length: float
    distinct_share: float
    model_reward: float
    verified: float | None
    gradient_norm: float
    advantage_spread: float
    score_spread: float | None


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
