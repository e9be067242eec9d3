"""What a job says while it runs: progress.json, rewritten whole, metrics.jsonl, a line a step, and now and then a line in its log."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from include.runtime import job_log
from include.runtime.files import json_bytes, replace_quickly

PROGRESS = "progress.json"
METRICS = "metrics.jsonl"
_LEAST_SECONDS_BETWEEN_WRITES = 0.5
_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts steps and tokens of one attempt, and writes them where readers look (of several ranks the first one does)."""

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        self.folder = folder
        self.writes = writes
        self.started = time.monotonic()
        self.asked_steps = 0
        self.first_step = 0
        self.step = 0
        self.tokens = 0
        self.last_checkpoint: dict[str, Any] | None = None
        self._loop_started = self.started
        self._written = self._said = 0.0
        if writes:
            job_log.take()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def begin(self, first_step: int) -> None:
        """The work itself starts now, from `first_step` steps already done."""
        self.first_step = self.step = first_step
        self._loop_started = time.monotonic()
        self.write()

    def record(self, step: int, metrics: Mapping[str, float], tokens: int) -> None:
        """One line more in metrics.jsonl; progress.json at most twice a second. A figure that is not finite is null."""
        self.step, self.tokens = step, self.tokens + tokens
        if not self.writes:
            return
        figures = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        line = {"step": step, "time": time.time(), "tokens": self.tokens, **figures}
        with open(self.folder / METRICS, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, sort_keys=True, allow_nan=False) + "\n")
        if step >= self.asked_steps or time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            job_log.say(self._in_words(metrics))
        if time.monotonic() - self._written >= _LEAST_SECONDS_BETWEEN_WRITES or step >= self.asked_steps:
            self.write()

    def _in_words(self, metrics: Mapping[str, float]) -> str:
        figures = "".join(f", {name} {value:.4g}" for name, value in sorted(metrics.items()))
        saved = f", checkpoint {self.last_checkpoint['step']}" if self.last_checkpoint else ""
        left = f", about {eta:.0f} s left" if (eta := self._eta_s()) else ""
        return f"step {self.step} of {self.asked_steps}{figures}{saved}{left}"

    def saved(self, step: int, attempt: str) -> None:
        """A checkpoint is whole."""
        self.last_checkpoint = {"step": step, "attempt": attempt}
        self.write()

    def write(self) -> None:
        if not self.writes:
            return
        self._written = time.monotonic()
        replace_quickly(self.folder / PROGRESS, json_bytes(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "align/progress/v1",
            "step": self.step,
            "first_step": self.first_step,
            "asked_steps": self.asked_steps,
            "tokens": self.tokens,
            "last_checkpoint": self.last_checkpoint,
            "time": time.time(),
            "seconds": round(self.seconds, 3),
            "eta_s": self._eta_s(),
        }

    def _eta_s(self) -> float | None:
        done = self.step - self.first_step
        if done <= 0 or self.asked_steps <= 0:
            return None
        a_step = (time.monotonic() - self._loop_started) / done
        return round(max(0, self.asked_steps - self.step) * a_step, 1)
