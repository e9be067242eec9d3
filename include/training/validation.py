"""Validation loss during training: when to stop, which state to hand on, and whether it learns the rows by heart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from include.runtime.pieces import Owned
from include.runtime.settings import Settings

OVERFIT_RISE = 0.02
"""A last validation loss so much above the best one (a share of it) is warned of as over-fitting."""


@dataclass(frozen=True)
class LookSettings:
    """Every how many updates validation rows are looked at, and after how many looks without a better one the run stops."""

    every_steps: int
    patience: int

    @classmethod
    def of(cls, config: Settings) -> "LookSettings | None":
        """The section `early_stop`; None without it."""
        if "early_stop" not in config:
            return None
        given = config.section("early_stop")
        given.only("every_steps", "patience")
        return cls(given.positive("every_steps", 10), given.positive("patience", 3))


class BestState:
    """The trained weights with the smallest validation loss so far; part of a checkpoint."""

    def __init__(self, settings: LookSettings, loss_of: Callable[[Any], float | None]) -> None:
        self.settings = settings
        self.loss_of = loss_of
        self.weights = Owned()
        self.step, self.loss, self.last, self.looks_since = 0, float("inf"), float("inf"), 0

    def due(self, step: int, total: int) -> bool:
        return step % self.settings.every_steps == 0 or step == total

    def look(self, step: int, module: torch.nn.Module, weights: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """At the validation rows after `step` updates; chance is left as it was. `weights` gives copies of the whole ones."""
        state = torch.get_rng_state()
        found = self.loss_of(module)
        torch.set_rng_state(state)
        self.last = loss = float("inf") if found is None else found
        if loss < self.loss:
            self.step, self.loss, self.looks_since = step, loss, 0
            self.weights = Owned(weights())
        else:
            self.looks_since += 1

    @property
    def done(self) -> bool:
        return self.looks_since >= self.settings.patience

    @property
    def overfit(self) -> bool:
        """Whether the last look was worse than the best by more than noise."""
        return self.last > self.loss * (1 + OVERFIT_RISE)

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "loss": _plain(self.loss), "last": _plain(self.last), "looks_since": self.looks_since}

    def load_state(self, state: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
        self.step, self.looks_since = state["step"], state["looks_since"]
        self.loss, self.last = (float("inf") if state[name] is None else state[name] for name in ("loss", "last"))
        self.weights = Owned(weights)


def _plain(loss: float) -> float | None:
    return None if loss == float("inf") else loss
