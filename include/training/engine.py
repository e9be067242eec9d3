"""What a trainer asks of an engine. Each engine is a module of its own, so that one's change moves no other's keys.

On several ranks a trainer keeps to four rules, and its losses do not depend on their number:

1. Rows of a step: all ranks know the order, each works on ``engine.data.share(rows)``.
2. A loss is divided by the count of the whole batch: ``engine.data.total(own count)``. Figures are sums of all ranks too.
3. Every rank calls forward, backward and step equally often (``engine.data.most`` tells the greatest number of any).
4. After the last step ``engine.publish()``: the module has whole weights on the first rank, the others end there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import GuardTripped
from include.runtime.ranks import Ranks
from include.runtime.settings import Settings

PRECISIONS = ("fp32", "bf16_autocast")
ENGINE_KEYS = ("learning_rate", "weight_decay", "betas", "max_grad_norm", "precision", "zero_stage", "engine", "optimizer", "attention")


@dataclass(frozen=True)
class EngineSettings:
    """What of the configuration concerns the engine; all of it is identity. max_grad_norm 0 clips nothing."""

    learning_rate: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    precision: str = "fp32"
    zero_stage: int = 0

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
        )


def adamw(parameters: Iterable[torch.nn.Parameter], settings: EngineSettings) -> torch.optim.AdamW:
    """The optimiser of every engine."""
    return torch.optim.AdamW(
        list(parameters), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )


class FiniteLosses:
    """Refuses a loss that is not finite: at once where one rank has all of the data, else on all ranks together before the update."""

    def __init__(self, data: Ranks) -> None:
        self._data = data
        self._finite = True

    def see(self, loss: torch.Tensor) -> None:
        """Of each micro-batch, before its gradients are added."""
        if not torch.isfinite(loss.detach()):
            if self._data.count == 1:
                raise GuardTripped("non_finite_loss", f"the loss is {float(loss.detach())}")
            self._finite = False

    def settle(self) -> None:
        """Before the update; every rank calls it."""
        if self._data.most(float(not self._finite))[0]:
            raise GuardTripped("non_finite_loss", "the loss of a micro-batch is not finite; no update was made")


def check_norm(norm: float) -> None:
    """Of all gradients, before the update: refused unless finite."""
    if not norm < float("inf"):
        raise GuardTripped("non_finite_gradient", f"the norm of the gradients is {norm}; no update was made")


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

    def train(self) -> None: ...

    def eval(self) -> None: ...

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of `loss` to those of all ranks; nothing is divided by a number of micro-batches or ranks."""

    def step(self, learning_rate: float) -> float:
        """One update; gives the norm of all gradients before clipping. A loss or gradient that is not finite trips a guard on every rank."""

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Whole trainable weights by name, copies on the CPU of the first rank; {} on the others. Every rank calls it."""

    def capture(self, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]:
        """The groups ``<prefix>.model`` and ``<prefix>.optimizer``; their tensors are on the first rank only. Every rank calls it."""

    def restore(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        """Puts weights and moments back, whatever number of ranks and layout saved them."""

    def publish(self) -> None:
        """Ends training: whole weights in `module` on the first rank; raises RankDone on the others."""


MakeEngine = Callable[[torch.nn.Module, EngineSettings], Engine]
