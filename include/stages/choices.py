"""The tables of `align estimate`: what the stages cost, and what other choices would."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from include.settings.recipes import Recipe
from include.stages.estimate import StageCost, estimate
from include.stages.hardware import At, Hardware
from include.stages.memory import Shape
from include.stages.rates import unusual_rate


@dataclass(frozen=True)
class Choice:
    """One thing that could be chosen otherwise: hours by the clock and of the devices, and what is slow then."""

    name: str
    hours: float
    device_hours: float
    slowest: str


def choices(recipe: Recipe, shape: Shape, at: At) -> list[Choice]:
    """What more rollouts, a larger model, more devices, and the other method would cost."""
    ppo = recipe.ppo.model_copy(update={"prompts_per_iteration": 2 * recipe.ppo.prompts_per_iteration})
    rollouts = recipe.model_copy(update={"ppo": ppo})
    larger = replace(shape, parameters=2 * shape.parameters)

    def twice(settings: Any) -> Hardware:
        return at(settings).times(2)

    return [
        _choice("dpo", recipe, shape, at, "dpo"),
        _choice("ppo", recipe, shape, at, "ppo"),
        _choice("ppo, twice the rollouts", rollouts, shape, at, "ppo"),
        _choice(f"{recipe.method}, twice the model", recipe, larger, at, recipe.method),
        _choice(f"{recipe.method}, twice the devices", recipe, shape, twice, recipe.method),
    ]


def _choice(name: str, recipe: Recipe, shape: Shape, at: At, method: str) -> Choice:
    stages = estimate(recipe, shape, at, method)
    slowest = max(stages, key=lambda stage: stage.total_s)
    hours = math.fsum(stage.total_s for stage in stages) / 3600
    device_hours = math.fsum(stage.device_hours for stage in stages)
    return Choice(name, hours, device_hours, f"{slowest.stage}: {slowest.bottleneck}")


def rendered(recipe: Recipe, shape: Shape, at: At, method: str | None = None) -> str:
    """All tables as text."""
    stages = estimate(recipe, shape, at, method)
    one = stages[0].hardware
    memory = f"{one.memory_gb:g} GB, " if one.memory_gb else ""
    fp32 = f" ({one.fp32_tflops:g} in float32)" if one.fp32_tflops else ""
    lines = [
        f"{recipe.reference}: {shape.parameters:.4g} parameters; a device has {one.peak_tflops:g} TFLOP/s{fp32}, {one.bandwidth_gb_s:g} GB/s, "
        f"{memory}at {one.utilisation:.0%} of the peak. Upper bounds.",
        f"{'stage':14}{'devices':>8}{'tokens':>10}{'hours':>10}{'device-h':>10}{'GB/device':>11}{'checkpoint GB':>15}{'save s':>8}{'MB/s':>9}{'stall':>8}  slow is",
    ]
    for stage in stages:
        lines.append(
            f"{stage.stage:14}{stage.hardware.devices:>8}{stage.tokens:>10.3g}{stage.total_s / 3600:>10.3g}"
            f"{stage.device_hours:>10.3g}{stage.memory_gb:>11.3g}{stage.checkpoint_gb:>15.3g}{stage.save_s:>8.3g}"
            f"{stage.checkpoint_mb_s:>9.3g}{stage.stall_share():>8.2%}  {stage.bottleneck}{_fit(stage)}"
        )
    lines += ["", "Memory of a device, GB"]
    lines += [f"{stage.stage:14}" + _parts(stage.memory) + _node(stage) for stage in stages]
    lines += ["", f"{'if':28}{'hours':>10}{'device-h':>10}  slow is"]
    lines += [
        f"{choice.name:28}{choice.hours:>10.3g}{choice.device_hours:>10.3g}  {choice.slowest}"
        for choice in choices(recipe, shape, at)
    ]  # fmt: skip
    lines += [said for stage in ("dpo", "ppo") if (said := unusual_rate(recipe, stage)) is not None]
    lines.append("Evaluation, the shadow run, queues and people's time are not in it.")
    return "\n".join(lines)


def _fit(stage: StageCost) -> str:
    limit = stage.hardware.memory_gb
    if limit is None or stage.memory_gb <= limit:
        return ""
    if stage.state_gb > limit:
        return "  does not fit: a higher zero_stage, more processes that share the weights, offload or lora"
    return "  may not fit: a smaller micro_batch, a higher zero_stage, offload or lora"


def _parts(memory: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in memory.items())


def _node(stage: StageCost) -> str:
    phases = f"; by phase: {_parts(stage.phases)}" if stage.phases else ""
    by_phase = ", ".join(f"{name} {value:.4g}" for name, value in stage.host_phases.items())
    of_a_node = f"; of a node {stage.host_gb:.4g}{f' ({by_phase})' if by_phase else ''} and mapped files {stage.mapped_gb:.4g}"
    return phases + (of_a_node if stage.host_gb else "")
