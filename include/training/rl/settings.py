"""The identity settings of PPO, read once, with the constants of the field as defaults."""

from dataclasses import dataclass

from include.domain.errors import SpecError
from include.runtime.settings import Settings
from include.training.lora import LoraSettings
from include.training.rl.guard_limits import GuardLimits
from include.training.rl.kl_controller import KlController

KEYS = [
    "iterations",
    "prompts_per_iteration",
    "max_new_tokens",
    "temperature",
    "epochs",
    "minibatch",
    "learning_rate",
    "critic_learning_rate",
    "kl",
    "clip",
    "value_clip",
    "gamma",
    "lam",
    "value_coefficient",
    "whiten",
    "reward",
    "precision",
    "engine",
    "zero_stage",
    "optimizer",
    "attention",
    "deterministic",
    "max_grad_norm",
    "weight_decay",
    "betas",
    "max_length",
    "ratio_tolerance",
    "ratio_tolerance_bf16",
    "guards",
    "eval_rows",
    "generation",
    "lag",
    "heldout",
    "lora",
]
COMBINE = ("mean", "minimum")


@dataclass(frozen=True)
class RewardMix:
    """score = model_weight × clip(combined normalised rewards) + verifier_weight × verifier − length_penalty × used share of max_new_tokens.

    The verifier's part belongs to prompts with a reference; the others have the rest.
    """

    model_weight: float
    verifier_weight: float
    length_penalty: float
    clip: float
    combine: str

    @classmethod
    def of(cls, section: Settings) -> "RewardMix":
        section.only("model_weight", "verifier_weight", "length_penalty", "clip", "combine")
        mix = cls(
            section.number("model_weight", 1.0),
            section.number("verifier_weight", 1.0),
            section.number("length_penalty", 0.0),
            section.number("clip", 5.0),
            section.text("combine", COMBINE, "mean"),
        )
        if not (mix.model_weight or mix.verifier_weight):
            raise SpecError("config.reward: model_weight and verifier_weight are both 0: there is nothing to optimise")
        return mix


@dataclass(frozen=True)
class LagSettings:
    """Generators beside the trainer, and how old their answers may be.

    limit: published versions between the actor that wrote an answer and the trainer's at use.
    ahead: iterations the generator may be ahead of the newest weights; above `limit`, answers too old are made.
    too_old: drop (and draw again), or weight: keep, and weigh less.
    weight_cap: truncation of the importance weight π/μ of each token at lag > 0; past the limit it is truncated at 1.
    wait_s: so long the trainer waits for the next portion before it draws the rest itself, or (steady) starts the generator again.
    steady: each iteration is drawn by the version `limit` behind it; then there is neither `ahead` nor `too_old` to choose.
    """

    limit: int
    ahead: int
    too_old: str
    weight_cap: float
    wait_s: float
    steady: bool = False

    @classmethod
    def of(cls, config: Settings) -> "LagSettings | None":
        """None where the trainer draws its own answers (config.generation in_process, as in a configuration that does not say)."""
        section = config.section("lag", {})
        section.only("limit", "ahead", "too_old", "weight_cap", "wait_s")
        generation = config.text("generation", ("apart", "in_process", "own_process"), "in_process")
        if generation == "in_process":
            return None
        limit = section.integer("limit", 1)
        lag = cls(
            limit,
            limit if section.values.get("ahead") is None else section.integer("ahead"),
            section.text("too_old", ("drop", "weight"), "drop"),
            section.number("weight_cap", 2.0),
            section.number("wait_s", 600.0),
            generation == "apart",
        )
        if lag.steady and (lag.ahead, lag.too_old) != (lag.limit, "drop"):
            raise SpecError(
                "config.lag: with generation apart each iteration is drawn by the version `limit` behind it: ahead and too_old are for own_process"
            )
        if lag.limit < 0 or lag.ahead < 0 or lag.weight_cap < 1 or lag.wait_s <= 0:
            raise SpecError(f"config.lag: limit and ahead must not be below 0, weight_cap at least 1, wait_s above 0: {lag}")
        return lag


@dataclass(frozen=True)
class PpoSettings:
    """One iteration: prompts_per_iteration answers, `epochs` passes over them in minibatches of `minibatch` answers."""

    iterations: int
    prompts_per_iteration: int
    max_new_tokens: int
    max_length: int
    temperature: float
    epochs: int
    minibatch: int
    learning_rate: float
    critic_learning_rate: float
    clip: float
    value_clip: float
    gamma: float
    lam: float
    value_coefficient: float
    whiten: bool
    precision: str
    attention: str
    ratio_tolerance: float
    ratio_tolerance_bf16: float
    reward: RewardMix
    lag: LagSettings | None = None
    lora: LoraSettings | None = None

    @classmethod
    def of(cls, config: Settings) -> "PpoSettings":
        config.only(*KEYS)
        settings = cls(
            iterations=config.positive("iterations"),
            prompts_per_iteration=config.positive("prompts_per_iteration"),
            max_new_tokens=config.positive("max_new_tokens"),
            max_length=config.positive("max_length", 256),
            temperature=config.number("temperature", 1.0),
            epochs=config.positive("epochs", 1),
            minibatch=config.positive("minibatch", config.positive("prompts_per_iteration")),
            learning_rate=config.number("learning_rate"),
            critic_learning_rate=config.number("critic_learning_rate"),
            clip=config.number("clip", 0.2),
            value_clip=config.number("value_clip", 0.5),
            gamma=config.number("gamma", 1.0),
            lam=config.number("lam", 0.95),
            value_coefficient=config.number("value_coefficient", 0.5),
            whiten=config.flag("whiten", True),
            precision=config.text("precision", ("fp32", "bf16_autocast"), "fp32"),
            attention=config.text("attention", ("sdpa", "eager"), "sdpa"),
            ratio_tolerance=config.number("ratio_tolerance", 1e-4),
            ratio_tolerance_bf16=config.number("ratio_tolerance_bf16", 0.2),
            reward=RewardMix.of(config.section("reward", {})),
            lag=LagSettings.of(config),
            lora=LoraSettings.of(config),
        )
        if settings.temperature <= 0:
            raise SpecError(f"config.temperature is {settings.temperature}: PPO samples, so it must be above 0")
        if settings.lora is not None and settings.lora.dropout:
            raise SpecError(
                f"config.lora.dropout is {settings.lora.dropout}: PPO needs 0, as the first minibatch of an update must repeat the pass that gave "
                "the old log-probabilities (ratio 1)"
            )
        if settings.prompts_per_iteration % settings.minibatch:
            raise SpecError(f"config.minibatch {settings.minibatch} does not divide prompts_per_iteration {settings.prompts_per_iteration}")
        return settings


def kl_controller(config: Settings) -> KlController:
    return KlController.from_config(config.section("kl", {}).values)


def guard_limits(config: Settings) -> GuardLimits:
    return GuardLimits.from_config(config.section("guards", {}).values)
