"""One of PPO's generators, a process of its own beside the trainer: ``python -m include.training.rl.generator EXCHANGE NUMBER COUNT TRAINER``.

Of COUNT generators it draws every COUNT-th portion of an iteration, from NUMBER on. Where the plan is steady, each iteration is drawn
by the version `ahead` behind it; else by the newest that the trainer has published, and it is paced: it begins no iteration that
is more than `ahead` past them. It ends with the process TRAINER, its parent, whichever way that ends.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from include.domain.errors import IntegrityError
from include.runtime import rng
from include.runtime.signals import STOP_SIGNALS
from include.training.model_io import compute_device
from include.training.rl.adapters import load_actor
from include.training.rl.draw import draw
from include.training.rl.exchange import Exchange, GeneratorPlan, Portion

POLL_S = 0.02


class Generator:
    """Draws answers as long as somebody wants them."""

    def __init__(self, exchange: Exchange, plan: GeneratorPlan, number: int = 0, count: int = 1, trainer: int | None = None) -> None:
        """`trainer`: the process it ends with; its parent, who may be gone before the model is loaded."""
        self._trainer = os.getppid() if trainer is None else trainer
        self.exchange = exchange
        self.plan = plan
        self.number = number
        self.count = count
        self.model: Any = load_actor(Path(plan.policy), plan.attention, plan.lora).to(compute_device())
        self.version, self.updates, self.digest = -1, 0, ""

    @property
    def wanted(self) -> bool:
        return not self.exchange.stopped and os.getppid() == self._trainer

    def run(self) -> None:
        self.exchange.ready(self.number)
        iteration = self.plan.first
        while self.wanted and iteration < self.plan.iterations:
            if self.exchange.closed(iteration) or self._may_begin(iteration):
                self._iteration(iteration)
                iteration += 1
            else:
                time.sleep(POLL_S)
        while self.plan.steady and self.wanted:  # whoever is gone while answers are missing is taken for dead
            time.sleep(POLL_S)

    def _may_begin(self, iteration: int) -> bool:
        versions = self.exchange.versions()
        return self._due(iteration) in versions if self.plan.steady else bool(versions) and iteration <= versions[-1] + self.plan.ahead

    def _due(self, iteration: int) -> int:
        return max(0, iteration - self.plan.ahead)

    def _iteration(self, iteration: int) -> None:
        for number, wanted in enumerate(self.plan.draw.portions(iteration, len(self.plan.encoded))):
            if number % self.count != self.number or self.exchange.has_answers(iteration, number):
                continue
            if not self.wanted or self.exchange.closed(iteration):
                return
            self.refresh(iteration)
            answers = draw(self.model, self.plan.encoded, wanted, self.plan.draw)
            self.exchange.put_answers(iteration, number, Portion(self.version, self.updates, tuple(answers), self.digest))

    def refresh(self, iteration: int) -> None:
        """Takes the weights that are due; of the newest, one that goes away while it is read has a newer one behind it."""
        if self.plan.steady:
            self._take(self._due(iteration))
            return
        while (newest := self.exchange.versions()[-1]) != self.version:
            try:
                self._take(newest)
            except IntegrityError:
                if self.exchange.versions()[-1] == newest:
                    raise

    def _take(self, version: int) -> None:
        if version != self.version:
            self.updates, self.digest = self.exchange.load(version, self.model)
            self.version = version


def main(argv: Sequence[str] | None = None) -> int:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the trainer answers them, and then ends this process
    folder, *place = argv or sys.argv[1:]
    exchange = Exchange(Path(folder))
    plan = exchange.plan()
    torch.set_num_threads(plan.threads)
    if plan.deterministic:
        rng.make_deterministic()
    Generator(exchange, plan, *(int(part) for part in place)).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
