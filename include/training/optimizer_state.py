"""Weights and AdamW moments as named tensors: what a checkpoint holds, whatever engine wrote it."""

from collections.abc import Mapping

import torch

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def capture_state(module: torch.nn.Module, optimizer: torch.optim.Optimizer, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]:
    """The groups ``<prefix>.model`` and ``<prefix>.optimizer``; a tied parameter stands once, a frozen one not at all."""
    weights = {name: value.detach() for name, value in _trained(module).items()}
    moments = {}
    for name, parameter in _trained(module).items():
        state = optimizer.state.get(parameter, {})
        moments.update({f"{name}.{key}": torch.as_tensor(state[key]) for key in MOMENTS if key in state})
    return {_group(prefix, "model"): weights, _group(prefix, "optimizer"): moments}


def restore_state(checkpoint: Checkpoint, module: torch.nn.Module, optimizer: torch.optim.Optimizer, prefix: str = "") -> None:
    """Puts back, bit by bit, what `capture_state` gave (the fused AdamW keeps its step counter beside the parameter)."""
    weights = checkpoint.load(_group(prefix, "model"))
    own = _trained(module)
    if odd := sorted(set(weights) ^ set(own)):
        raise CheckpointError(f"{checkpoint.path}: parameter {odd[0]} is only in the checkpoint or only in the model")
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)
    moments = checkpoint.load(_group(prefix, "optimizer"))
    for name, parameter in own.items():
        found = {key: moments[f"{name}.{key}"] for key in MOMENTS if f"{name}.{key}" in moments}
        if found:
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in found.items()}


def _trained(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _group(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
