"""Memory of a device while a model is trained or answers: what of it lies there, by part. Upper bounds, in bytes.

State (weights, gradients, moments) is divided as ZeRO and model parallel layers divide it (Rajbhandari et al. 2020, section 3);
DeepSpeed keeps a float32 master of its part beside the weights from stage 1 on. Activations are those of a transformer without
recomputation, with fused attention and without sequence parallelism: 10 + 24 / t bytes a token, layer and unit of width in bf16
over t tensor parallel ranks (Korthikanti et al. 2022, equation 2 without its quadratic term), twice that in float32. The first of
several pipeline stages has as many micro-batches under way as there are stages, so dividing the layers spares it nothing.

Of a node's memory there are two figures. A float32 folder that is loaded is mapped: its pages are the file's, the processes of a node share
them, and the kernel may drop and read them again (`tests/training/test_mapped_weights.py`). Private is what a process writes, converts,
gathers or copies.
"""

from dataclasses import dataclass

from include.domain.errors import SpecError

FP32, MOMENTS = 4, 8
CHECKPOINT = FP32 + MOMENTS
"""Bytes of a trained parameter in a checkpoint: weight and moments."""
ADAPTER_SHARE = 0.01
"""Trained share of the weights under adapters, about what rank 16 is on a 7 B model."""
ACTIVATION_WHOLE, ACTIVATION_CUT = 10, 24
"""Bytes of a token, layer and unit of width in bf16: on every tensor parallel rank, and shared out over them."""
LOGIT_COPIES = 3
"""Logits of a token in float32: themselves, their log-softmax, and its gradient."""
BUCKET_ELEMENTS = 500_000_000
LIVE_ELEMENTS = 1_000_000_000
"""DeepSpeed's defaults: gradients reduced at once, and parameters that ZeRO 3 keeps gathered."""
PROCESS = 0.9e9
"""Of a process before it holds a model: Python, torch and its libraries (seen at the peak of a report on a CPU)."""


@dataclass(frozen=True)
class Shape:
    """A model's size. kv_width: heads of keys × width of a head."""

    parameters: float
    layers: int
    hidden: int
    vocabulary: int
    kv_width: int


