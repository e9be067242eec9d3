"""Which weights drew an answer: a digest of what the actor learns, the same whatever the number of ranks and after any resume.

sha256 over a line a weight, in the order of names: ``<name> <dtype> <shape> <sha256 of its bytes>``. Ranks share the weights out among
themselves, and hashing goes on beside the copying.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from include.runtime.ranks import Ranks

_THREADS = 2
_WAITING = 8
"""So many copied weights of a rank may wait to be hashed; more would be the model once more in memory."""


class WeightsSeen:
    """Hashes weights while they pass by."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._lines: dict[str, str] = {}

    def passing(self, weights: Iterable[tuple[str, torch.Tensor]], *, copied: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """`weights` as they are. Every rank goes through all of them, in the same order.

        Args:
            weights: name → weight.
            copied: each holds until the next only; else they stay as they are until all have passed.
        """
        waiting: deque[tuple[str, Future[str]]] = deque()
        with ThreadPoolExecutor(_THREADS) as pool:
            for number, (name, value) in enumerate(weights):
                if number % self._ranks.count == self._ranks.rank:
                    own = value.detach().to("cpu", copy=copied).contiguous()
                    waiting.append((name, pool.submit(_line, name, own)))
                    self._take(waiting, _WAITING)
                yield name, value
            self._take(waiting, 0)

    def _take(self, waiting: deque[tuple[str, Future[str]]], most: int) -> None:
        while len(waiting) > most:
            name, line = waiting.popleft()
            self._lines[name] = line.result()

    def digest(self) -> str:
        """Of all weights that have passed; every rank calls it."""
        return _over({name: line for lines in self._ranks.gather(self._lines) for name, line in lines.items()})


def weights_digest(weights: Mapping[str, torch.Tensor], ranks: Ranks | None = None) -> str:
    """Of whole weights by name, which every rank holds; every rank calls it."""
    seen = WeightsSeen(ranks or Ranks())
    for _ in seen.passing(weights.items(), copied=False):
        pass
    return seen.digest()


def _line(name: str, value: torch.Tensor) -> str:
    shape = "x".join(str(size) for size in value.shape)
    content = hashlib.sha256(value.reshape(-1).view(torch.uint8).numpy()).hexdigest()
    return f"{name} {str(value.dtype).removeprefix('torch.')} {shape} {content}\n"


def _over(lines: Mapping[str, str]) -> str:
    return f"sha256:{hashlib.sha256(''.join(lines[name] for name in sorted(lines)).encode()).hexdigest()}"
