"""The updates of a stage's parameters: exact weights in float32 that AdamW moves, and those that the layers compute with."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from include.training.engines.engine import EngineSettings, adamw, check_norm
from include.training.engines.optimizer_state import Named
from include.training.megatron.stage import Stage, Unwrapped

FLAT = ("exp_avg", "exp_avg_sq")


class Updates(Protocol):
    """What moves the weights. Tensors are this rank's part of float32 weights and moments, by Megatron's names."""

    def step(self, learning_rate: float) -> float:
        """Sums gradients over ranks, clips, updates; gives the norm before clipping, and refuses one that is not finite."""

    def weights(self) -> Named: ...

    def moments(self) -> tuple[Mapping[str, Named], Tensor | None]:
        """By kind; and how many updates there were, None before the first one."""

    def fill(self, parts: Iterable[tuple[str, Tensor]]) -> None:
        """Takes this rank's part of each weight, by Megatron's names, one after the other (`Stage.parts`)."""

    def fill_moments(self, whole: Named, count: Tensor) -> None:
        """The same of moments, each named like a weight, a dot and its kind; `count` updates were made."""


class LocalUpdates:
    """AdamW of torch on each rank's part.

    Where the layers compute in float32 their own parameters are the exact weights. Else each layer holds a rounded copy:
    after every backward pass its gradients are added up on the exact one in float32, and after an update it is renewed.
    """

    def __init__(self, live: Mapping[str, Parameter], settings: EngineSettings, stage: Stage) -> None:
        self._settings, self._stage, self._live = settings, stage, live
        self._exact = {name: value if value.dtype == torch.float32 else Parameter(value.detach().float()) for name, value in live.items()}
        self._rounded = {name: value for name, value in live.items() if value is not self._exact[name]}
        for name, value in self._rounded.items():
            value.register_post_accumulate_grad_hook(partial(_add_gradient, self._exact[name]))
        self._optimizer = adamw(self._exact.values(), settings)

    def step(self, learning_rate: float) -> float:
        gradients = {name: value.grad for name, value in self._exact.items() if value.grad is not None}
        self._add_over_ranks(gradients)
        norm, limit = self._stage.norm(gradients), self._settings.max_grad_norm
        check_norm(norm)
        if 0 < limit < norm + 1e-6:
            for value in gradients.values():
                value.mul_(limit / (norm + 1e-6))  # as torch's clip_grad_norm_
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._round_off()
        return norm

    def _add_over_ranks(self, gradients: Mapping[str, Tensor]) -> None:
        """Over data-parallel ranks, and over both stages that hold a tied embedding."""
        place = self._stage.place
        if place.data.count > 1:
            waiting = [dist.all_reduce(value, group=place.data_group, async_op=True) for value in gradients.values()]
            for handle in waiting:
                handle.wait()
        if tied := self._stage.tied:
            dist.all_reduce(gradients[tied], group=place.ends)

    def weights(self) -> Named:
        return {name: value.detach() for name, value in self._exact.items()}

    def moments(self) -> tuple[Mapping[str, Named], Tensor | None]:
        states = {name: state for name, value in self._exact.items() if (state := self._optimizer.state.get(value))}
        count = next((torch.as_tensor(state["step"]) for state in states.values()), None)
        return {key: {name: state[key] for name, state in states.items()} for key in FLAT}, count

    @torch.no_grad()
    def fill(self, parts: Iterable[tuple[str, Tensor]]) -> None:
        for name, part in parts:
            self._exact[name].copy_(part)
        self._round_off()

    def fill_moments(self, whole: Named, count: Tensor) -> None:
        named = Unwrapped(whole)
        for piece in self._stage.pieces:
            parts = {key: self._stage.part(piece, named, f".{key}").to(self._stage.device) for key in FLAT}
            cloned = {key: value.clone(memory_format=torch.contiguous_format) for key, value in parts.items()}
            self._optimizer.state[self._exact[piece.name]] = {"step": count.to(self._stage.device, copy=True), **cloned}

    @torch.no_grad()
    def _round_off(self) -> None:
        for name, value in self._rounded.items():
            value.copy_(self._exact[name])


def _add_gradient(exact: Parameter, rounded: Parameter) -> None:
    """After a backward pass: adds up in float32, and leaves nothing on the rounded copy."""
    if rounded.grad is None:
        return
    if exact.grad is None:
        exact.grad = rounded.grad.float()
    else:
        exact.grad.add_(rounded.grad)
    rounded.grad = None
