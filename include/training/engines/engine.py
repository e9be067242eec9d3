"""What a trainer asks of an engine. Each engine is a module of its own, so that one's change moves no other's keys.

On several ranks a trainer keeps to four rules, and its losses do not depend on their number:

1. Rows of a step: all ranks know the order, each works on ``engine.data.share(rows)``.
2. A loss is divided by the count of the whole batch: ``engine.data.total(own count)``. Figures are sums of all ranks too.
3. Every rank learns from equally many micro-batches and steps equally often (``engine.data.most`` tells the greatest number of any).
4. After the last step what is to be scored is scored by all ranks; then ``engine.publish()``: the module has whole weights on the first rank, on the
   CPU where the device has no room for them, and the others end there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import GuardTripped
from include.runtime.ranks import Ranks
from include.runtime.settings import Settings

PRECISIONS = ("fp32", "bf16_autocast", "bf16")
"""bf16_autocast: weights stay float32 and are cast where it pays. bf16: the layers hold rounded weights beside exact ones."""
ENGINE_KEYS = (
    *("learning_rate", "weight_decay", "betas", "max_grad_norm", "precision", "zero_stage", "engine", "optimizer", "attention"),
    *("distributed_optimizer", "deterministic"),
)


@dataclass(frozen=True)
class EngineSettings:
    """What of the configuration concerns the engine; all of it is identity. max_grad_norm 0 clips nothing."""

    learning_rate: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    precision: str = "fp32"
    zero_stage: int = 0
    distributed_optimizer: bool = False

    @classmethod
    def of(cls, config: Settings) -> "EngineSettings":
        config.text("optimizer", ("torch_adamw",), "torch_adamw")
        first, second = config.numbers("betas", [0.9, 0.999])
        return cls(
            learning_rate=config.number("learning_rate"),
            weight_decay=config.number("weight_decay", 0.0),
            betas=(first, second),
            max_grad_norm=config.number("max_grad_norm", 1.0),
            precision=config.text("precision", PRECISIONS, "fp32"),
            zero_stage=config.integer("zero_stage", 0),
            distributed_optimizer=config.flag("distributed_optimizer", False),
        )


def adamw(parameters: Iterable[torch.nn.Parameter], settings: EngineSettings) -> torch.optim.AdamW:
    """The optimiser of every engine."""
    return torch.optim.AdamW(
        list(parameters), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )


class FiniteLosses:
    """Refuses a loss that is not finite: at once where one rank sees all losses, else on all ranks together before the update."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._finite = True

    def see(self, loss: torch.Tensor) -> None:
        """Of each micro-batch, before its gradients are added."""
        if not torch.isfinite(loss.detach()):
            if self._ranks.count == 1:
                raise GuardTripped("non_finite_loss", f"the loss is {float(loss.detach())}")
            self._finite = False

    def settle(self) -> None:
        """Before the update; every rank calls it."""
        if self._ranks.most(float(not self._finite))[0]:
            raise GuardTripped("non_finite_loss", "the loss of a micro-batch is not finite; no update was made")


def check_norm(norm: float) -> None:
    """Of all gradients, before the update: refused unless finite."""
    if not norm < float("inf"):
        raise GuardTripped("non_finite_gradient", f"the norm of the gradients is {norm}; no update was made")


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass of a step.

    inputs: what the module is given, by the names of its arguments.
    measure: makes of the module's answer the loss (of which gradients are added as they are) and figures that are added up.
    """

    inputs: Mapping[str, Any]
    measure: Callable[[torch.Tensor], tuple[torch.Tensor, Mapping[str, float]]]


def added_up(total: dict[str, float], figures: Mapping[str, float]) -> None:
    """Adds `figures` to `total`, in their order."""
    for name, value in figures.items():
        total[name] = total.get(name, 0.0) + value


def learn_in_turn(engine: "Engine", parts: Iterable[MicroBatch]) -> dict[str, float]:
    """One micro-batch after the other, each made when its turn comes; the figures of all, added up."""
    found: dict[str, float] = {}
    for part in parts:
        loss, figures = part.measure(engine(**part.inputs))
        engine.backward(loss)
        added_up(found, figures)
    return found


class Engine(Protocol):
    """One module with its optimiser and precision.

    module: what computes; after `publish` the trainer's own module with whole weights.
    data: the ranks among which the rows of a batch are shared out.
    """

    data: Ranks

    @property
    def module(self) -> torch.nn.Module: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def frozen(self, scorer: Any) -> Any:
        """A scorer like `scorer`, cut and computing as the engine's module does: equal weights give equal answers. Nothing of it is learnt.

        What the engine casts while it computes (`precision_context`) is the caller's to cast.
        """

    def train(self) -> None: ...

    def eval(self) -> None: ...

    def learn(self, parts: Iterable[MicroBatch]) -> dict[str, float]:
        """Adds the gradients of every part's loss, in the order that suits the engine; figures of these parts, added up."""

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of `loss` to those of all ranks; nothing is divided by a number of micro-batches or ranks."""

    def step(self, learning_rate: float) -> float:
        """One update; gives the norm of all gradients before clipping. A loss or gradient that is not finite trips a guard on every rank."""

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Whole trainable weights by name, copies on the CPU of the first rank; {} on the others. Every rank calls it."""

    def capture(self, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]:
        """The groups ``<prefix>.model`` and ``<prefix>.optimizer``: this rank's `Pieces`; or whole tensors on the first rank, where all ranks
        hold the same. Every rank calls it."""

    def restore(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        """Puts weights and moments back, whatever number of ranks and layout saved them."""

    def use(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Puts whole trainable weights, as the first rank has them ({} on the others), in place of the present ones. Every rank calls it."""

    def publish(self) -> None:
        """Ends training: whole weights in `module` on the first rank; raises RankDone on the others."""


MakeEngine = Callable[[torch.nn.Module, EngineSettings], Engine]
