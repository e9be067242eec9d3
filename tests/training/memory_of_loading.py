"""What a fresh process takes of its own when it loads models: python memory_of_loading.py FLOAT32_FOLDER BFLOAT16_FOLDER; JSON on stdout.

A process of its own, in which every model stays: an allocator keeps what was freed, and would take the next one's weights from there.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from include.training.model_io import load_causal_lm
from include.training.reward.head import new_reward_model

held: list[Any] = []


def reward_model(folder: Path) -> Any:
    return new_reward_model(folder, seed=1)


def trained(folder: Path) -> Any:
    """With weights that were written to, as on CPUs, where models are trained in place."""
    model = load_causal_lm(folder)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(0.5)
    return model


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def private_share(load: Callable[[Path], Any], folder: Path) -> float:
    """Memory of its own that the process has taken once the model is loaded and every weight was read, as a share of its weights' bytes."""
    before = anonymous_bytes()
    model = load(folder)
    held.append(model)
    with torch.no_grad():
        for value in model.parameters():
            value.sum()
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    return (anonymous_bytes() - before) / sum(value.nbytes for value in model.parameters())


def main() -> None:
    torch.set_num_threads(1)
    exact, rounded = (Path(folder) for folder in sys.argv[1:3])
    for load in (load_causal_lm, reward_model):
        private_share(load, exact)  # the first one imports what the others need
    found = {
        "policy": private_share(load_causal_lm, exact),
        "reward model": private_share(reward_model, exact),
        "rounded policy": private_share(load_causal_lm, rounded),
        "rounded reward model": private_share(reward_model, rounded),
        "trained policy": private_share(trained, exact),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
