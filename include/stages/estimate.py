"""What a recipe will cost, before anything is paid: tokens, device-hours, memory, checkpoint bytes, and where it is slow.

Upper bounds from the recipe's own numbers: every sequence is taken as long as it may be. Arithmetic of a token, with N
parameters: 2N forward, 6N forward and backward (Kaplan et al. 2020, section 2.1); with frozen weights under adapters 4N.
Decoding is bound by the weights that must be read for each step, until its batch is large enough for the arithmetic.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from include.domain.errors import SpecError
from include.settings.recipes import Recipe
from include.settings.training import DpoSettings, OptimiserSettings, SftSettings, TinyModel

FORWARD, TRAIN, TRAIN_ADAPTER = 2.0, 6.0, 4.0
WEIGHT_BYTES = 4
"""float32 weights."""
CHECKPOINT_BYTES = 12
"""Weights and moments."""
ADAPTER_SHARE = 0.01
"""Trained share of the weights under adapters, about what rank 16 is on a 7 B model."""
_SIZE_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([MB])(?![A-Za-z])")


@dataclass(frozen=True)
class Hardware:
    """One device, and how many there are. utilisation: share of the peak that training reaches (MFU)."""

    devices: int = 8
    peak_tflops: float = 989.0
    bandwidth_gb_s: float = 3350.0
    memory_gb: float = 80.0
    utilisation: float = 0.4

    def __post_init__(self) -> None:
        if self.devices < 1 or min(self.peak_tflops, self.bandwidth_gb_s, self.memory_gb) <= 0 or not 0 < self.utilisation <= 1:
            raise SpecError(f"estimate: devices, tflops, bandwidth and memory must be above 0, utilisation in (0, 1]: {self}")

    def seconds(self, flop: float) -> float:
        return flop / (self.devices * self.peak_tflops * 1e12 * self.utilisation)

    def decoding_seconds(self, parameters: float, rows: float, tokens: int, batch: int) -> float:
        """`rows` answers of `tokens` tokens, `batch` at a time on each device."""
        together = min(batch, math.ceil(rows / self.devices))
        a_step = max(
            2 * parameters / (self.bandwidth_gb_s * 1e9), FORWARD * parameters * together / (self.peak_tflops * 1e12 * self.utilisation)
        )
        return a_step * tokens * math.ceil(rows / (together * self.devices))


@dataclass(frozen=True)
class StageCost:
    """Of one stage: tokens it computes on, seconds by part, bytes of memory a device and of one checkpoint, saves a second."""

    stage: str
    tokens: float
    seconds: Mapping[str, float]
    memory_gb: float
    checkpoint_gb: float
    checkpoint_mb_s: float

    @property
    def total_s(self) -> float:
        return math.fsum(self.seconds.values())

    @property
    def bottleneck(self) -> str:
        return max(self.seconds, key=lambda part: self.seconds[part])


def parameters_of(recipe: Recipe) -> float:
    """The size of the recipe's base: from its shape, or as its file's name says (…135M…).

    Raises:
        SpecError: neither says it.
    """
    if recipe.base.tiny is not None:
        return float(_parameters_of_shape(recipe.base.tiny))
    found = _SIZE_IN_NAME.search(recipe.base.file)
    if found is None:
        raise SpecError(f"recipe {recipe.name}: the name of its base, {recipe.base.file}, tells no size; give --parameters, such as 7e9")
    return float(found.group(1)) * {"M": 1e6, "B": 1e9}[found.group(2)]


def _parameters_of_shape(shape: TinyModel) -> int:
    """Embedding (tied), and in each layer four attention matrices and three of a SwiGLU block of 8/3 the width."""
    return shape.vocab_size * shape.hidden_size + shape.layers * (4 + 8) * shape.hidden_size**2


def estimate(recipe: Recipe, parameters: float, hardware: Hardware, method: str | None = None) -> list[StageCost]:
    """The stages that train or generate, in their order; `method`: dpo or ppo, by default the recipe's."""
    last = _ppo if (method or recipe.method) == "ppo" else _dpo
    return [
        _sft(recipe, parameters, hardware),
        _generate(recipe, parameters, hardware),
        _reward(recipe, parameters, hardware),
        last(recipe, parameters, hardware),
    ]


