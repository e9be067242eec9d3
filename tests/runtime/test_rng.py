"""All sources of chance come back from plain JSON."""

import json
import os
import random
import subprocess
import sys

import numpy
import torch

from include.runtime import rng


def _draw() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), float(numpy.random.standard_normal()), float(torch.randn(1))


def test_draws_after_restoring_repeat_those_after_capturing() -> None:
    rng.seed_all(2**40 + 3)
    _draw()
    state = json.loads(json.dumps(rng.capture()))
    expected = [_draw() for _ in range(5)]
    rng.seed_all(1)
    rng.restore(state)
    assert [_draw() for _ in range(5)] == expected


def test_the_same_seed_gives_the_same_draws_and_another_one_others() -> None:
    rng.seed_all(5)
    first = _draw()
    rng.seed_all(5)
    again = _draw()
    rng.seed_all(6)
    assert first == again
    assert all(a != b for a, b in zip(first, _draw(), strict=True))


def test_once_asked_for_a_kernel_without_a_fixed_order_is_refused() -> None:
    code = """
import os, torch
from include.runtime import rng
rng.make_deterministic()
print(os.environ["CUBLAS_WORKSPACE_CONFIG"])
torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == ":4096:8"
    assert done.returncode == 1
    assert "does not have a deterministic implementation" in done.stderr
