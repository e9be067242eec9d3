"""PPO's usual source of answers: a group of generators beside the trainer, each iteration drawn by the version `limit` behind it.

Drawing and learning overlap, and still a run repeats to the bit: which version writes an answer is a matter of the iteration's
number, never of timing. The trainer waits for its generators; one that ends or hangs is started again and draws the same
answers once more. A checkpoint has the earlier versions that the next iterations are drawn by.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import load_file

from include.domain.errors import IntegrityError
from include.runtime.checkpoint import Checkpoint
from include.runtime.job import Job
from include.runtime.ranks import first_did
from include.training.errors import TrainingError
from include.training.rl.actor import Drawing
from include.training.rl.beside import BesideTrainer
from include.training.rl.draw import Drawn
from include.training.rl.exchange import FOLDER, Exchange, Portion
from include.training.rl.generators import POLL_S, START_S, Generators
from include.training.rl.settings import LagSettings, PpoSettings
from include.training.rl.sources import OwnSource

RESTARTS = 3
"""So often in one attempt one generator that ended or hangs is started again; after that the run fails."""
GROUP = "sampler.v"
"""Groups of a checkpoint with an earlier version's weights: this and five digits."""


class ApartSource(BesideTrainer):
    """Answers of iteration k by version max(0, k − limit), however long they take."""

    def __init__(self, job: Job, settings: PpoSettings, lag: LagSettings, own: OwnSource) -> None:
        super().__init__(job, settings, lag, own, keep=lag.limit, count=job.settings.positive("generators", 1))
        self._earlier: dict[int, tuple[int, Mapping[str, torch.Tensor]]] = {}
        """Version → optimiser steps and weights, as a checkpoint had them; until they are published again."""
        self._restarts: Counter[int] = Counter()
        self._version = 0

    def draw(self, step: int, actor: Drawing, updates: int) -> Drawn:
        weights = actor.weights() if self.exchange is None else {}  # every rank takes part, the first one publishes
        came = first_did(self.job.ranks, lambda: self._came(step, weights, updates))
        self.exchange = self.exchange or Exchange(self.job.out / FOLDER)
        portions = [Portion.from_json(body) for body in came]
        answers = [answer for portion in portions for answer in portion.answers]
        rows = [row for part in self.own.settings.portions(step, len(self.own.encoded)) for row, _ in part]
        versions = [portion.version for portion in portions for _ in portion.answers]
        steps = [portion.updates for portion in portions for _ in portion.answers]
        digests = {portion.version: str(portion.digest) for portion in portions}
        return Drawn(rows, answers, versions, steps, digests=digests)

    def _came(self, step: int, weights: Mapping[str, torch.Tensor], updates: int) -> list[dict[str, Any]]:
        if self.exchange is None:
            self._start(step, weights, updates)
        return [asdict(portion) for portion in self._wait(step)]

    def _drawn_by(self, step: int) -> int:
        return max(0, step - self.lag.limit)

    def _start(self, step: int, weights: Mapping[str, torch.Tensor], updates: int) -> None:
        if missing := sorted(self._due(step) - set(self._earlier)):
            raise IntegrityError(
                f"version {missing[0]} of the actor, by which iteration {step + 1} and later ones are drawn, is in no checkpoint"
            )
        self.open(step, weights, updates, self._earlier)
        self._version, self._earlier = step, {}

    def _wait(self, step: int) -> Sequence[Portion]:
        """All portions of iteration `step`. The wait for a sign of life begins anew with each, and with each start of a generator."""
        exchange, generators = self._running()
        wanted = self.own.settings.portions(step, len(self.own.encoded))
        came: dict[int, Portion] = {}
        until = self._patience(generators)
        while missing := [number for number in range(len(wanted)) if number not in came]:
            for number in missing:
                if (portion := exchange.answers(step, number)) is not None:
                    came[number] = self._checked(exchange, portion, wanted[number], step)
            seen = {number: f"ended with code {code}" for number, code in generators.ended().items()}
            if not seen and time.monotonic() > until:
                seen = {number % generators.count: f"gave nothing for {self.lag.wait_s:g} s" for number in missing}
            for number, words in seen.items():
                self._again(generators, number, words)
            if seen or any(number in came for number in missing):
                until = self._patience(generators)
            else:
                time.sleep(POLL_S)
        exchange.close(step)
        exchange.take_away([], step)
        return [came[number] for number in range(len(wanted))]

    def _patience(self, generators: Generators) -> float:
        return time.monotonic() + (self.lag.wait_s if generators.all_ready else max(START_S, self.lag.wait_s))

    def _again(self, generators: Generators, number: int, seen: str) -> None:
        """Starts a generator once more: what it draws is the same."""
        self._restarts[number] += 1
        if self._restarts[number] > RESTARTS:
            raise TrainingError(
                f"generator {number} {seen}, after {RESTARTS} new starts in this attempt; see {self.job.out / 'generator.log'}"
            )
        self.job.warn(f"generator {number} {seen} (see generator.log) and is started again: it draws the same answers")
        generators.kill(number)
        generators.start(number)

    def _checked(self, exchange: Exchange, portion: Portion, wanted: Sequence[tuple[int, int]], step: int) -> Portion:
        if portion.version != (due := self._drawn_by(step)):
            raise IntegrityError(f"iteration {step + 1}: the generator drew with version {portion.version}, due is {due}")
        self.check(exchange, portion, wanted, step)
        return portion

    def _running(self) -> tuple[Exchange, Generators]:
        if self.exchange is None or self._generators is None:
            raise IntegrityError("nothing has been published: the first rank draws before it waits")
        return self.exchange, self._generators

    def published(self, version: int, actor: Drawing, updates: int) -> None:
        self._version = version
        super().published(version, actor, updates)

    def _due(self, present: int) -> set[int]:
        """Versions before the present one that iterations to come are drawn by."""
        coming = range(present, min(present + self.lag.limit, self.settings.iterations))
        return {self._drawn_by(step) for step in coming} - {present}

    def capture(self) -> tuple[dict[str, Mapping[str, torch.Tensor]], dict[str, Any]]:
        """Groups and state for a checkpoint; of the first rank alone, as it has the published files."""
        if not self.job.ranks.main:
            return {}, {}
        held = self._earlier
        if self.exchange is not None:
            folders = {version: self.exchange.weights_file(version) for version in sorted(self._due(self._version))}
            held = {version: (self.exchange.updates(version), load_file(path)) for version, path in folders.items()}
        groups = {f"{GROUP}{version:05d}": weights for version, (_, weights) in held.items()}
        return groups, {f"{version:05d}": updates for version, (updates, _) in held.items()}

    def restore(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
        """Every rank calls it; the first one keeps what it is to publish again."""
        if self.job.ranks.main:
            self._earlier = {int(name): (int(updates), dict(checkpoint.load(f"{GROUP}{name}"))) for name, updates in state.items()}
