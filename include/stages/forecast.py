"""What one stage will cost on the cluster it is about to be submitted to; what makes no sense is refused before it is paid.

Only what is certain is refused: state that no choice of batch makes smaller and that the device cannot hold, and preemption of a
job whose checkpoint takes longer than the work one is ready to lose. All else is a warning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from include.domain.errors import SpecError
from include.settings.clusters import Cluster
from include.settings.recipes import Recipe
from include.settings.stage import JobSettings, StageSettings
from include.stages.errors import StageError
from include.stages.estimate import StageCost, of_stage
from include.stages.hardware import Hardware, hardware_of, shape_of

STAGES = ("sft", "generate", "reward_model", "dpo", "ppo")
STALL_SHARE = 0.02
"""More of the time than this, stood still for checkpoints, is warned of."""
_SURE = 1.05
"""State above a device's memory by less than this is a warning: parameters are rounded, and memory is sold in two units."""


@dataclass(frozen=True)
class Measured:
    """A checkpoint's seconds as a report says them, and whose report it is."""

    seconds: float
    where: str


@dataclass(frozen=True)
class Forecast:
    """The estimate of a stage with the job it is about."""

    cost: StageCost
    job: JobSettings
    measured: Measured | None = None

    @property
    def save_s(self) -> float:
        return self.measured.seconds if self.measured else self.cost.save_s

    @property
    def stall_share(self) -> float:
        return self.cost.stall_share(self.save_s)

    def to_json(self) -> dict[str, float]:
        """Flat figures that the report sets against what was seen."""
        cost, seconds = self.cost, max(self.cost.total_s, 1e-9)
        return {
            "tokens": cost.tokens,
            "seconds": round(cost.total_s, 3),
            "tokens_per_s": round(cost.tokens / seconds, 3),
            "memory_gb": round(cost.memory_gb, 3),
            **({"checkpoint_gb": round(cost.checkpoint_gb, 4), "save_s": round(cost.save_s, 3)} if cost.checkpoint_gb else {}),
        }

    def lines(self) -> list[str]:
        """For a task's log."""
        cost, hardware = self.cost, self.cost.hardware
        limit = f" of {hardware.memory_gb:.4g}" if hardware.memory_gb else ""
        found = [
            f"Estimate of {cost.stage}, an upper bound, on {hardware.devices} {'process(es)' if hardware.cpu else 'device(s)'}:",
            f"  time        {_span(cost.total_s)} ({', '.join(f'{name} {_span(value)}' for name, value in cost.seconds.items())}), "
            f"{cost.device_hours:.3g} device-hours, {cost.tokens:.3g} tokens; asked for are {self.job.time_limit_minutes} min an attempt",
            f"  memory      {cost.memory_gb:.3g}{limit} GB a device: "
            + ", ".join(f"{name} {value:.3g}" for name, value in cost.memory.items()),
        ]
        if cost.phases:
            found.append("  by phase    " + ", ".join(f"{name} {value:.3g}" for name, value in cost.phases.items()) + " GB")
        if cost.host_gb:
            found.append(self._node_line())
        if cost.checkpoint_gb:
            told = (
                f"{self.save_s:.3g} s measured in {self.measured.where}"
                if self.measured
                else f"{cost.save_s:.3g} s at {hardware.store_mb_s:g} MB/s"
            )
            found.append(f"  checkpoint  {cost.checkpoint_gb:.3g} GB, {told}, one every {_span(cost.interval_s)}")
            found.append(f"  standstill  {self.stall_share:.2%} of the time for checkpoints but the last, which is waited for")
        return found

    def _node_line(self) -> str:
        """What the processes have for themselves, and the pages of files beside it. That these don't all fit is said, and no reason to warn."""
        cost, limit = self.cost, self.cost.hardware.host_memory_gb
        phases = f" ({', '.join(f'{name} {value:.4g}' for name, value in cost.host_phases.items())})" if cost.host_phases else ""
        over = limit is not None and cost.host_gb + cost.mapped_gb > limit
        tight = "; they do not all fit beside it, so some are dropped and read again" if over else ", which may be dropped and read again"
        of = f" of {limit:.4g}" if limit is not None else ""
        return f"  node memory {cost.host_gb:.4g}{of} GB of its processes{phases}, and {cost.mapped_gb:.4g} GB of mapped files once a node{tight}"

    def warnings(self) -> list[str]:
        """What will probably not go as asked."""
        cost, hardware, found = self.cost, self.cost.hardware, []
        if hardware.memory_gb and cost.memory_gb > hardware.memory_gb:
            found.append(
                f"{cost.memory_gb:.3g} GB a device are estimated, it has {hardware.memory_gb:.4g}: a smaller micro_batch, a higher zero_stage, "
                "offload, more processes that share the weights, or lora"
            )
        if hardware.host_memory_gb and cost.host_gb > hardware.host_memory_gb:
            found.append(
                f"{cost.host_gb:.4g} GB of a node's memory are estimated beside mapped files, job.memory_gb asks for {hardware.host_memory_gb:.4g}"
            )
        if self.stall_share > STALL_SHARE:
            found.append(
                f"the work would stand still for {self.stall_share:.1%} of the time for its checkpoints, {STALL_SHARE:.0%} is usual: save_every_steps and "
                "save_every_minutes make them rarer, save_in_background writes them behind the work"
            )
        if self.job.preemptible and cost.checkpoint_gb and cost.interval_s > self._window_s:
            found.append(
                f"a preemption would lose up to {_span(cost.interval_s)} between two saves, job.accepted_loss_minutes is "
                f"{self.job.accepted_loss_minutes:g}: save_every_minutes makes them denser"
            )
        return found

    @property
    def _window_s(self) -> float:
        return 60 * self.job.accepted_loss_minutes

    def check(self) -> None:
        """Refuses what cannot be.

        Raises:
            StageError: with the numbers, and what would help.
        """
        self.check_fits()
        cost = self.cost
        if self.measured:
            check_preemption(cost.stage, self.job, self.measured)
        else:
            _check_window(cost.stage, self.job, cost.save_s, f"{cost.checkpoint_gb:.4g} GB at {cost.hardware.store_mb_s:g} MB/s")

    def check_fits(self) -> None:
        """Refuses what no device of the job can hold, whatever was measured.

        Raises:
            StageError: with the numbers, and what would help.
        """
        cost, limit = self.cost, self.cost.hardware.memory_gb
        if limit and not cost.hardware.cpu and cost.state_gb > _SURE * limit:
            frozen = " or frozen: host" if cost.stage == "ppo" else " or use lora"
            raise StageError(
                f"{cost.stage} cannot fit: weights, gradients and moments alone take {cost.state_gb:.4g} GB a device, it has {limit:.4g} GB "
                f"({cost.hardware.devices} devices). Spread them (zero_stage, tensor_parallel, more job.tasks), offload,{frozen}"
            )


