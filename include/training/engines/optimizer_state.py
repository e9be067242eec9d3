"""Weights and AdamW moments as named tensors: what a checkpoint holds, whatever engine and layout wrote it.

By parameter name, whole or in pieces that say where in the whole they lie: so the same checkpoint is read on another number of ranks, at
another ZeRO stage, or by another engine. Frozen parameters are not in it: they come from the inputs.
"""

from collections.abc import Mapping

import torch

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
Named = Mapping[str, torch.Tensor]


def groups_of(weights: Named, moments: Named, prefix: str = "") -> dict[str, Named]:
    """The groups ``<prefix>.model`` and ``<prefix>.optimizer``."""
    return {_group(prefix, "model"): weights, _group(prefix, "optimizer"): moments}


def saved_state(checkpoint: Checkpoint, names: set[str], prefix: str = "") -> tuple[Named, Named]:
    """Weights and moments of a checkpoint; refuses one of other parameters, naming the first."""
    weights = checkpoint.load(_group(prefix, "model"))
    if odd := sorted(set(weights) ^ names):
        raise CheckpointError(f"{checkpoint.path}: parameter {odd[0]} is only in the checkpoint or only in the model")
    return weights, checkpoint.load(_group(prefix, "optimizer"))


def trainable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Name → parameter of what is learnt; a tied one stands once."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def capture_state(module: torch.nn.Module, optimizer: torch.optim.Optimizer, prefix: str = "") -> dict[str, Named]:
    """Of parameters that lie whole in this process."""
    weights, moments = {}, {}
    for name, parameter in trainable(module).items():
        weights[name] = parameter.detach()
        state = optimizer.state.get(parameter, {})
        moments.update({f"{name}.{key}": torch.as_tensor(state[key]) for key in MOMENTS if key in state})
    return groups_of(weights, moments, prefix)


def restore_state(checkpoint: Checkpoint, module: torch.nn.Module, optimizer: torch.optim.Optimizer, prefix: str = "") -> None:
    """Puts back, bit by bit, what `capture_state` gave (the fused AdamW keeps its step counter beside the parameter)."""
    own = trainable(module)
    weights, moments = saved_state(checkpoint, set(own), prefix)
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)
    for name, parameter in own.items():
        found = {key: moments[f"{name}.{key}"] for key in MOMENTS if f"{name}.{key}" in moments}
        if found:
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in found.items()}


def _group(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