def _trained(settings: OptimiserSettings, n: float, hardware: Hardware) -> tuple[float, float, float]:
    """(arithmetic of a token, bytes a device of the trained model, bytes of a checkpoint)."""
    adapters = isinstance(settings, (SftSettings, DpoSettings)) and settings.lora is not None
    share = ADAPTER_SHARE if adapters else 1.0
    memory = _state_bytes(n, settings.zero_stage, hardware, share)
    return (TRAIN_ADAPTER if adapters else TRAIN) * n, memory, n * share * CHECKPOINT_BYTES


def _state_bytes(n: float, zero_stage: int, hardware: Hardware, share: float = 1.0) -> float:
    """Weights, gradients and moments of a trained model on each device; `share` of the weights is trained."""
    weights = n * WEIGHT_BYTES / (hardware.devices if zero_stage >= 3 else 1)
    gradients = n * share * 4 / (hardware.devices if zero_stage >= 2 else 1)
    moments = n * share * 8 / (hardware.devices if zero_stage >= 1 else 1)
    return weights + gradients + moments


def _cost(stage: str, settings: OptimiserSettings, tokens: float, seconds: dict[str, float], memory: float, checkpoint: float) -> StageCost:
    interval = max(math.fsum(seconds.values()) / settings.steps * settings.save_every_steps, 1e-9)
    return StageCost(stage, tokens, seconds, memory / 1e9, checkpoint / 1e9, checkpoint / 1e6 / interval)


def _sft(recipe: Recipe, n: float, hardware: Hardware) -> StageCost:
    settings = recipe.sft
    tokens = float(settings.steps * settings.global_batch * settings.max_length)
    flop, memory, checkpoint = _trained(settings, n, hardware)
    return _cost("sft", settings, tokens, {"training": hardware.seconds(flop * tokens)}, memory, checkpoint)


def _generate(recipe: Recipe, n: float, hardware: Hardware) -> StageCost:
    settings = recipe.generate
    rows = settings.prompt_limit * settings.candidates_per_prompt
    new = settings.sampling.max_new_tokens
    seconds = {"decoding": hardware.decoding_seconds(n, rows, new, settings.generation_batch)}
    return StageCost("generate", float(rows * new), seconds, n * WEIGHT_BYTES / 1e9, 0.0, 0.0)


def _reward(recipe: Recipe, n: float, hardware: Hardware) -> StageCost:
    settings = recipe.reward_model
    tokens = float(2 * settings.steps * settings.global_batch * settings.max_length)
    flop, memory, checkpoint = _trained(settings, n, hardware)
    members = max(1, len(settings.seeds))
    return _cost("reward_model", settings, members * tokens, {"training": members * hardware.seconds(flop * tokens)}, memory, checkpoint)


def _dpo(recipe: Recipe, n: float, hardware: Hardware) -> StageCost:
    settings = recipe.dpo
    tokens = float(2 * settings.steps * settings.global_batch * settings.max_length)
    flop, memory, checkpoint = _trained(settings, n, hardware)
    seconds = {"training": hardware.seconds(flop * tokens), "reference": hardware.seconds(FORWARD * n * tokens)}
    return _cost("dpo", settings, tokens, seconds, memory + n * WEIGHT_BYTES, checkpoint)


