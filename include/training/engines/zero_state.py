"""The state of DeepSpeed's ZeRO stages as named tensors, and back: each rank saves its pieces of them, and takes its own on load.

DeepSpeed 0.19 keeps weights and moments in flat partitions; where a parameter's part lies in them is known to its
`_hp_mapping` (stages 1 and 2) or to the stage-3 optimiser. Its own checkpoints are pickles bound to the number of ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch

from include.runtime.pieces import Owned, Pieces, Place, Stored
from include.runtime.ranks import Ranks
from include.training.engines.optimizer_state import MOMENTS, Named

_FLAT = ("exp_avg", "exp_avg_sq")
Parameters = Mapping[str, torch.nn.Parameter]


def own_pieces(zero: Any, parameters: Parameters, ranks: Ranks) -> tuple[Pieces, Pieces]:
    """This rank's ranges of weights and moments by name; the counts of updates on the first rank. Nobody waits for anybody."""
    weights, moments = Pieces(), Pieces()
    state = zero.optimizer.state.get(_flat_partitions(zero)[0], {})
    for name, parameter in parameters.items():
        if (found := _own_range(zero, parameter)) is not None:
            place = Place(found.shape, (found.start,))
            weights.add(name, _own_weight(zero, parameter, found), place)
            for key in [key for key in _FLAT if key in state]:
                moments.add(f"{name}.{key}", _own_moment(zero, parameter, key)[: found.numel], place)
        if ranks.main and "step" in state:
            moments.add(f"{name}.step", torch.as_tensor(state["step"]))
    return weights, moments


def gather_weights(zero: Any, parameters: Parameters, *, main: bool) -> Named:
    """The weights alone."""
    return Owned((name, weight.to("cpu", copy=True)) for name, weight in each_weight(zero, parameters) if main)


def each_weight(zero: Any, parameters: Parameters) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole weights one after the other, on the device of every rank; each holds until the next. Every rank goes through all of them."""
    for name, parameter in parameters.items():
        yield name, _whole(zero, parameter).detach()


def gather_frozen(module: torch.nn.Module, *, main: bool) -> Named:
    """Weights that are not learnt, of a module that stage 3 has cut up."""
    found = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            with deepspeed.zero.GatheredParameters([parameter]):
                if main:
                    found[name] = parameter.detach().to("cpu", copy=True)
    return found


@torch.no_grad()
def scatter(zero: Any, parameters: Parameters, weights: Named, moments: Named) -> None:
    """Puts this rank's part of whole weights and moments into the flat partitions."""
    if _is_stage_3(zero):
        _set_weights_of_stage_3(zero, parameters, weights)
    else:
        for name, parameter in parameters.items():
            parameter.data.copy_(weights[name])
        zero.refresh_fp32_params()
    if not any(f"{name}.{key}" in moments for name in parameters for key in MOMENTS):
        return
    step = moments[f"{next(iter(parameters))}.step"]
    for flat in _flat_partitions(zero):
        zeros = {key: torch.zeros_like(flat) for key in _FLAT}
        zero.optimizer.state[flat] = {"step": step.clone().to(flat.device), **zeros}
    for name, parameter in parameters.items():
        if (found := _own_range(zero, parameter)) is not None:
            for key in _FLAT:
                _own_moment(zero, parameter, key)[: found.numel].copy_(_taken(moments, f"{name}.{key}", found))
    if not _is_stage_3(zero):
        zero._hp_optimizer_states_linked = False


@dataclass(frozen=True)
class _Range:
    """This rank's elements of a parameter, in their order: from `start` to before `stop`."""

    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


def _is_stage_3(zero: Any) -> bool:
    return hasattr(zero, "fp32_partitioned_groups_flat")


def _flat_partitions(zero: Any) -> list[torch.Tensor]:
    return list(zero.fp32_partitioned_groups_flat if _is_stage_3(zero) else zero.single_partition_of_fp32_groups)


def _whole(zero: Any, parameter: Any) -> torch.Tensor:
    """A weight of all ranks together."""
    found: torch.Tensor = zero.get_full_hp_param(parameter) if _is_stage_3(zero) else parameter.data
    return found


def _own_range(zero: Any, parameter: Any) -> _Range | None:
    """None where other ranks have all of it."""
    if _is_stage_3(zero):
        size = _own_part(zero, parameter).numel()
        start = min(zero._get_param_partition_rank(parameter) * size, parameter.ds_numel)
        stop = min(start + size, parameter.ds_numel)  # what is beyond fills the last part up
        return _Range(tuple(parameter.ds_shape), start, stop) if start < stop else None
    if parameter._hp_mapping is None:
        return None
    there = parameter._hp_mapping.lp_fragment_address
    return _Range(tuple(parameter.shape), there.start, there.start + there.numel) if there.numel else None


def _own_weight(zero: Any, parameter: Any, found: _Range) -> torch.Tensor:
    if _is_stage_3(zero):
        return _own_part(zero, parameter)[: found.numel]
    whole: torch.Tensor = parameter.data
    return whole.flatten()[found.start : found.stop]


def _own_moment(zero: Any, parameter: Any, key: str) -> torch.Tensor:
    if _is_stage_3(zero):
        return _own_part(zero, parameter, key)
    mapping = parameter._hp_mapping
    flat, here = zero.single_partition_of_fp32_groups[mapping.param_group_index], mapping.hp_fragment_address
    found: torch.Tensor = zero.optimizer.state[flat][key].narrow(0, here.start, here.numel)
    return found


def _own_part(zero: Any, parameter: Any, key: str | None = None) -> torch.Tensor:
    """Of stage 3."""
    found: torch.Tensor = zero._get_fp32_opt_state_partition(parameter, False, key)[0]
    return found


def _taken(named: Named, name: str, found: _Range) -> torch.Tensor:
    """A range of a whole tensor; of one that is stored in pieces no others are read."""
    if isinstance(named, Stored):
        return named.range(name, found.start, found.stop)
    return named[name].flatten()[found.start : found.stop]


def _set_weights_of_stage_3(zero: Any, parameters: Parameters, weights: Named) -> None:
    """In the order of DeepSpeed's own step: small parameters, which every rank keeps whole, are let go and gathered again."""
    kept = list(zero.persistent_parameters)
    if kept:
        kept[0].partition(kept)
    for name, parameter in parameters.items():
        part = _own_part(zero, parameter).zero_()
        found = _own_range(zero, parameter) or _Range(tuple(parameter.ds_shape), 0, 0)
        part[: found.numel].copy_(_taken(weights, name, found))  # also where it is empty: the first rank may hand each on to all
    for group in range(len(zero.fp16_groups)):
        zero._reassign_or_swap_out_partitioned_parameters(group)
    if kept:
        kept[0].all_gather(kept)
