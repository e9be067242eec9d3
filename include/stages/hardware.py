"""What estimates count with: devices and how fast they are, from a cluster's configuration or from the command line."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from include.domain.errors import SpecError
from include.settings.clusters import Cluster
from include.settings.recipes import Recipe
from include.settings.stage import JobSettings, StageSettings
from include.settings.training import TinyModel
from include.stages.memory import Shape

_SIZE_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([MB])(?![A-Za-z])")
_WIDTH_TO_DEPTH = 128
"""Of the Llama family above a billion parameters: 32 layers of 4096, 80 of 8192."""
FORWARD = 2.0
HASH_GB_S = 1.0
"""What a core hashes by sha256 in a second, the lower end of what `openssl speed sha256` shows (decision 17)."""


@dataclass(frozen=True)
class Hardware:
    """Devices of one stage, one a process. utilisation: share of the peak that training reaches (MFU).

    fp32_tflops: None: as peak_tflops. memory_gb: of a device; None where it is not known. host_memory_gb: of a node.
    host_gb_s: what a process copies in a second between the CPU's memory and its device. processes_a_node: processes that share a node's memory.
    store_mb_s: what the store takes in a second, of however many processes. gpus_a_node: that the job has on each node, and held: on all of
    them, whoever uses them; None: not known, and `devices` are counted.
    """

    devices: int = 8
    peak_tflops: float = 989.0
    bandwidth_gb_s: float = 3350.0
    memory_gb: float | None = 80.0
    utilisation: float = 0.4
    fp32_tflops: float | None = None
    store_mb_s: float = 1000.0
    host_memory_gb: float | None = None
    processes_a_node: int = 1
    cpu: bool = False
    host_gb_s: float = 8.0
    gpus_a_node: int | None = None
    held: int | None = None

    def __post_init__(self) -> None:
        figures = (self.peak_tflops, self.bandwidth_gb_s, self.memory_gb or 1.0, self.fp32_tflops or 1.0, self.store_mb_s)
        if self.devices < 1 or min(figures) <= 0 or not 0 < self.utilisation <= 1:
            raise SpecError(f"estimate: devices, tflops, bandwidth and memory must be above 0, utilisation in (0, 1]: {self}")

    @property
    def counted(self) -> int:
        """Devices whose time is paid: all that the job holds."""
        return self.devices if self.held is None else self.held

    @property
    def nodes(self) -> int:
        """On which the processes are."""
        return math.ceil(self.devices / self.processes_a_node)

    def times(self, jobs: int) -> "Hardware":
        """That of so many jobs like this one."""
        return replace(self, devices=jobs * self.devices, held=None if self.held is None else jobs * self.held)

    def rate(self, precision: str) -> float:
        """Operations a second of one device."""
        peak = self.fp32_tflops if precision in ("fp32", "float32") and self.fp32_tflops else self.peak_tflops
        return peak * 1e12 * self.utilisation

    def seconds(self, flop: float, precision: str = "bf16_autocast") -> float:
        return flop / (self.devices * self.rate(precision))

    def decoding_seconds(self, parameters: float, rows: float, tokens: int, batch: int, dtype: str = "bfloat16") -> float:
        """`rows` answers of `tokens` tokens, `batch` at a time on each device."""
        together = min(batch, math.ceil(rows / self.devices))
        read = (2 if dtype == "bfloat16" else 4) * parameters / (self.bandwidth_gb_s * 1e9)
        a_step = max(read, FORWARD * parameters * together / self.rate(dtype))
        return a_step * tokens * math.ceil(rows / (together * self.devices))


At = Callable[[StageSettings], Hardware]
"""On what a stage runs."""


def shape_of(recipe: Recipe, parameters: float | None = None) -> Shape:
    """The size of the recipe's base: as it says, from its shape, or guessed from the size in its file's name (…135M…).

    Args:
        parameters: instead of what the recipe says.

    Raises:
        SpecError: neither says it.
    """
    said = recipe.base_source.shape
    if said is not None and parameters is None:
        return Shape(said.parameters, said.layers, said.hidden_size, said.vocab_size, said.kv_width or said.hidden_size)
    if recipe.base.tiny is not None and parameters is None:
        tiny = recipe.base.tiny
        return Shape(float(_parameters_of_shape(tiny)), tiny.layers, tiny.hidden_size, tiny.vocab_size, tiny.hidden_size)
    return _guessed(parameters if parameters is not None else _parameters_in_name(recipe))


def _guessed(parameters: float) -> Shape:
    """Layers and width of a Llama of this size: 12 × layers × width², with a width of 128 a layer."""
    hidden = max(64, round((parameters * _WIDTH_TO_DEPTH / 12) ** (1 / 3)))
    return Shape(parameters, max(1, round(hidden / _WIDTH_TO_DEPTH)), hidden, 32000 if parameters > 1e6 else 512, hidden)


def _parameters_in_name(recipe: Recipe) -> float:
    found = _SIZE_IN_NAME.search(recipe.base.file)
    if found is None:
        raise SpecError(f"recipe {recipe.name}: the name of its base, {recipe.base.file}, tells no size; give --parameters, such as 7e9")
    return float(found.group(1)) * {"M": 1e6, "B": 1e9}[found.group(2)]


def _parameters_of_shape(shape: TinyModel) -> int:
    """Embedding (tied), and in each layer four attention matrices and three of a SwiGLU block of 8/3 the width."""
    return shape.vocab_size * shape.hidden_size + shape.layers * (4 + 8) * shape.hidden_size**2


def hardware_of(cluster: Cluster, job: JobSettings) -> Hardware | None:
    """What a job of these settings gets on `cluster`; None where the cluster describes no device.

    A process uses one GPU; a single process uses one of those it was given.
    """
    device, site = cluster.device, cluster.defaults
    if device is None:
        return None
    tasks, nodes = job.tasks or site.tasks, job.nodes or site.nodes
    gpus = site.gpus if job.gpus is None else job.gpus
    memory, a_node = job.memory_gb or site.memory_gb, max(1, math.ceil(tasks / nodes))
    if device.kind == "gpu" and not gpus:
        return None
    cores = 1 if device.kind == "gpu" else job.cpus or site.cpus
    return Hardware(
        devices=tasks,
        peak_tflops=device.bf16_tflops * cores,
        bandwidth_gb_s=device.bandwidth_gb_s,
        memory_gb=device.memory_gb if device.kind == "gpu" else memory / a_node,
        utilisation=device.utilisation,
        fp32_tflops=device.fp32_tflops * cores,
        store_mb_s=device.store_mb_s,
        host_memory_gb=memory,
        processes_a_node=a_node,
        cpu=device.kind == "cpu",
        host_gb_s=device.host_gb_s,
        gpus_a_node=gpus if device.kind == "gpu" else None,
        held=nodes * gpus if device.kind == "gpu" else None,
    )
