"""Models whose weights come and go: frozen ones that may lie off the device between their uses, and the copy that draws answers.

Their modules stay what they are; only the weights in them change, so what they compute is the same in every bit wherever the weights
lay before. Read from a file they are mapped memory, which the processes of a node share and which takes none of their own.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from include.training.engines.precision import is_cast

DEVICE, HOST = "device", "host"
PLACES = (DEVICE, HOST)
"""Where frozen models lie between their uses."""


@dataclass(frozen=True)
class _Slot:
    """Where a weight belongs: its first name in the model, and a module's attribute. rounded: what autocast would make of it is put there."""

    weight: str
    module: torch.nn.Module
    attribute: str
    rounded: bool


class Slots:
    """The places of a frozen model's weights. They are empty at first (on `meta`, so that nobody computes with them)."""

    def __init__(self, model: torch.nn.Module, precision: str, device: torch.device) -> None:
        """`model` gives its weights up; its buffers go to `device`. In bf16_autocast linear layers get rounded weights (`keep_cast`)."""
        self.device = device
        names = {id(value): name for name, value in model.named_parameters()}
        self._slots = [
            _Slot(names[id(value)], module, attribute, is_cast(module, precision))
            for module in model.modules()
            for attribute, value in module._parameters.items()
            if value is not None
        ]
        for module in model.modules():
            module._buffers = {name: value if value is None else value.to(device) for name, value in module._buffers.items()}
        self.empty()

    def empty(self) -> None:
        for slot in self._slots:
            slot.module._parameters[slot.attribute] = _frozen(slot.module._parameters[slot.attribute], torch.device("meta"))

    def fill(self, weights: Iterable[tuple[str, torch.Tensor]], *, copied: bool) -> None:
        """Puts each weight where it belongs, a shared one everywhere.

        Args:
            weights: all, or some while the others are there.
            copied: the tensors given are somebody else's and change; else what needs no conversion is taken as it is.
        """
        wanted: dict[str, list[_Slot]] = {}
        for slot in self._slots:
            wanted.setdefault(slot.weight, []).append(slot)
        for name, value in weights:
            made: dict[bool, torch.nn.Parameter] = {}
            there = value.detach().to(self.device)
            for slot in wanted.pop(name):
                if slot.rounded not in made:
                    kept = there.to(torch.bfloat16) if slot.rounded else there.clone() if copied else there
                    made[slot.rounded] = torch.nn.Parameter(kept, requires_grad=False)
                slot.module._parameters[slot.attribute] = made[slot.rounded]
        if lacking := sorted({slot.weight for slot in self._slots if slot.module._parameters[slot.attribute].is_meta}):
            raise KeyError(f"no weights were given for {lacking[:3]}")


def _frozen(value: Any, device: torch.device) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty_like(value, device=device), requires_grad=False)


class Frozen:
    """A model that scores and never learns: on the device all the time, or brought there for each use and let go after it."""

    def __init__(self, model: torch.nn.Module, precision: str, device: torch.device, *, stays: bool) -> None:
        """`model`: on the CPU, as read from its file, in eval mode and without gradients."""
        weights = dict(model.named_parameters())
        self._model = model
        self._stays = stays
        self._slots = Slots(model, precision, device)
        self._weights: dict[str, torch.nn.Parameter] = {} if stays else weights
        if stays:
            self._slots.fill(weights.items(), copied=False)

    @contextmanager
    def here(self) -> Iterator[Any]:
        """The model with its weights on the device."""
        if self._stays:
            yield self._model
            return
        self._slots.fill(self._weights.items(), copied=False)
        try:
            yield self._model
        finally:
            self._slots.empty()

    def leave(self) -> None:
        """It is not needed any more."""
        self._stays, self._weights = False, {}
        self._slots.empty()


@contextmanager
def present(model: Any) -> Iterator[Any]:
    """`model` ready to compute, wherever its weights lie."""
    if isinstance(model, Frozen):
        with model.here() as brought:
            yield brought
    else:
        yield model
