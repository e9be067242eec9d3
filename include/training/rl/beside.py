"""What every source of answers with generators beside the trainer does: publishes the actor, starts and ends the generators."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from include.domain.errors import IntegrityError
from include.runtime.checkpoint import Checkpoint
from include.runtime.job import Job
from include.runtime.ranks import first_did
from include.training.rl.actor import Drawing
from include.training.rl.exchange import Exchange, GeneratorPlan, Portion
from include.training.rl.generators import Generators
from include.training.rl.settings import LagSettings, PpoSettings
from include.training.rl.sources import OwnSource


class BesideTrainer:
    """On several ranks the first one has the exchange and the generators, and tells the others what came."""

    def __init__(self, job: Job, settings: PpoSettings, lag: LagSettings, own: OwnSource, *, keep: int, count: int) -> None:
        """`keep`: versions that stay beside the newest one; `count`: of generators."""
        self.job = job
        self.settings = settings
        self.lag = lag
        self.own = own
        self.exchange: Exchange | None = None
        self._keep, self._count = keep, count
        self._generators: Generators | None = None
        self._beside = job.ranks.gather(socket.gethostname()).count(socket.gethostname())
        """Ranks on this machine, each with a GPU where there are GPUs."""

    def open(
        self, step: int, weights: Mapping[str, torch.Tensor], updates: int, earlier: Mapping[int, tuple[int, Mapping[str, torch.Tensor]]]
    ) -> tuple[Exchange, Generators]:
        """A fresh exchange with the actor as version `step` and the `earlier` ones (optimiser steps and weights by version), and its generators."""
        self.exchange = exchange = Exchange.fresh(self.job.out)
        for version, (behind, old) in sorted(earlier.items()):
            exchange.publish(version, behind, old, self._keep)
        exchange.publish(step, updates, weights, self._keep)
        exchange.put_plan(self._plan(step))
        self._generators = generators = Generators(self.job, exchange, self._count, self._beside)
        generators.start_all()
        return exchange, generators

    def _plan(self, first: int) -> GeneratorPlan:
        """What generators are told of a run that draws from iteration `first` on."""
        return GeneratorPlan(
            policy=str(self.job.input("policy")),
            attention=self.settings.attention,
            threads=torch.get_num_threads(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            first=first,
            iterations=self.settings.iterations,
            ahead=self.lag.ahead,
            encoded=tuple(tuple(ids) for ids in self.own.encoded),
            draw=self.own.settings,
            lora=self.settings.lora,
            steady=self.lag.steady,
        )

    def check(self, exchange: Exchange, portion: Portion, wanted: Sequence[tuple[int, int]], step: int) -> None:
        """`wanted`: (row, seed) of each answer. See `Exchange.check`."""
        exchange.check(portion, [self.own.encoded[row] for row, _ in wanted], step)

    def published(self, version: int, actor: Drawing, updates: int) -> None:
        if self.exchange is None or version >= self.settings.iterations:
            return
        exchange, weights = self.exchange, actor.weights()

        def publish() -> list[Any]:
            exchange.publish(version, updates, weights, self._keep)
            return []

        first_did(self.job.ranks, publish)

    def load(self, version: int, model: Any) -> None:
        if self.exchange is None:
            raise IntegrityError(f"version {version} of the actor has not been published")
        self.exchange.load(version, model)

    def capture(self) -> tuple[dict[str, Mapping[str, torch.Tensor]], dict[str, Any]]:
        """Nothing: a new attempt's generators begin with the weights of then."""
        return {}, {}

    def restore(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
        """Nothing was kept."""

    def end(self) -> None:
        """Ends the generators; nothing of the exchange stays."""
        if self._generators is not None:
            self._generators.end()
