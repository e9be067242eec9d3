"""The engine's precision for a model that is not in an engine."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch


def precision_context(precision: str, device: str = "cpu") -> AbstractContextManager[Any]:
    """bf16_autocast: as the engine casts; fp32, and bf16, whose layers hold rounded weights: nothing is cast."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16_autocast")


def keep_cast(model: torch.nn.Module, precision: str) -> None:
    """Lets a frozen model's linear layers hold what autocast would make of their weights at every pass.

    Every result stays the same in every bit: only linear layers are cast, a weight that an embedding shares stays float32 there. Autocast keeps the
    cast of a weight that can be trained, and of no other: of a frozen model of 135 million parameters it would write 0.2 GB anew at each pass.
    """
    if precision == "bf16_autocast":
        _cast(model)


@contextmanager
def cast_once(model: torch.nn.Module, precision: str) -> Iterator[None]:
    """The same for a while, for a model whose weights are filled anew between: afterwards the layers have the very weights that they had."""
    own = _cast(model) if precision == "bf16_autocast" else []
    try:
        yield
    finally:
        for layer, name, value in own:
            layer._parameters[name] = value


def _cast(model: torch.nn.Module) -> list[tuple[torch.nn.Linear, str, torch.nn.Parameter]]:
    """Gives what stood there: layer, name, parameter."""
    found = []
    for layer in (module for module in model.modules() if type(module) is torch.nn.Linear):
        for name, value in layer._parameters.items():
            if value is not None and value.dtype == torch.float32:
                found.append((layer, name, value))
                layer._parameters[name] = torch.nn.Parameter(value.detach().to(torch.bfloat16), requires_grad=False)
    return found
