"""PPO's generator as a process of its own beside the trainer: ``python -m include.training.rl.generator EXCHANGE``.

It draws the answers of one iteration after another with the newest weights the trainer has published, and is paced: it
begins no iteration that is more than `ahead` past them. It ends with the trainer, whichever way that ends.
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

    def __init__(self, exchange: Exchange, plan: GeneratorPlan) -> None:
        self.exchange = exchange
        self.plan = plan
        self.model: Any = load_actor(Path(plan.policy), plan.attention, plan.lora).to(compute_device())
        self.version, self.updates, self.digest = -1, 0, ""
        self._parent = os.getppid()

    @property
    def wanted(self) -> bool:
        return not self.exchange.stopped and os.getppid() == self._parent

    def run(self) -> None:
        self.exchange.ready()
        iteration = self.plan.first
        while self.wanted and iteration < self.plan.iterations:
            versions = self.exchange.versions()
            if not versions or iteration > versions[-1] + self.plan.ahead:
                time.sleep(POLL_S)
                continue
            self._iteration(iteration)
            iteration += 1

    def _iteration(self, iteration: int) -> None:
        for number, wanted in enumerate(self.plan.draw.portions(iteration, len(self.plan.encoded))):
            if not self.wanted or self.exchange.closed(iteration):
                return
            self.refresh()
            answers = draw(self.model, self.plan.encoded, wanted, self.plan.draw)
            self.exchange.put_answers(iteration, number, Portion(self.version, self.updates, tuple(answers), self.digest))

    def refresh(self) -> None:
        """Takes the newest weights; one that goes away while it is read has a newer one behind it."""
        while (newest := self.exchange.versions()[-1]) != self.version:
            try:
                self.updates, self.digest = self.exchange.load(newest, self.model)
                self.version = newest
            except IntegrityError:
                if self.exchange.versions()[-1] == newest:
                    raise


def main(argv: Sequence[str] | None = None) -> int:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the trainer answers them, and then ends this process
    exchange = Exchange(Path((argv or sys.argv[1:])[0]))
    plan = exchange.plan()
    torch.set_num_threads(plan.threads)
    if plan.deterministic:
        rng.make_deterministic()
    Generator(exchange, plan).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
