"""Reference log-probabilities that outlive the run that computed them.

    <store>/caches/reference-log-probs/<address>/<side>-<start>-<stop>.safetensors

An address is a digest over all that their bits depend on: the very pairs and reference (`reference_key`), the code and
environment, and how the work is cut and on what it is done. So what is read has the bits that computing anew would give,
and another run, or the next attempt of one that died before its first checkpoint, goes on where this one came to.
A part is whole or not there (written aside, renamed), says its own sha256, and is removed and made anew where that is wrong.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from include.domain.canonical import digest
from include.domain.layout import reference_cache_dir
from include.runtime.files import replace_durable
from include.runtime.job import Job
from include.training.pairs.log_probs import PairSums
from include.training.pairs.rows import TokenPair
from include.training.pairs.tensors import by_length

PORTION_PAIRS = 1024
"""So many pairs, rounded up to whole micro-batches, make a part: what a death costs at most."""
NAMES = ("chosen", "rejected")
_PLACEMENT = ("tensor_parallel", "pipeline_parallel", "offload")
_IDENTITY = ("precision", "engine", "zero_stage", "attention")
Compute = Callable[[Sequence[TokenPair]], PairSums]


def address_of(job: Job, reference_key: str, micro_batch: int, device: torch.device) -> str:
    """The name of what this job would compute."""
    return digest(
        "reference-cache",
        {
            "reference": reference_key,
            "own": job.input_digest("reference") == job.input_digest("policy"),
            "program": job.spec.program,
            "code": job.spec.code_revision,
            "environment": job.spec.environment,
            "identity": {name: job.config.values.get(name) for name in _IDENTITY},
            "placement": {name: job.settings.values.get(name) for name in _PLACEMENT},
            "micro_batch": micro_batch,
            "ranks": job.ranks.count,
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability(),
        },
    )


@dataclass
class ReferenceCache:
    """The parts below one address. `taken` and `computed` count pairs.

    folder: None where this run lies in no store: everything is then computed.
    """

    job: Job
    address: str
    micro_batch: int
    folder: Path | None
    taken: int = 0
    computed: int = 0
    _warned: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, job: Job, reference_key: str, micro_batch: int, device: torch.device) -> "ReferenceCache":
        address = address_of(job, reference_key, micro_batch, device)
        runs = job.out.parents[2]
        return cls(job, address, micro_batch, runs.parent / reference_cache_dir(address) if runs.name == "runs" else None)

    def sums(self, side: str, pairs: Sequence[TokenPair], compute: Compute) -> PairSums:
        """Of all pairs of a side, part by part: read where it is there and right, else computed and kept. All ranks call it.

        Args:
            compute: gives the sums of the pairs it is given, in their order, which is by length.
        """
        found = {name: torch.zeros(len(pairs)) for name in NAMES}
        order = by_length(pairs)
        for start, rows in self._portions(order):
            part = f"{side}-{start}-{start + len(rows)}"
            sums = self._agreed(part, len(rows))
            if sums is None:
                sums = compute([pairs[i] for i in rows])
                self.computed += len(rows)
                self._put(part, sums)
            else:
                self.taken += len(rows)
            found["chosen"][rows], found["rejected"][rows] = sums.chosen, sums.rejected
        return PairSums(found["chosen"], found["rejected"])

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return {"address": self.address, "pairs_taken": self.taken, "pairs_computed": self.computed}

    def _portions(self, order: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        size = -(-PORTION_PAIRS // self.micro_batch) * self.micro_batch
        for start in range(0, len(order), size):
            yield start, list(order[start : start + size])

    def _agreed(self, part: str, rows: int) -> PairSums | None:
        """What the first rank read, the same on each: computing is done by all together or by none."""
        own = self._read(part, rows) if self.job.ranks.main else None
        told = self.job.ranks.gather(own and {name: values.tolist() for name, values in own.items()})[0]
        return None if told is None else PairSums(*(torch.tensor(told[name]) for name in NAMES))

    def _read(self, part: str, rows: int) -> Mapping[str, torch.Tensor] | None:
        """None where it is not there, or is not what was written: then it is removed."""
        if self.folder is None:
            return None
        path = self.folder / f"{part}.safetensors"
        try:
            with safe_open(path, "pt") as stream:
                stated, tensors = stream.metadata() or {}, {name: stream.get_tensor(name) for name in NAMES}
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            self._remove(path, str(error))
            return None
        if stated != self._stated(part, tensors) or any(values.shape != (rows,) for values in tensors.values()):
            self._remove(path, "its content is not what its hash says, or it is another part")
            return None
        with suppress(OSError):
            os.utime(self.folder)  # The time of the last use: `align prune` goes by it.
        return tensors

    def _put(self, part: str, sums: PairSums) -> None:
        """By the first rank. A store that cannot be written costs the next run's time, and stops nothing."""
        if self.folder is None or not self.job.ranks.main:
            return
        tensors = {name: getattr(sums, name).contiguous() for name in NAMES}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_durable(self.folder / f"{part}.safetensors", save(tensors, self._stated(part, tensors)))
        except OSError as error:
            self._warn(f"reference log-probabilities are not kept for other runs: {error}")

    def _stated(self, part: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        found = hashlib.sha256(f"{self.address}\0{part}\0".encode())
        for name in NAMES:
            found.update(tensors[name].numpy().tobytes())
        # One entry: safetensors writes several in any order, and equal parts shall be equal files.
        return {"align": json.dumps({"address": self.address, "part": part, "sha256": found.hexdigest()}, sort_keys=True)}

    def _remove(self, path: Path, reason: str) -> None:
        self.job.warn(f"{path} is not used, and made anew: {reason}")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._warn(f"{path} cannot be removed: {error}")

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.append(message)
            self.job.warn(message)
