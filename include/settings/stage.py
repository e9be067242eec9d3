"""What the settings of every stage that runs as a job have."""

from typing import Literal, Self

from pydantic import Field, model_validator

from include.settings.base import Settings, added_placement, placement

Precision = Literal["fp32", "bf16_autocast"]


_OFFLOAD_NEEDS = {"none": 0, "optimizer": 1, "parameters": 3}
"""Offload → the lowest ZeRO stage that can do it."""


def check_offload(offload: str, zero_stage: int) -> None:
    """Refuses an offload that the ZeRO stage cannot do."""
    if zero_stage < (lowest := _OFFLOAD_NEEDS[offload]):
        raise ValueError(f"offload: {offload} needs zero_stage {lowest} at least, this recipe has {zero_stage}")


class JobSettings(Settings):
    """How a job is placed; nothing here is identity. Resources left out come from the cluster's defaults for the stage."""

    partition: str | None = None
    time_limit_minutes: int = 60
    tasks: int | None = Field(None, ge=1)
    """Processes that share the work, each with `cpus` CPUs; SFT, reward model, DPO and PPO take more than one."""
    cpus: int | None = None
    memory_gb: float | None = None
    gpus: int | None = None
    nodes: int = 1
    preemptible: bool = False
    accepted_loss_minutes: float = added_placement(10.0, gt=0)
    """Work one is ready to do again after a preemption; a preemptible job whose checkpoint takes longer than that is refused."""
    heavy: bool = True
    """Takes one licence `heavy` where the cluster has it, so that heavy jobs run one at a time."""
    max_parallel: int | None = added_placement(None, ge=1)
    """So many parts of a stage that is made in parts run at once; left out: as many as the cluster takes."""
    max_wait_h: float | None = added_placement(None, gt=0)
    """How long the job may wait for its start; left out: as long as the cluster's `max_wait_h`."""


class StageSettings(Settings):
    """What every stage has."""

    job: JobSettings = placement(JobSettings())
    threads: int = placement(2, ge=1)
    log_every_steps: int = placement(1, ge=1)
    save_every_steps: int = placement(10, ge=1)
    save_every_minutes: float = placement(0.0, ge=0)
    """0: by steps alone; else whichever comes first."""
    save_in_background: bool = placement(True)
    """Training goes on while a checkpoint is written; the next save waits for it."""
    keep_checkpoints: int = placement(2, ge=1)
    keep_every_steps: int = placement(0, ge=0)
    """Milestones: checkpoints of these steps stay; 0: none."""
    keep_best: int = placement(0, ge=0)
    """So many checkpoints stay, the newest ones, with which the validation figure was the best so far; 0: none for that reason."""

    @model_validator(mode="after")
    def _a_best_to_keep(self) -> Self:
        if self.keep_best and (why := self.no_best()) is not None:
            raise ValueError(f"keep_best {self.keep_best}: {why}")
        return self

    def no_best(self) -> str | None:
        """Why no checkpoint of this stage can be called the best; None where one can."""
        return "this stage looks at no validation rows while it runs, so none of its checkpoints is the best; leave it out"
