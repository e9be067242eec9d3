"""Reward models of several seeds, trained one after the other in one run; one seed is an ensemble of one.

Members differ in their head's start and in the order of their data, and in nothing else. The ensemble's steps are its
members' steps in a row, so a run that dies goes on in the very member and step. A member that is done stays in the
checkpoint of its last step, which is protected; its best state is read from there when everything is trained.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from include.domain.errors import SpecError
from include.domain.outcomes import StopReason
from include.runtime import rng
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.errors import CheckpointError
from include.runtime.pieces import Owned
from include.runtime.settings import Settings
from include.training.loop import StepResult

SIZES = (3, 4, 5)


class Member(Protocol):
    """What trains one member (`reward.program.RewardTrainer`)."""

    engine: Any
    seed: int
    total: int
    best: Owned
    best_step: int

    def train_step(self, step: int) -> StepResult: ...

    def score(self, pairs: Any) -> Any: ...

    def capture(self) -> Snapshot: ...

    def restore(self, checkpoint: Checkpoint) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A member that is done: `at` is the ensemble's step with which it ended, `early` whether before its last one."""

    seed: int
    at: int
    best_step: int
    early: bool


def ensemble_seeds(config: Settings, own: int) -> tuple[int, ...]:
    """config.seeds, or the run's own seed alone."""
    given = config.values.get("seeds") or ()
    seeds = tuple(given)
    if not seeds:
        return (own,)
    if len(seeds) not in SIZES or len(set(seeds)) != len(seeds) or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise SpecError(f"config.seeds {list(seeds)}: give {SIZES[0]} to {SIZES[-1]} different whole numbers, or none")
    return seeds


def member_name(index: int) -> str:
    """The output of member `index` (from 0): reward_model, reward_model_2, …"""
    return "reward_model" if index == 0 else f"reward_model_{index + 1}"


class EnsembleTrainer:
    """Trains each seed's member to its end, then the next."""

    def __init__(self, begin: Callable[[int], Member], seeds: Sequence[int]) -> None:
        self._begin = begin
        self.seeds = tuple(seeds)
        self.trainer = begin(self.seeds[0])
        self.within = 0
        self.finished: list[Finished] = []

    @property
    def total(self) -> int:
        """Steps of all members, if none stops early."""
        return self.trainer.total * len(self.seeds)

    def train_step(self, step: int) -> StepResult:
        if self.finished and self.within == 0:
            self._change_to(len(self.finished))
        result = self.trainer.train_step(self.within)
        self.within += 1
        if result.stop is None and self.within < self.trainer.total:
            return self._of_member(result)
        early = result.stop is not None
        self.finished.append(Finished(self.trainer.seed, step + 1, self.trainer.best_step, early))
        last = len(self.finished) == len(self.seeds)
        if not last:
            self.within = 0
        stop = StopReason.EARLY_STOP if last and step + 1 < self.total else None
        return self._of_member(StepResult(result.metrics, result.tokens, stop, result.keep), ended=True)

    def _of_member(self, result: StepResult, *, ended: bool = False) -> StepResult:
        if len(self.seeds) == 1:
            return result
        member = len(self.finished) - ended
        # Only checkpoints with which a member ends are protected: a member's best so far must not push another member out.
        return StepResult({**result.metrics, "member": float(member + 1)}, result.tokens, result.stop, keep=ended)

    def _change_to(self, index: int) -> None:
        """A new member in place of the present one; its chance comes from its own seed."""
        rank = self.trainer.engine.data.rank
        del self.trainer
        gc.collect()
        rng.seed_all(self.seeds[index], rank)
        self.trainer = self._begin(self.seeds[index])

    def best_of(self, index: int, at: Callable[[int], Checkpoint]) -> Mapping[str, torch.Tensor]:
        """The best state of a finished member: here, or in the checkpoint (`at` a step) with which it ended."""
        if index == len(self.finished) - 1:
            return self.trainer.best
        return at(self.finished[index].at).load("best")

    def capture(self) -> Snapshot:
        own = self.trainer.capture()
        progress = {"seeds": list(self.seeds), "within": self.within, "finished": [asdict(member) for member in self.finished]}
        return Snapshot(own.groups, {**own.state, "ensemble": progress}, own.files)

    def restore(self, checkpoint: Checkpoint) -> None:
        progress = checkpoint.state["ensemble"]
        if list(self.seeds) != progress["seeds"]:
            raise CheckpointError(f"{checkpoint.path} is of seeds {progress['seeds']}, this run has {list(self.seeds)}")
        self.finished = [Finished(**member) for member in progress["finished"]]
        self.within = int(progress["within"])
        saved = len(self.finished) - (1 if self.finished and (self.within == 0 or len(self.finished) == len(self.seeds)) else 0)
        if saved:
            self._change_to(saved)
        self.trainer.restore(checkpoint)
