"""The state of DeepSpeed's ZeRO stages as whole, named tensors, and back: gathered on save, cut up again on load.

DeepSpeed 0.19 keeps weights and moments in flat partitions; where a parameter's part lies in them is known to its
`_hp_mapping` (stages 1 and 2) or to the stage-3 optimiser. Its own checkpoints are pickles bound to the number of ranks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import torch

from include.runtime.checkpoint import Owned
from include.training.engines.optimizer_state import MOMENTS, Named

_FLAT = ("exp_avg", "exp_avg_sq")
Parameters = Mapping[str, torch.nn.Parameter]


def gather(zero: Any, parameters: Parameters, *, main: bool) -> tuple[Named, Named]:
    """Weights and moments by name, on the CPU of the first rank ({} on the others). Every rank calls it."""
    weights, moments = Owned(), Owned()
    partitions = _flat_partitions(zero)
    state = zero.optimizer.state.get(partitions[0], {})
    if state and not _is_stage_3(zero):
        zero._lazy_init_hp_params_optimizer_state()
    for name, parameter in parameters.items():
        weight = _whole(zero, parameter)
        if main:
            weights[name] = weight.detach().to("cpu", copy=True)
        for key in [key for key in _FLAT if key in state]:
            moment = _whole(zero, parameter, key)
            if main:
                moments[f"{name}.{key}"] = moment.to("cpu", copy=True)
        if main and "step" in state:
            moments[f"{name}.step"] = torch.as_tensor(state["step"]).to("cpu", copy=True)
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
        for key in _FLAT:
            for part, value in _parts(zero, parameter, key, moments[f"{name}.{key}"]):
                part.copy_(value)
    if not _is_stage_3(zero):
        zero._hp_optimizer_states_linked = False


def _is_stage_3(zero: Any) -> bool:
    return hasattr(zero, "fp32_partitioned_groups_flat")


def _flat_partitions(zero: Any) -> list[torch.Tensor]:
    return list(zero.fp32_partitioned_groups_flat if _is_stage_3(zero) else zero.single_partition_of_fp32_groups)


def _whole(zero: Any, parameter: Any, key: str | None = None) -> torch.Tensor:
    """A weight or a moment of all ranks together."""
    if _is_stage_3(zero):
        found: torch.Tensor = zero.get_full_hp_param(parameter, key)
    elif key is None:
        found = parameter.data
    else:
        found = parameter.get_full_hp_param(key)
    return found


def _own_part(zero: Any, parameter: Any, key: str | None = None) -> torch.Tensor:
    found: torch.Tensor = zero._get_fp32_opt_state_partition(parameter, False, key)[0]
    return found


def _cut(zero: Any, parameter: Any, value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor at stage 3; the last part is filled up with zeros."""
    size = _own_part(zero, parameter).numel()
    rank = zero._get_param_partition_rank(parameter)
    own = torch.zeros(size, dtype=value.dtype)
    there = value.flatten()[rank * size : (rank + 1) * size]
    own[: there.numel()] = there
    return own


def _parts(zero: Any, parameter: Any, key: str, value: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(where it goes, what goes there) on this rank."""
    if _is_stage_3(zero):
        yield _own_part(zero, parameter, key), _cut(zero, parameter, value)
        return
    mapping = parameter._hp_mapping
    if mapping is None:
        return
    flat = zero.single_partition_of_fp32_groups[mapping.param_group_index]
    here, there = mapping.hp_fragment_address, mapping.lp_fragment_address
    yield zero.optimizer.state[flat][key].narrow(0, here.start, here.numel), value.flatten().narrow(0, there.start, there.numel)


def _set_weights_of_stage_3(zero: Any, parameters: Parameters, weights: Named) -> None:
    """In the order of DeepSpeed's own step: small parameters, which every rank keeps whole, are let go and gathered again."""
    kept = list(zero.persistent_parameters)
    if kept:
        kept[0].partition(kept)
    for name, parameter in parameters.items():
        _own_part(zero, parameter).copy_(_cut(zero, parameter, weights[name]))
    for group in range(len(zero.fp16_groups)):
        zero._reassign_or_swap_out_partitioned_parameters(group)
    if kept:
        kept[0].all_gather(kept)
