"""How far two trainings may be apart that add up in another order."""

from collections.abc import Sequence
from typing import Any

import pytest


def to_rounding(values: Sequence[float], *, rel: float | None = None, abs: float | None = None) -> list[Any]:
    """What a series of steps must equal whose sums were added in another order: at each step to twice as much as at the one before, as Adam
    makes a whole step of a gradient that is rounding alone, and from the fifth on to 16 times as much as at the first. How much it is depends
    on the CPU's kernels; seen at the eighth step, on two kinds of them: 1.5 and 1.7 times what the first may have."""
    grown = [2.0 ** min(step, 4) for step in range(len(values))]
    return [pytest.approx(v, rel=rel and rel * by, abs=abs and abs * by) for v, by in zip(values, grown, strict=True)]
