"""Latency: seconds from request to whole answer, one request at a time, the deployments side by side.

Every request goes to each deployment before the next request begins, and each time another one is first: whatever else
the machine does meets all of them. Figures of two jobs are never compared.
"""

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from include.eval.answers import Answer, Asked
from include.eval.engines import Engine
from include.eval.models import device, device_name
from include.runtime.generation import Sampling


def own_length(written: Answer) -> int:
    """An answer's length in the tokens it was written in."""
    return len(written.tokens)


@dataclass(frozen=True)
class Served:
    """A deployment ready to answer. length: of its answers, in the tokens that all deployments are compared in."""

    engine: Engine
    sampling: Sampling
    length: Callable[[Answer], int] = own_length


@dataclass(frozen=True)
class Sample:
    """One request: how long the whole answer took, and how many tokens it has by `Served.length`."""

    id: str
    seconds: float
    tokens: int
    finish_reason: str


def hardware() -> str:
    """The hardware class of the figures: machine type, processor or accelerator, threads."""
    processor = device_name() if device().type != "cpu" else _processor()
    return f"{platform.machine()}; {processor}; {torch.get_num_threads()} threads"


def _processor() -> str:
    """The processor's own name, where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "cpu")
    except OSError:
        return "cpu"


def side_by_side(
    served: Mapping[str, Served],
    requests: Sequence[Mapping[str, Asked]],
    seed: int,
    between: Callable[[], None] = lambda: None,
) -> dict[str, list[Sample]]:
    """Samples by deployment, in the order of `requests` (each: what every deployment is asked, by name).

    Args:
        between: called before each request; may raise to stop.
    """
    names = sorted(served)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for name in names:
        ask(served[name], requests[0][name], seed)  # warms up caches and kernels; not counted
    for number, request in enumerate(requests):
        between()
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            written, seconds = ask(served[name], request[name], seed)
            samples[name].append(Sample(request[name].id, seconds, served[name].length(written), written.finish_reason))
    return samples


def ask(one: Served, asked: Asked, seed: int) -> tuple[Answer, float]:
    """The whole answer to one request, and the seconds it took."""
    started = time.perf_counter()
    written = one.engine.answers([asked], one.sampling, seed, 1)[0]
    if device().type == "cuda":
        torch.cuda.synchronize()
    return written, time.perf_counter() - started


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
