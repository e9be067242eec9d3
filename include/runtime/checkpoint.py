"""Checkpoints that are whole or are not there: written aside, made durable, renamed; found again by verifying.

    attempts/<n>-<job>.<restart>/checkpoints/step-N/
        <group>.safetensors   tensors by name: weights, optimiser moments; or <group>@<rank>.safetensors, the pieces that each rank has
        state.json            plain JSON: step, random state of each rank, data position, the program's own counters
        <more files>          as the program gives them
        manifest.json         sha256 of each file, written last; then the folder is renamed from step-N.tmp

Several ranks save together: each writes and hashes its own files, the first one the rest, once all have said that theirs are durable.
No pickle: whoever may write into the store cannot thereby run code. A half-written folder is named and left alone.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from include.domain.errors import IntegrityError, RecordError
from include.domain.layout import AttemptName, checkpoint_name, checkpoint_step
from include.domain.manifest import MANIFEST, FileEntry, Manifest, file_entry, verify_files
from include.runtime.errors import CheckpointError, RuntimeFault
from include.runtime.files import json_bytes, read_json, sync_folder, write_durable
from include.runtime.pieces import Owned, Pieces, Stored, groups_in, write_groups
from include.runtime.ranks import ALONE, Ranks, all_did, first_did
from include.runtime.supersede import attempts_in, newer_attempt

FOLDER = "checkpoints"
STATE = "state.json"
ASIDE = ".tmp"
REMOVED = ".removed"
SCHEMA = "align/checkpoint/v1"
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Snapshot:
    """What a program must have to go on exactly: tensors by group, plain state, and files of its own.

    Of several ranks the first one's is saved, and of the others' what are `Pieces`.
    """

    groups: Mapping[str, Tensors]
    state: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def of_rank(self, rank: int) -> "Snapshot":
        """What of it this rank writes."""
        return self if rank == 0 else Snapshot({group: own for group, own in self.groups.items() if isinstance(own, Pieces) and own})

    def copied(self) -> "Snapshot":
        """The same with tensors of its own on the CPU: what happens to the model afterwards does not touch it."""
        return Snapshot({group: _owned(tensors) for group, tensors in self.groups.items()}, json.loads(json.dumps(self.state)), self.files)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of an attempt stay: the latest, milestones every so many steps (0: none), and the newest so many
    of those marked as best (None: all of them). The one resumed from, and other attempts', are never removed."""

    keep_last: int = 2
    keep_every_steps: int = 0
    keep_best: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise CheckpointError(f"keep_checkpoints is {self.keep_last}: at least the latest must stay")

    def leaving(self, steps: Sequence[tuple[int, bool]]) -> set[int]:
        """Of (step, marked as best), the newest first: the steps that may go."""
        best = [step for step, marked in steps if marked][: self.keep_best]
        milestones = {step for step, _ in steps if self.keep_every_steps and step % self.keep_every_steps == 0}
        return {step for step, _ in steps[self.keep_last :]} - set(best) - milestones


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint of any attempt of the key. files: those of its manifest, no others are read; None: all that are there."""

    path: Path
    step: int
    attempt: str
    state: Mapping[str, Any]
    random: Mapping[str, Any]
    files: tuple[str, ...] | None = None

    @property
    def groups(self) -> list[str]:
        return groups_in(self.path, self.files)

    def load(self, group: str) -> Stored:
        """The tensors of one group, whole, whatever layout wrote them."""
        return Stored(self.path, group, self.files)

    def file(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise CheckpointError(f"{self.path} has no file {name!r}")
        return path


@dataclass(frozen=True)
class SetAside:
    """A checkpoint folder that is not used, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint, if there is one, and what was passed over on the way."""

    checkpoint: Checkpoint | None
    set_aside: tuple[SetAside, ...] = ()


class CheckpointStore:
    """The checkpoints of all attempts of one key: reads any, writes and removes only in its own attempt (but for `_prune`'s leftovers)."""

    def __init__(
        self, attempts: Path, own: str, key: str, retention: Retention | None = None, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.attempts = attempts
        self.own = own
        self.key = key
        self.retention = retention or Retention()
        self.identity = identity or {}
        self.in_use: Path | None = None

    @property
    def folder(self) -> Path:
        return self.attempts / self.own / FOLDER

    def find(self, *, fresh_start: bool = False, ranks: Ranks = ALONE) -> Found:
        """The checkpoint of the highest step, over all attempts, that verifies whole; the same on all ranks, which share the reading.

        A folder that was never renamed (``step-N.tmp``) is a save that was cut off: named, and not used. Renamed ones
        of which none is whole are damage: refused, unless a fresh start is asked for in so many words.

        Raises:
            CheckpointError: checkpoints are there and none is whole; the message names each with its reason.
        """
        listed = [[self._name(path) for path in paths] for paths in (self._half_written(), self._candidates())]
        half_written, candidates = ranks.gather(listed)[0]
        aside = [SetAside(name, "half-written: the save was cut off") for name in half_written]
        damaged = []
        for name in candidates:
            path = self.attempts / name
            try:
                checkpoint = self._open(path, ranks)
            except (IntegrityError, RuntimeFault, RecordError) as error:
                damaged.append(SetAside(name, str(error)))
                continue
            self.in_use = path
            return Found(checkpoint, (*damaged, *aside))
        if damaged and not fresh_start:
            said = "; ".join(f"{item.name}: {item.reason}" for item in damaged)
            raise CheckpointError(f"no checkpoint of {self.attempts} is whole ({said}). Set fresh_start to begin again at step 0")
        return Found(None, (*damaged, *aside))

    def at(self, step: int) -> Checkpoint:
        """A whole checkpoint of exactly this step, of any attempt, this one's first."""
        paths = [path for path in self._candidates() if checkpoint_step(path.name) == step]
        reasons = []
        for path in sorted(paths, key=lambda p: p.parent.parent.name != self.own):
            try:
                return self._open(path)
            except (IntegrityError, RuntimeFault, RecordError) as error:
                reasons.append(f"{self._name(path)}: {error}")
        raise CheckpointError(f"no whole checkpoint of step {step} below {self.attempts}: {'; '.join(reasons) or 'there is none'}")

    def save(self, step: int, snapshot: Snapshot, random: Mapping[str, Any], *, keep: bool = False, ranks: Ranks = ALONE) -> Path:
        """Writes one, whole or not at all; every rank calls it, with a snapshot of its own. `keep` protects it from retention."""
        final = self.folder / checkpoint_name(step)
        if ranks.gather(final.exists())[0]:
            return final
        aside = final.with_name(final.name + ASIDE)
        entries = all_did(ranks, lambda: write_groups(aside, snapshot.of_rank(ranks.rank).groups, ranks.rank))
        first_did(ranks, lambda: self._finish(aside, final, snapshot, random, keep, entries))
        return final

    def _finish(
        self, aside: Path, final: Path, snapshot: Snapshot, random: Mapping[str, Any], keep: bool, entries: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """What the first rank does when all files of tensors are durable."""
        step = checkpoint_step(final.name)
        for name, data in snapshot.files.items():
            write_durable(aside / name, data)
        state = {"schema": "align/checkpoint-state/v1", "step": step, "random": random, "program": snapshot.state}
        if self.identity:
            state["identity"] = self.identity
        write_durable(aside / STATE, json_bytes(state))
        files = sorted(
            [*entries, *(file_entry(aside, name).to_json() for name in (STATE, *snapshot.files))], key=lambda entry: entry["path"]
        )
        manifest = {"schema": SCHEMA, "key": self.key, "attempt": self.own, "step": step, "keep": keep, "files": files}
        write_durable(aside / MANIFEST, json_bytes(manifest))
        sync_folder(aside)
        os.rename(aside, final)
        sync_folder(self.folder)
        self._prune()
        return []

    def _open(self, path: Path, ranks: Ranks = ALONE) -> Checkpoint:
        """One that is whole; each rank hashes some of its files. Raises what is wrong with it, on all ranks."""
        opened = []

        def verify() -> list[Any]:
            manifest = self._stated(path)
            largest_first = sorted(manifest.files, key=lambda entry: (-entry.size, entry.path))
            verify_files(manifest, path, only=ranks.deal(largest_first))
            state, files = read_json(path / STATE), tuple(entry.path for entry in manifest.files)
            opened.append(Checkpoint(path, state["step"], path.parent.parent.name, state["program"], state["random"], files))
            return []

        all_did(ranks, verify)
        return opened[0]

    def _stated(self, path: Path) -> Manifest:
        """What a checkpoint's manifest says, if it is one of this run."""
        stated = read_json(path / MANIFEST)
        step = checkpoint_step(path.name)
        if stated.get("schema") != SCHEMA:
            raise CheckpointError(f"{path / MANIFEST} has schema {stated.get('schema')!r}, expected {SCHEMA!r}")
        if stated.get("key") != self.key:
            raise CheckpointError(f"{path} is a checkpoint of {stated.get('key')}, not of this run {self.key}{self._difference(path)}")
        if step is None or stated.get("step") != step:
            raise CheckpointError(f"{path} says step {stated.get('step')}")
        return Manifest("model", tuple(FileEntry(f["path"], f["size"], f["sha256"]) for f in stated.get("files", ())))

    def _difference(self, path: Path) -> str:
        """In which fields the other run differs from this one, as far as it says."""
        try:
            theirs = read_json(path / STATE).get("identity")
        except RuntimeFault:
            return ""
        if not isinstance(theirs, Mapping) or not self.identity:
            return ""
        return ": " + ("; ".join(differences(theirs, self.identity)) or "no field differs, so one of the two keys is wrong")

    def _folders(self) -> Iterator[Path]:
        for attempt in attempts_in(self.attempts):
            folder = self.attempts / str(attempt) / FOLDER
            if folder.is_dir():
                yield from (path for path in folder.iterdir() if path.is_dir())

    def _candidates(self) -> list[Path]:
        """Renamed checkpoint folders, the highest step first (as numbers), of equal ones the newest attempt's."""
        found = [path for path in self._folders() if checkpoint_step(path.name) is not None]
        return sorted(found, key=lambda p: (checkpoint_step(p.name), AttemptName.parse(p.parent.parent.name)), reverse=True)

    def _half_written(self) -> list[Path]:
        names = [path for path in self._folders() if path.name.endswith(ASIDE)]
        return sorted(path for path in names if checkpoint_step(path.name.removesuffix(ASIDE)) is not None)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.attempts).as_posix()

    def _prune(self) -> None:
        """Keeps what the retention keeps, and the one this attempt resumed from.

        Nothing is removed once a newer attempt is there: it may be reading. What an attempt had put aside for removal when it died is
        gone for every reader already, and is removed too.
        """
        own = [path for path in self._candidates() if path.parent == self.folder]
        if newer_attempt(self.attempts, self.own) is not None:
            return
        for left in [path for path in self._folders() if path.name.endswith(REMOVED)]:
            shutil.rmtree(left, ignore_errors=True)
        marked = [(int(path.name.removeprefix("step-")), bool(read_json(path / MANIFEST).get("keep"))) for path in own]
        going = self.retention.leaving(marked)
        for path, (step, _) in zip(own, marked, strict=True):
            if step in going and path != self.in_use:
                leaving = path.with_name(path.name + REMOVED)
                os.rename(path, leaving)
                shutil.rmtree(leaving)


def differences(there: Mapping[str, Any], here: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Each field of two nested mappings that is not the same, with both values."""
    for name in sorted(set(there) | set(here)):
        theirs, ours = there.get(name), here.get(name)
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
            yield from differences(theirs, ours, f"{where}{name}.")
        elif json.loads(json.dumps(theirs)) != json.loads(json.dumps(ours)):
            yield f"{where}{name} is {theirs!r} there, {ours!r} here"


def _owned(tensors: Tensors) -> Owned:
    return tensors if isinstance(tensors, Owned) else Owned((name, t.detach().to("cpu", copy=True)) for name, t in tensors.items())
