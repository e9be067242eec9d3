"""configs/clusters/*.yaml: where jobs run. Nothing here is part of a result's identity but the environment's digest."""

import re
from typing import Literal

from pydantic import Field, model_validator

from include.domain.environment import Environment
from include.settings.base import Settings


class StageDefaults(Settings):
    """Resources of a stage on this cluster, where the recipe leaves them open."""

    tasks: int = 1
    cpus: int = 1
    memory_gb: float = 4.0
    gpus: int = 0
    nodes: int = 1
    time_limit_minutes: int = 60


class DeviceSettings(Settings):
    """What estimates count with: one GPU, or on a cluster without them one CPU core. Nothing else reads it.

    utilisation: share of the peak that training reaches. store_mb_s: what the store takes in a second, of however many processes.
    host_gb_s: what one process copies in a second from the CPU's memory (pages of a file) to its GPU, and from it for a checkpoint.
    """

    name: str
    kind: Literal["gpu", "cpu"] = "gpu"
    bf16_tflops: float = Field(gt=0)
    fp32_tflops: float = Field(gt=0)
    bandwidth_gb_s: float = Field(gt=0)
    memory_gb: float | None = Field(None, gt=0)
    """Of a GPU; a CPU job's is what it asks for."""
    utilisation: float = Field(0.4, gt=0, le=1)
    store_mb_s: float = Field(1000.0, gt=0)
    host_gb_s: float = Field(8.0, gt=0)

    @model_validator(mode="after")
    def _has_memory(self) -> "DeviceSettings":
        if (self.kind == "gpu") != (self.memory_gb is not None):
            raise ValueError("`memory_gb` is a GPU's, and every GPU's; a CPU job has what it asks for")
        return self


class PreemptibleSettings(Settings):
    """What this cluster does with jobs of recipes that say `preemptible`. Left out: they run like all others."""

    partition: str | None = None
    qos: str | None = None
    requeue: bool = False
    """Slurm itself puts them back; else the task submits the next attempt."""


class ContainerSettings(Settings):
    """The image that jobs run in, pinned: `name@sha256:…`, or the path of an image file with its sha256."""

    runtime: Literal["pyxis", "apptainer"]
    image: str
    sha256: str | None = None
    mounts: tuple[str, ...] = ()
    gpus: bool = True

    @model_validator(mode="after")
    def _is_pinned(self) -> "ContainerSettings":
        if not re.fullmatch("(sha256:)?[0-9a-f]{64}", self.sha256 or self.image.rpartition("@")[2]):
            raise ValueError("`image` must end in @sha256:<64 hex>, or be the path of an image file with its `sha256`")
        return self

    @property
    def digest(self) -> str:
        """sha256:… of what is in the image; part of the identity of all that runs in it."""
        return "sha256:" + (self.sha256 or self.image.rpartition("@")[2]).removeprefix("sha256:")


class Cluster(Settings):
    """One Slurm cluster and the store its jobs see."""

    name: str
    slurm_conn_id: str
    """Airflow connection of type `slurm`."""
    store_access: Literal["sftp", "mounted"]
    """sftp: over the connection's SSH; mounted: the control plane sees the same path."""
    store_root: str = ""
    """Absolute POSIX path as jobs see it; empty: the environment variable ALIGN_STORE_ROOT."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    system: str = "linux"
    machine: str = "x86_64"
    python: str = "3.11"
    gpu_gres: str = "gpu"
    """How GPUs are asked for where `gpu_type` is not given, such as `gpu:h100`."""
    gpu_type: str | None = None
    """Asks for GPUs a node by type (`--gpus-per-node`) instead."""
    constraint: str | None = None
    """Features of the nodes, such as `h100&ib`."""
    reservation: str | None = None
    exclusive: bool = False
    """Whole nodes."""
    switches: int | None = None
    """At most so many leaf switches for a job of several nodes, waited for at most `switches_wait_s`."""
    switches_wait_s: int | None = None
    segment: int | None = None
    """Of a job of several nodes: so many come from one block of a block topology (Slurm 23.11 and later)."""
    preemptible: PreemptibleSettings = PreemptibleSettings()
    container: ContainerSettings | None = None
    modules: tuple[str, ...] = ()
    """Environment modules that are loaded before the program; a missing one fails the job."""
    heavy_licence: str | None = None
    """Slurm licence that a heavy job takes, so that one runs at a time."""
    nice: int | None = None
    pool: str = "slurm_submissions"
    """Airflow pool that limits submissions at once; where it is another, `ALIGN_SUBMISSION_POOL` names it to the DAG processor."""
    setup: tuple[str, ...] = ()
    """Shell lines before the program; written by the administrator, never by a user."""
    signal_lead_s: int = 90
    """How long a program has to save before its time limit, and when its run is given up, before it is cancelled."""
    max_wait_h: float | None = Field(168.0, gt=0)
    """How long a job may wait for its start, whatever the reason; then its task fails, and says why it waited. null: for ever."""
    max_unknown_s: int = 900
    visibility_deadline_s: int = 120
    orphan_age_s: int = 600
    """From this age on a job with our prefix that no record knows counts as an orphan; a younger one may be about to be recorded."""
    defaults: StageDefaults = StageDefaults()
    device: DeviceSettings | None = None
    """Left out: nothing is estimated before a job is submitted."""

    def environment(self, lock: str) -> Environment:
        """The environment of jobs here, given the lock file's sha256."""
        return Environment(lock, self.system, self.machine, self.python, self.container.digest if self.container else None)