@dataclass(frozen=True)
class Layout:
    """How a model is dealt out and worked on.

    ranks: processes, one device each. tensor × pipeline of them hold one copy. rows × length tokens are one micro-batch.
    trained_share: below 1 under adapters. background: a checkpoint is copied before it is written. shared_optimizer: Megatron's
    distributed one. precision bf16 (Megatron): rounded weights to compute with, exact ones beside them.
    """

    ranks: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero_stage: int = 0
    offload: str = "none"
    precision: str = "fp32"
    rows: int = 1
    length: int = 1
    trained_share: float = 1.0
    background: bool = True
    deepspeed: bool = True
    shared_optimizer: bool = False

    def __post_init__(self) -> None:
        if self.ranks % (self.tensor * self.pipeline):
            raise SpecError(
                f"estimate: {self.ranks} processes are no multiple of {self.tensor} × {self.pipeline} that hold one copy of the weights"
            )

    @property
    def copy(self) -> int:
        """Processes that hold one copy of the weights together."""
        return self.tensor * self.pipeline

    @property
    def data(self) -> int:
        """Processes among which the rows of a batch are shared out."""
        return self.ranks // self.copy

    @property
    def writers(self) -> int:
        """Processes that share out a checkpoint: all at ZeRO 1 to 3, Megatron's first copy of the weights, else the first one alone."""
        return self.writers_among(self.ranks)

    def writers_among(self, processes: int) -> int:
        """Those of them among the first so many processes; a node that comes later has no more of them than the first.

        Megatron's ranks of one layer's weights are neighbours, then come those that share the rows, then the stages of a pipeline.
        """
        there = range(min(processes, self.ranks))
        if self.deepspeed:
            return len(there) if self.zero_stage else min(1, len(there))
        return sum(rank // self.tensor % self.data == 0 for rank in there)


def state(shape: Shape, layout: Layout) -> dict[str, float]:
    """What must be there whatever is computed: weights, master, gradients, moments; nothing of it is an upper bound."""
    n, data, stage = shape.parameters / layout.copy, layout.data, layout.zero_stage
    trained, optimiser = n * layout.trained_share, data if stage or layout.shared_optimizer else 1
    rounded = layout.precision == "bf16"
    parts = {
        "weights": (2 if rounded else FP32) * n / (data if stage >= 3 else 1),
        "master": FP32 * trained / optimiser if stage or rounded else 0.0,
        "gradients": FP32 * trained / (data if stage >= 2 else 1),
        "moments": MOMENTS * trained / optimiser,
    }
    away = {"none": (), "optimizer": ("master", "moments"), "parameters": ("master", "moments", "weights")}[layout.offload]
    return {name: 0.0 if name in away else value for name, value in parts.items()}


def offloaded(shape: Shape, layout: Layout) -> float:
    """Bytes of CPU memory that one process keeps of what is not on its device."""
    whole = Layout(**{**vars(layout), "offload": "none"})
    return sum(state(shape, whole).values()) - sum(state(shape, layout).values())


def width(layout: Layout) -> float:
    """Bytes of activations of a token, layer and unit of width."""
    return (ACTIVATION_WHOLE + ACTIVATION_CUT / layout.tensor) * (2 if layout.precision == "fp32" else 1)


def training(shape: Shape, layout: Layout) -> dict[str, float]:
    """State and what comes and goes beside it, by part."""
    tokens = layout.rows * layout.length
    parts = state(shape, layout)
    parts["activations"] = tokens * shape.hidden * shape.layers * width(layout)
    parts["logits"] = tokens * shape.vocabulary * FP32 * LOGIT_COPIES / layout.tensor
    if layout.precision == "bf16_autocast":
        parts["bf16 copies"] = 2 * shape.parameters / layout.copy
    if layout.data > 1 and layout.deepspeed:
        both = layout.zero_stage == 3 and layout.precision == "bf16_autocast"  # one bucket for each type that gradients travel in
        parts["buckets"] = (FP32 + 2 * both) * min(shape.parameters * layout.trained_share, BUCKET_ELEMENTS)
    if layout.zero_stage >= 3:
        parts["gathered"] = FP32 * min(shape.parameters, LIVE_ELEMENTS)
    return parts


ROOM = 1.2
"""A whole model comes to a device that has so many times its bytes free (`training.engines.whole`)."""


def export(shape: Shape, layout: Layout, room: float | None) -> dict[str, float]:
    """Of the first rank's device while the model is handed on: what the engine still holds, and the whole model where `room` bytes (None: as
    many as it takes) have place for it. Its second copy, read back, is in the CPU's memory."""
    whole = FP32 * shape.parameters
    if layout.deepspeed and layout.zero_stage < 3:
        return {**state(shape, layout), "weights": whole * (2 if layout.zero_stage else 1)}
    rest = {} if layout.deepspeed else state(shape, layout)
    fits = room is None or sum(rest.values()) + ROOM * whole <= room
    return {**rest, **({"whole model": whole} if fits else {})}


def file(shape: Shape) -> float:
    """Bytes of a model's folder, and so of its mapped pages: once a node, however many processes load it."""
    return FP32 * shape.parameters


def export_host(shape: Shape) -> float:
    """Private bytes of the first process then: the whole model. What is read back to be compared is mapped."""
    return PROCESS + FP32 * shape.parameters


def flattening_host(shape: Shape, layout: Layout, room: float | None) -> float:
    """Private bytes of each process while DeepSpeed lays weights in one buffer at ZeRO 1 and 2: none on a device that has room for them twice,
    else twice in the CPU's memory (0.19: `param.cpu_data`, and the buffer of all)."""
    trained = FP32 * shape.parameters * layout.trained_share
    tight = room is not None and FP32 * shape.parameters + trained > room
    return 2 * trained if layout.deepspeed and layout.zero_stage in (1, 2) and tight else 0.0


def answering(shape: Shape, rows: int, length: int, weight_bytes: int) -> dict[str, float]:
    """A model that answers `rows` prompts at once, of `length` tokens with their answers: weights and cached keys and values."""
    return {
        "weights": weight_bytes * shape.parameters,
        "cache": 2 * weight_bytes * shape.layers * shape.kv_width * rows * length,
        "logits": rows * shape.vocabulary * FP32 * LOGIT_COPIES,
    }


def frozen(shape: Shape, precision: str) -> float:
    """A model that scores and never learns. In bf16_autocast linear layers hold rounded weights; the embedding stays float32, and an output
    layer that shares it has a rounded copy of its own."""
    if precision != "bf16_autocast":
        return FP32 * shape.parameters
    return 2 * shape.parameters + FP32 * shape.vocabulary * shape.hidden


def pieces(shape: Shape, layout: Layout) -> float:
    """Bytes of a checkpoint that one of its writers copies to the CPU and writes."""
    return CHECKPOINT * shape.parameters * layout.trained_share / layout.writers


def saving(shape: Shape, layout: Layout) -> float:
    """Bytes of CPU memory that each writer needs on top for a checkpoint: its pieces, or the whole, copied once and never of two checkpoints."""
    apart = layout.ranks > 1 or layout.zero_stage > 0 or layout.background or not layout.deepspeed
    return pieces(shape, layout) * int(apart)