def _ppo(recipe: Recipe, n: float, hardware: Hardware) -> StageCost:
    """Actor and critic are trained, reference and reward models score; the sampler reads the actor."""
    settings = recipe.ppo
    rows, members = settings.iterations * settings.prompts_per_iteration, max(1, len(recipe.reward_model.seeds))
    tokens = float(rows * settings.max_length)
    decoding = settings.iterations * hardware.decoding_seconds(
        n, settings.prompts_per_iteration, settings.max_new_tokens, settings.generation_batch
    )
    seconds = {
        "decoding": decoding,
        "scoring": hardware.seconds((3 + members) * FORWARD * n * tokens),  # reference, value, the actor's own log-probabilities, rewards
        "training": hardware.seconds(2 * TRAIN * n * settings.epochs * tokens),
    }
    interval = max(math.fsum(seconds.values()) / settings.iterations * settings.save_every_steps, 1e-9)
    checkpoint = 2 * n * CHECKPOINT_BYTES
    copies = 1 + members + (settings.zero_stage == 3)  # the frozen models; where the actor is cut up, a whole one to draw with
    memory = 2 * _state_bytes(n, settings.zero_stage, hardware) + n * copies * WEIGHT_BYTES
    return StageCost("ppo", tokens, seconds, memory / 1e9, checkpoint / 1e9, checkpoint / 1e6 / interval)


@dataclass(frozen=True)
class Choice:
    """One thing that could be chosen otherwise: hours by the clock and of the devices, and what is slow then."""

    name: str
    hours: float
    device_hours: float
    slowest: str


def choices(recipe: Recipe, parameters: float, hardware: Hardware) -> list[Choice]:
    """What more rollouts, a larger model, more devices, and the other method would cost."""
    ppo = recipe.ppo.model_copy(update={"prompts_per_iteration": 2 * recipe.ppo.prompts_per_iteration})
    rollouts = recipe.model_copy(update={"ppo": ppo})
    twice = replace(hardware, devices=2 * hardware.devices)
    return [
        _choice("dpo", recipe, parameters, hardware, "dpo"),
        _choice("ppo", recipe, parameters, hardware, "ppo"),
        _choice("ppo, twice the rollouts", rollouts, parameters, hardware, "ppo"),
        _choice(f"{recipe.method}, twice the model", recipe, 2 * parameters, hardware, recipe.method),
        _choice(f"{recipe.method}, twice the devices", recipe, parameters, twice, recipe.method),
    ]


def _choice(name: str, recipe: Recipe, parameters: float, hardware: Hardware, method: str) -> Choice:
    stages = estimate(recipe, parameters, hardware, method)
    slowest = max(stages, key=lambda stage: stage.total_s)
    hours = math.fsum(stage.total_s for stage in stages) / 3600
    return Choice(name, hours, hours * hardware.devices, f"{slowest.stage}: {slowest.bottleneck}")


def rendered(recipe: Recipe, parameters: float, hardware: Hardware, method: str | None = None) -> str:
    """Both tables as text."""
    stages = estimate(recipe, parameters, hardware, method)
    lines = [
        f"{recipe.reference}: {parameters:.4g} parameters on {hardware.devices} devices of {hardware.peak_tflops:g} TFLOP/s, "
        f"{hardware.bandwidth_gb_s:g} GB/s, {hardware.memory_gb:g} GB, at {hardware.utilisation:.0%} of the peak. Upper bounds.",
        f"{'stage':14}{'tokens':>10}{'hours':>10}{'device-h':>10}{'GB/device':>11}{'checkpoint GB':>15}{'MB/s':>9}  slow is",
    ]
    for stage in stages:
        fits = "" if stage.memory_gb <= hardware.memory_gb else "  does not fit: a higher zero_stage, lora, or more devices"
        lines.append(
            f"{stage.stage:14}{stage.tokens:>10.3g}{stage.total_s / 3600:>10.3g}{stage.total_s * hardware.devices / 3600:>10.3g}"
            f"{stage.memory_gb:>11.3g}{stage.checkpoint_gb:>15.3g}{stage.checkpoint_mb_s:>9.3g}  {stage.bottleneck}{fits}"
        )
    lines += ["", f"{'if':28}{'hours':>10}{'device-h':>10}  slow is"]
    lines += [
        f"{choice.name:28}{choice.hours:>10.3g}{choice.device_hours:>10.3g}  {choice.slowest}"
        for choice in choices(recipe, parameters, hardware)
    ]
    lines.append("Memory is of weights, gradients and moments, without activations. Evaluation and people's time are not in it.")
    return "\n".join(lines)
