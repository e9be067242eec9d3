"""Every source of chance in a process, as plain JSON: Python, NumPy where it is present, torch, and each CUDA device.

No pickle: a checkpoint holds numbers and hexadecimal text only.
"""

import hashlib
import os
import random
from typing import Any

import torch

try:
    import numpy
except ImportError:  # the programs run without it too
    numpy = None  # type: ignore[assignment]

_NUMPY_SEED_LIMIT = 2**32


def seed_all(seed: int, rank: int = 0) -> None:
    """Seeds Python, NumPy and torch (all devices) from one number; each rank but the first has a seed of its own from it."""
    if rank:
        seed = int.from_bytes(hashlib.sha256(f"{seed}/rank/{rank}".encode()).digest()[:6])
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % _NUMPY_SEED_LIMIT)


def make_deterministic() -> None:
    """Only kernels that add in a fixed order, from here on and in the processes that this one starts; one that has none raises.

    Without it two runs on GPUs differ in the last bits, and so does a run that was resumed. On CPUs it changes no bit.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when CUDA's libraries begin, so before the first kernel
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)


def capture() -> dict[str, Any]:
    """The state of every generator of this process."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss], "torch": _to_hex(torch.get_rng_state())}
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["numpy"] = [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available():
        state["cuda"] = [_to_hex(item) for item in torch.cuda.get_rng_state_all()]
    return state


def restore(state: dict[str, Any]) -> None:
    """Puts back what `capture` gave."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(_from_hex(state["torch"]))
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if torch.cuda.is_available() and len(state.get("cuda", [])) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_from_hex(item) for item in state["cuda"]])


def _to_hex(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
