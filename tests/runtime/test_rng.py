"""All sources of chance come back from plain JSON."""

import json
import random

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
