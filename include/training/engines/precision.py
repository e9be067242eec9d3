"""The engine's precision for a model that is not in an engine."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def precision_context(precision: str, device: str = "cpu") -> AbstractContextManager[Any]:
    """bf16_autocast: as the engine casts; fp32, and bf16, whose layers hold rounded weights: nothing is cast."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16_autocast")


def is_cast(module: torch.nn.Module, precision: str) -> bool:
    """Whether all of `module`'s weights are rounded by autocast wherever it computes with them."""
    return precision == "bf16_autocast" and type(module) is torch.nn.Linear


def keep_cast(model: torch.nn.Module, precision: str) -> None:
    """Lets a frozen model's linear layers hold what autocast would make of their weights at every pass.

    Every result stays the same in every bit: only linear layers are cast, a weight that an embedding shares stays float32 there. Autocast keeps the
    cast of a weight that can be trained, and of no other: of a frozen model of 135 million parameters it would write 0.2 GB anew at each pass.
    """
    for layer in (module for module in model.modules() if is_cast(module, precision)):
        for name, value in layer._parameters.items():
            if value is not None:
                layer._parameters[name] = torch.nn.Parameter(value.detach().to(torch.bfloat16), requires_grad=False)
