"""Low-rank adapters on the linear layers of a model, in the file format of peft.

y = W x + (alpha / rank) · B A dropout(x), with W frozen, A drawn uniformly as peft draws it and B zero, so training
starts at the base. Source: Hu et al. 2021, eq. 3. Written out here rather than taken from peft, as docs/decisions says.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from include.domain.errors import SpecError
from include.runtime.settings import Settings
from include.training.errors import TrainingError

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MERGE_TOLERANCE = 1e-4
"""Largest difference between logits with the adapter beside its base and merged into it, as a share of the largest logit (float32)."""


@dataclass(frozen=True)
class LoraSettings:
    """rank and alpha as in the paper; targets: last parts of the names of the linear layers that get an adapter."""

    rank: int
    alpha: float
    dropout: float = 0.0
    targets: tuple[str, ...] = DEFAULT_TARGETS

    @classmethod
    def of(cls, config: Settings) -> "LoraSettings | None":
        """The section `lora`; None without it, which trains all weights."""
        if "lora" not in config:
            return None
        given = config.section("lora")
        given.only("rank", "alpha", "dropout", "targets")
        rank = given.positive("rank", 16)
        found = cls(rank, given.number("alpha", 2.0 * rank), given.number("dropout", 0.0), tuple(given.texts("targets", DEFAULT_TARGETS)))
        if not 0 <= found.dropout < 1 or found.alpha <= 0 or not found.targets:
            raise SpecError(f"{given.where}: alpha must be above 0, dropout in [0, 1), and at least one target be named: {found}")
        return found


class LoraLinear(nn.Module):
    """A frozen linear layer with its adapter."""

    def __init__(self, base: nn.Linear, settings: LoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.dropout = nn.Dropout(settings.dropout)
        self.scale = settings.alpha / settings.rank
        self.on = True
        """Off: the base alone answers (`adapters_off`)."""
        bound = 1 / math.sqrt(base.in_features)  # kaiming_uniform with a = √5, as peft draws A
        drawn = torch.rand(settings.rank, base.in_features, generator=generator) * 2 * bound - bound
        self.lora_A = nn.Parameter(drawn.to(base.weight.device, base.weight.dtype))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, settings.rank))

    def forward(self, x: Tensor) -> Tensor:
        if not self.on:
            found: Tensor = self.base(x)
            return found
        low = nn.functional.linear(nn.functional.linear(self.dropout(x), self.lora_A), self.lora_B)
        return self.base(x) + self.scale * low

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The base layer with the adapter added to its weight."""
        self.base.weight += self.scale * (self.lora_B @ self.lora_A)
        return self.base


def add_adapters(model: nn.Module, settings: LoraSettings, seed: int) -> list[str]:
    """Freezes `model` and puts an adapter on each targeted layer, drawn from `seed`; gives the layers' names.

    Raises:
        TrainingError: a target names no linear layer.
    """
    model.requires_grad_(False)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    chosen = [name for name in linear if name.rsplit(".", 1)[-1] in settings.targets]
    unmet = set(settings.targets) - {name.rsplit(".", 1)[-1] for name in chosen}
    if unmet:
        known = sorted({name.rsplit(".", 1)[-1] for name in linear})
        raise TrainingError(f"lora.targets: {sorted(unmet)[0]!r} is no linear layer of this model; it has {', '.join(known)}")
    generator = torch.Generator().manual_seed(seed)
    for name in chosen:
        _replace(model, name, LoraLinear(model.get_submodule(name), settings, generator))  # type: ignore[arg-type]
    return chosen


def adapters_of(model: nn.Module) -> dict[str, LoraLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The base alone answers in here, to the bit: what a policy with adapters started from, without a second copy of it."""
    layers = list(adapters_of(model).values())
    for layer in layers:
        layer.on = False
    try:
        yield
    finally:
        for layer in layers:
            layer.on = True


def learnt_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name → parameter of what training changes: the adapters where there are any, else every weight. A frozen copy tells the same."""
    adapters = {f"{name}.{part}": getattr(layer, part) for name, layer in adapters_of(model).items() for part in ("lora_A", "lora_B")}
    return adapters or dict(model.named_parameters())


def frozen_digest(model: nn.Module) -> str:
    """sha256 over name, type, shape and bytes of every parameter that isn't learnt. The weights must lie whole in this process."""
    seen = hashlib.sha256()
    for name, value in sorted(model.named_parameters()):
        if not value.requires_grad:
            seen.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            seen.update(value.detach().cpu().contiguous().view(torch.uint8).numpy())
    return f"sha256:{seen.hexdigest()}"


def save_adapter(model: nn.Module, settings: LoraSettings, base: str, target: Path) -> None:
    """Writes the adapter alone, as peft reads it. `base`: the digest of the model it belongs to."""
    tensors = {}
    for name, layer in adapters_of(model).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = layer.lora_A.detach().cpu().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = layer.lora_B.detach().cpu().contiguous()
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": sorted(settings.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (target / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", "utf-8")


def merge_adapters(model: Any, probe_ids: Tensor) -> float:
    """Adds every adapter to its base, in place; gives the largest difference of logits, as a share of the largest logit.

    Raises:
        TrainingError: the merged model answers otherwise than the one that was trained.
    """
    model.eval()
    with torch.no_grad():
        apart = model(input_ids=probe_ids).logits
        for name, layer in adapters_of(model).items():
            _replace(model, name, layer.merged())
        together = model(input_ids=probe_ids).logits
    model.requires_grad_(True)
    difference = float((apart - together).abs().max() / apart.abs().max().clamp_min(1e-12))
    if not difference <= MERGE_TOLERANCE:
        raise TrainingError(f"the merged model gives other logits than base and adapter (by a share of {difference:.3g})")
    return difference


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, last, new)
