"""The engine's precision for a model that is not in an engine."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def precision_context(precision: str, device: str = "cpu") -> AbstractContextManager[Any]:
    """bf16_autocast: as the engine casts; fp32, and bf16, whose layers hold rounded weights: nothing is cast."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16_autocast")
