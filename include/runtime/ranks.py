"""The processes of one job: who is which, and what they settle together.

`Ranks` is also the group of those that share out the rows of a batch (data parallel): an engine gives its own. With one
process everything here gives back what it was given.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from include.domain.errors import SpecError
from include.runtime.errors import RuntimeFault

T = TypeVar("T")
WAIT = timedelta(hours=6)
"""Longest that ranks wait for one another: rank 0 may verify terabytes before the first step."""
_NAMES = {"RANK": ("SLURM_PROCID", "0"), "LOCAL_RANK": ("SLURM_LOCALID", "0"), "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "1")}


@dataclass(frozen=True)
class Ranks:
    """One process's place among `count`. Figures travel over the CPU, so that no GPU waits for them."""

    rank: int = 0
    count: int = 1
    group: Any = None

    @property
    def main(self) -> bool:
        """Whether this process writes what all have done."""
        return self.rank == 0

    def apart(self) -> "Ranks":
        """The same processes over a group of their own, for a thread that settles things beside the others. Every rank calls it."""
        if self.count == 1:
            return self
        everyone = dist.get_process_group_ranks(self.group) if self.group is not None else None
        return Ranks(self.rank, self.count, dist.new_group(everyone, backend="gloo", timeout=WAIT))

    def total(self, *values: float) -> list[float]:
        """Sums over all ranks, in double precision; the very same on each."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def most(self, *values: float) -> list[float]:
        """The largest over all ranks, value by value."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Sequence[float], how: Any) -> list[float]:
        if self.count == 1:
            return list(values)
        settled = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(settled, op=how, group=self.group)
        found: list[float] = settled.tolist()
        return found

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks in their order, on each of them. No pickle is sent."""
        if self.count == 1:
            return [value]
        data = json.dumps(value).encode()
        longest = int(self.most(len(data))[0])
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.zeros_like(own) for _ in range(self.count)]
        dist.all_gather(parts, own, group=self.group)
        return [json.loads(part.numpy().tobytes().rstrip(b"\0")) for part in parts]

    def deal(self, items: Sequence[T]) -> Sequence[T]:
        """Every `count`-th of them, from this rank's own place on: shares that differ by one at most."""
        return items[self.rank :: self.count]

    def collect(self, own: Sequence[Any]) -> list[Any]:
        """What each rank made of its deal (JSON values), put back into the order of the whole; the same on each rank."""
        parts = self.gather(list(own))
        return [parts[i % self.count][i // self.count] for i in range(sum(len(part) for part in parts))]

    def filled(self, part: torch.Tensor) -> torch.Tensor:
        """A whole tensor on the CPU, of which each rank has filled in its own cells and left the others 0.

        Exact: to every cell nothing but zeros is added.
        """
        if self.count > 1:
            dist.all_reduce(part, group=self.group)
        return part

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's equal part of a whole batch, in the batch's order.

        Raises:
            SpecError: the batch cannot be shared equally (unequal parts would leave ranks waiting for each other).
        """
        if self.count == 1:
            return items
        size, odd = divmod(len(items), self.count)
        if odd or not size:
            raise SpecError(f"a batch of {len(items)} cannot be shared equally by {self.count} ranks: set global_batch to a multiple of it")
        return items[self.rank * size : (self.rank + 1) * size]


ALONE = Ranks()
"""A single process."""


def ranks_of_environment() -> Ranks:
    """Rank and count as the launcher (torchrun's names, or Slurm's) gives them; sets torchrun's names from Slurm's.

    DeepSpeed, finding only Slurm's, would look for MPI.
    """
    for name, (source, default) in _NAMES.items():
        os.environ.setdefault(name, os.environ.get(source, default))
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not 0 <= rank < count:
        raise SpecError(f"RANK is {rank} of WORLD_SIZE {count}")
    return Ranks(rank, count)


def join(ranks: Ranks) -> Ranks:
    """Meets the other processes of the job; without others there is nothing to do.

    Figures go over gloo, tensors on a GPU over NCCL. MASTER_ADDR and MASTER_PORT name where rank 0 listens.
    """
    if ranks.count == 1:
        return ranks
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise SpecError(f"{ranks.count} ranks were started without MASTER_ADDR and MASTER_PORT: they cannot find each other")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=WAIT)
    else:
        dist.init_process_group("gloo", timeout=WAIT)
    return Ranks(ranks.rank, ranks.count, dist.new_group(backend="gloo", timeout=WAIT))


def leave(ranks: Ranks) -> None:
    """Leaves the group that `join` met, in order; without it some runs abort at exit."""
    if ranks.count > 1 and dist.is_initialized():
        dist.destroy_process_group()


def all_did(ranks: Ranks, work: Callable[[], list[Any]]) -> list[Any]:
    """What each rank's work gave (JSON values), the first one's first; the same on each.

    Raises:
        RuntimeFault: it failed on another rank, which raises its own error.
    """
    failed: Exception | None = None
    try:
        own, said = work(), ""
    except Exception as error:  # noqa: BLE001 - the other ranks wait for a word, whatever it is
        failed, own, said = error, [], f"{type(error).__name__}: {error}"
    answers = ranks.gather([own, said])
    if failed is not None:
        raise failed
    if faults := [(rank, text) for rank, (_, text) in enumerate(answers) if text]:
        raise RuntimeFault(f"rank {faults[0][0]}: {faults[0][1]}")
    return [item for found, _ in answers for item in found]


def first_did(ranks: Ranks, work: Callable[[], list[Any]]) -> list[Any]:
    """What the first rank's work gave (JSON values), which it does alone; the same on each.

    Raises:
        RuntimeFault: it failed; the first rank raises its own error.
    """
    return all_did(ranks, lambda: work() if ranks.main else [])
