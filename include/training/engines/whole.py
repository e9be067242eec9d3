"""Whole weights of a model that is dealt out: from the first rank to all of them, and where they lie when training is over."""

import copy
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist

from include.runtime.ranks import Ranks
from include.training.errors import TrainingError

ROOM = 1.2
"""A whole model comes to a device that has so many times its bytes free; the rest is for answers and their keys and values."""


def home_of(module: torch.nn.Module, device: torch.device) -> torch.device:
    """The device where there is room for all of the module that is not there yet; else the CPU, from which it is handed on just as well."""
    if device.type != "cuda":
        return device
    missing = sum(value.nbytes for value in module.parameters() if value.device != device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return device if ROOM * missing <= free else torch.device("cpu")


class FromFirst(Mapping[str, torch.Tensor]):
    """Whole float32 weights that the first rank has, sent to all when one is asked for: every rank asks for all, in the same order.

    One lies in memory at a time. The names are those of `shapes`.

    Raises:
        TrainingError: the first rank has other weights than the model.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size], ranks: Ranks) -> None:
        if ranks.main and (odd := sorted(set(weights) ^ set(shapes))):
            raise TrainingError(f"parameter {odd[0]} is only in the weights that are to be used or only in the model")
        self._weights, self._shapes, self._ranks = weights, shapes, ranks

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._ranks.count == 1:
            return self._weights[name]
        value = self._weights[name].contiguous() if self._ranks.main else torch.empty(self._shapes[name])
        dist.broadcast(value, dist.get_global_rank(self._ranks.group, 0), group=self._ranks.group)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


@torch.no_grad()
def fill_in(parameters: Mapping[str, torch.nn.Parameter], weights: Mapping[str, torch.Tensor]) -> None:
    """Copies each weight into the parameter of its name."""
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


def split(module: torch.nn.Module) -> torch.nn.Module:
    """A twin that takes the parameters over, and that ZeRO 3 may cut up; `module` keeps its shape without weights."""
    given = {id(value): value for value in module.parameters()}
    twin = copy.deepcopy(module, dict(given))
    empty = {key: torch.nn.Parameter(torch.empty_like(value, device="meta"), value.requires_grad) for key, value in given.items()}
    for part in module.modules():
        part._parameters = {name: value if value is None else empty[id(value)] for name, value in part._parameters.items()}
    return twin


def put_back(module: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Puts weights where `split` took them; a tied one is filled in everywhere."""
    whole = {id(value): torch.nn.Parameter(weights[name], value.requires_grad) for name, value in module.named_parameters()}
    for part in module.modules():
        part._parameters = {name: value if value is None else whole[id(value)] for name, value in part._parameters.items()}
