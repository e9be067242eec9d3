"""PPO with adapters: what actor and critic learn then, and the reference that is the actor's own frozen base.

Actor and critic both get adapters of the recipe's rank; the critic's scalar head is trained whole. Where the reference is the model that the
policy started from, it is the actor with its adapters off: the same tensors, no second copy, and at the start a KL of exactly 0.
"""

from pathlib import Path
from typing import Any

import torch

from include.training.engines.engine import Engine
from include.training.lora import LoraSettings, adapters_of, adapters_off, add_adapters, learnt_weights
from include.training.model_io import load_causal_lm
from include.training.rl.checks import ModelsError


def load_actor(folder: Path, attention: str, lora: LoraSettings | None, seed: int = 0) -> Any:
    """The policy as PPO learns it, in eval mode: all its weights, or its adapters over a frozen base, drawn from `seed`."""
    model = load_causal_lm(folder, attention)
    if lora is None:
        return model.requires_grad_(True)
    add_adapters(model, lora, seed)
    return model.eval()


def adapt_critic(model: Any, lora: LoraSettings | None, seed: int) -> Any:
    """A reward model as the critic learns it; under adapters its head still learns whole."""
    if lora is not None:
        add_adapters(model, lora, seed)
        model.score.requires_grad_(True)
    return model


def learnt_names(model: torch.nn.Module) -> frozenset[str]:
    """Names of what must be learnt of an actor or critic: adapters and, of a critic, its head; all of a model without adapters."""
    heads = [name for name, _ in model.named_parameters() if name.startswith("model.score.")]
    return frozenset([*learnt_weights(model), *heads])


class OwnBase:
    """The reference that is the actor's base: it answers in the actor's engine with the adapters off.

    Where the engine cuts weights up, every rank calls it equally often, as it does the actor.
    """

    def __init__(self, engine: Engine) -> None:
        """
        Raises:
            ModelsError: a weight of the base would be learnt, or is an adapter's too: the reference would move along.
        """
        self._engine = engine
        learnt = {name: value for name, value in engine.module.named_parameters() if value.requires_grad}
        own = {id(value) for layer in adapters_of(engine.module).values() for value in (layer.lora_A, layer.lora_B)}
        base = {name: value for name, value in engine.module.named_parameters() if id(value) not in own}
        if not own or not base:
            raise ModelsError("reference: the actor has no base beside adapters that it could share")
        places = {value.data_ptr() for value in learnt.values() if value.numel()}
        if moving := [name for name, value in base.items() if name in learnt or (value.numel() and value.data_ptr() in places)]:
            raise ModelsError(
                f"reference shares the trained weight {moving[0]} (and {len(moving) - 1} more) with actor: it would move along"
            )

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._engine.module.training:
            raise ModelsError("reference is in train mode, it must be in eval mode")
        with adapters_off(self._engine.module):
            return self._engine(*args, **kwargs)