def check_preemption(stage: str, job: JobSettings, measured: Measured | None) -> None:
    """Refuses preemption where a checkpoint was seen to take longer than the work one is ready to lose; it needs no estimate.

    Raises:
        StageError: with both numbers, and where the first is from.
    """
    if measured is not None:
        _check_window(stage, job, measured.seconds, f"measured in {measured.where}")


def _check_window(stage: str, job: JobSettings, save_s: float, told: str) -> None:
    window_s = 60 * job.accepted_loss_minutes
    if job.preemptible and save_s > window_s:
        raise StageError(
            f"{stage} must not be preemptible: a checkpoint takes {save_s:.4g} s ({told}), and the work one is ready to lose is "
            f"{window_s:g} s. Set job.preemptible: false, or a larger job.accepted_loss_minutes"
        )


def forecast(recipe: Recipe, stage: str, cluster: Cluster, measured: Measured | None = None) -> Forecast | None:
    """The forecast of a stage; None for stages that neither train nor generate, and where cluster or recipe say too little."""
    if stage not in STAGES:
        return None
    settings: StageSettings = getattr(recipe, stage)
    hardware = hardware_of(cluster, settings.job)
    if hardware is None:
        return None
    try:
        shape = shape_of(recipe)
    except SpecError:
        return None
    return Forecast(of_stage(stage, recipe, shape, _at(hardware)), settings.job, measured)


def _at(hardware: Hardware) -> Any:
    return lambda settings: hardware


def measured_in(reports: Mapping[str, Any]) -> Measured | None:
    """The longest save among reports by name, as far as they tell one."""
    found = []
    for where, report in reports.items():
        seconds = report.get("summary", {}).get("checkpoints", {}).get("longest_s", 0.0)
        if isinstance(seconds, (int, float)) and seconds > 0:
            found.append(Measured(float(seconds), where))
    return max(found, key=lambda one: one.seconds, default=None)


def compared(summary: Mapping[str, Any]) -> list[str]:
    """What was estimated and what was seen, as a report's summary has them; [] where nothing was estimated."""
    rows = summary.get("estimate")
    if not isinstance(rows, Mapping) or not rows:
        return []
    found = [f"{'estimated and seen':20}{'estimated':>12}{'seen':>12}{'seen/est.':>12}"]
    for name, row in rows.items():
        found.append(f"{name:20}{row['estimated']:>12.4g}{row['seen']:>12.4g}{row['ratio']:>12.3g}")
    return found


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
