"""What a trainer asks of an engine. Each engine is a module of its own, so that one's change moves no other's keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from include.runtime.checkpoint import Checkpoint
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


class Engine(Protocol):
    """One module with its optimiser and precision."""

    module: torch.nn.Module

    @property
    def device(self) -> torch.device: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def train(self) -> None: ...

    def eval(self) -> None: ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def step(self, learning_rate: float) -> float: ...

    def capture(self, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]: ...

    def restore(self, checkpoint: Checkpoint, prefix: str = "") -> None: ...


MakeEngine = Callable[[torch.nn.Module, EngineSettings], Engine]
