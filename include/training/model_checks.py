"""What must hold of the models before the first step: modes, gradients, and weights that are the policy's own."""

from typing import Any

from include.training.engines.engine import Engine
from include.training.errors import TrainingError


def check_trained(engine: Engine) -> None:
    """Puts the engine's module into train mode and refuses one that would learn nothing, or whose mode does not follow.

    Raises:
        TrainingError: no parameter has a gradient, or a part of the module stays in eval mode.
    """
    engine.train()
    if asleep := [name or "the model" for name, module in engine.module.named_modules() if not module.training]:
        raise TrainingError(f"{asleep[0]} (and {len(asleep) - 1} more parts) is in eval mode, it must be in train mode")
    if not any(parameter.requires_grad for parameter in engine.module.parameters()):
        raise TrainingError("no trainable token or weight: every parameter of the model is frozen")


def check_frozen(role: str, model: Any, engine: Engine) -> None:
    """Refuses a frozen model that is in train mode, has gradients, or shares a trained weight with the engine's.

    Raises:
        TrainingError: which model, and what is wrong with it.
    """
    if model.training:
        raise TrainingError(f"{role} is in train mode, it must be in eval mode")
    if wrong := [name for name, parameter in model.named_parameters() if parameter.requires_grad]:
        raise TrainingError(f"{role}: {wrong[0]} (and {len(wrong) - 1} more) has a gradient, it must have none")
    trained = {parameter.data_ptr() for parameter in engine.module.parameters() if parameter.requires_grad and parameter.numel()}
    if shared := [name for name, parameter in model.named_parameters() if parameter.numel() and parameter.data_ptr() in trained]:
        raise TrainingError(f"{role} shares the trained weight {shared[0]} with the policy: it would move along")
