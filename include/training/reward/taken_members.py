"""An ensemble whose members were trained as runs of their own: their best states are read from what they gave, nothing is trained."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from include.domain.errors import IntegrityError
from include.domain.manifest import MANIFEST, Manifest
from include.runtime.checkpoint import Checkpoint
from include.runtime.files import read_json
from include.training.reward.ensemble import Finished, Member
from include.training.reward.head import load_reward_model

_WRAPPED = "model."
"""The trainer's names of a reward model's weights begin so."""


class TakenMembers:
    """What `EnsembleTrainer` is when it has trained everything, out of the members' folders in the order of their seeds."""

    def __init__(self, begin: Callable[[int], Member], seeds: Sequence[int], folders: Sequence[Path]) -> None:
        self.seeds = tuple(seeds)
        self.folders = tuple(folders)
        self.trainer = begin(self.seeds[0])
        self.finished = [_finished(seed, at, folder) for at, (seed, folder) in enumerate(zip(seeds, folders, strict=True), 1)]

    def best_of(self, index: int, at: Callable[[int], Checkpoint]) -> Mapping[str, torch.Tensor]:
        """The weights that member `index` handed on."""
        return {_WRAPPED + name: value for name, value in load_reward_model(self.folders[index]).named_parameters()}


def _finished(seed: int, at: int, folder: Path) -> Finished:
    meta = Manifest.from_json(read_json(folder / MANIFEST)).meta
    if meta.get("seed") != seed:
        raise IntegrityError(f"{folder} is the member of seed {meta.get('seed')}, not of seed {seed}")
    return Finished(seed, at, int(meta["best_step"]), early=False)


def hand_on(member: Path, folder: Path) -> None:
    """The member's files as this run's own: by a second name of the same bytes where the file system gives one, else as a copy."""
    for entry in Manifest.from_json(read_json(member / MANIFEST)).files:
        target = folder / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(member / entry.path, target)
        except OSError:
            shutil.copyfile(member / entry.path, target)
