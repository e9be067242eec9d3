"""What megatron-core asks of CUDA in forward and backward passes and between stages, answered by the CPU where there is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.tensor_parallel import random


def _state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


def _cpu() -> torch.device:
    return torch.device("cpu")


class _Cuda:
    """`torch.cuda` as the stages see it: everything is done once it was asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        return _cpu()

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class _Torch:
    """`torch` as Megatron's schedules see it: what they make on "cuda" lies on the CPU."""

    cuda = _Cuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **how: Any) -> torch.Tensor:
        return torch.zeros(*size, device=None if device == "cuda" else device, **how)


@contextmanager
def layers_can_run(seed: int) -> Iterator[None]:
    """Around everything that runs Megatron's layers: its tracker of random states, and without CUDA the CPU in its place.

    The layers draw nothing here (no dropout), but they switch to the tracker's state and back; torch's own is left as it was.
    """
    tracker = random.get_cuda_rng_tracker()
    if torch.cuda.is_available():
        tracker.reset()
        tracker.add(random._MODEL_PARALLEL_RNG_TRACKER_NAME, seed)
        yield
        tracker.reset()
        return
    kept = random._get_cuda_rng_state, random._set_cuda_rng_state, torch.cuda.current_device
    random._get_cuda_rng_state, random._set_cuda_rng_state = _state, _set_state
    torch.cuda.current_device = _cpu
    p2p_communication.torch = schedules.torch = _Torch()
    tracker.set_states({random._MODEL_PARALLEL_RNG_TRACKER_NAME: torch.get_rng_state()})
    try:
        with torch.compiler.set_stance("force_eager"):  # else its small fused functions would be compiled with a C++ compiler
            yield
    finally:
        random._get_cuda_rng_state, random._set_cuda_rng_state, torch.cuda.current_device = kept
        p2p_communication.torch = schedules.torch = torch
        tracker.reset()
