"""When each update of a Hugging Face trainer was done, and the losses that it logged."""

import time
from typing import Any

import torch
from transformers import TrainerCallback

from benchmarks.training.workload import WARM_UP, Workload, means_of


class Times(TrainerCallback):
    """A GPU is waited for where the measurement begins and ends."""

    def __init__(self, load: Workload, loss: str = "loss") -> None:
        self.load = load
        self.loss = loss
        self.ends: list[float] = []
        self.spent: list[float] = []
        self.losses: list[float] = []
        self.stalls: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.load.device == "cuda" and len(self.ends) in (WARM_UP - 1, self.load.steps - 2):
            torch.cuda.synchronize()
        self.ends.append(time.time())
        self.spent.append(time.process_time())

    def on_save(self, *_: Any, **__: Any) -> None:
        self.stalls.append(time.time() - self.ends[-1])

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        if logs and self.loss in logs:
            self.losses.append(float(logs[self.loss]))

    def to_json(self) -> dict[str, Any]:
        """What a turn tells; refuses a run that made another number of updates."""
        if len(self.ends) != self.load.steps:
            raise SystemExit(f"{len(self.ends)} updates were made, {self.load.steps} were meant")
        losses = self.losses if self.loss == "loss" else means_of(self.losses)  # PPO's trainer logs every iteration
        return {
            "ends": self.ends,
            "cpu": self.spent,
            "loss": losses[-1],
            "losses": losses,
            "stalls": self.stalls[:-1],
        }
