"""The loop of every trainer: resume, step, record, save, notice that one should stop. Reads from top to bottom.

On several ranks each runs it; what to do between two steps is settled by all together (`Job.wishes`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from include.domain.outcomes import StopReason
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.job import Job


@dataclass(frozen=True)
class StepResult:
    """What one update gave. `stop` ends the run early; `keep` saves now and protects that checkpoint."""

    metrics: Mapping[str, float]
    tokens: int = 0
    stop: StopReason | None = None
    keep: bool = False


class Trainable(Protocol):
    """A trainer: all it knows is in `capture`, and `restore` puts all of it back."""

    def train_step(self, step: int) -> StepResult: ...

    def capture(self) -> Snapshot: ...

    def restore(self, checkpoint: Checkpoint) -> None: ...


@dataclass
class LoopOutcome:
    """From where to where the loop went in this attempt, and at what cost."""

    first_step: int
    last_step: int
    stop_reason: StopReason = StopReason.LAST_STEP
    tokens: int = 0
    train_seconds: float = 0.0
    save_seconds: float = 0.0
    last: Mapping[str, float] = field(default_factory=dict)
    """save_seconds: for which training stood still, copying or waiting; the writing itself may go on behind it."""

    def metrics(self) -> dict[str, float]:
        """Flat figures for the report."""
        steps = self.last_step - self.first_step
        return {
            "steps_advanced": float(steps),
            "tokens": float(self.tokens),
            "train_seconds": self.train_seconds,
            "save_seconds": self.save_seconds,
            "tokens_per_s": self.tokens / self.train_seconds if self.train_seconds else 0.0,
            "seconds_per_step": self.train_seconds / steps if steps else 0.0,
            **{f"{name}_last": value for name, value in self.last.items()},
        }


def run_steps(job: Job, trainable: Trainable, total: int) -> LoopOutcome:
    """Does what is left of `total` steps, from the newest whole checkpoint of any attempt.

    The last step is always saved: an attempt that dies while it exports does not train again.
    """
    job.expect(total)
    checkpoint = job.resume()
    if checkpoint is not None:
        trainable.restore(checkpoint)
        job.restore_random(checkpoint)
    first = checkpoint.step if checkpoint else 0
    outcome = LoopOutcome(first, first)
    if checkpoint is not None and checkpoint.state.get("stop_reason"):
        outcome.stop_reason = StopReason(checkpoint.state["stop_reason"])
        return outcome
    job.check_stop()
    for step in range(first, total):
        started = time.monotonic()
        result = trainable.train_step(step)
        outcome.train_seconds += time.monotonic() - started
        job.train_seconds = outcome.train_seconds
        outcome.tokens += result.tokens
        outcome.last_step, outcome.last = step + 1, result.metrics
        job.record(step + 1, result.metrics, result.tokens)
        last = result.stop is not None or step + 1 == total
        wishes = job.wishes(step + 1)
        if result.keep or last or wishes.save:
            _save(job, trainable, outcome, result, background=not last)
        if result.stop is not None:
            outcome.stop_reason = result.stop
            break
        job.obey(wishes)
    job.peaks.look(job.ranks)
    return outcome


def _save(job: Job, trainable: Trainable, outcome: LoopOutcome, result: StepResult, *, background: bool) -> None:
    """The last one is waited for: what follows the loop begins from something whole. One that is still being written is waited for first, so
    that there are never the tensors of two."""
    started, cost = time.monotonic(), job.saver.cost
    stood_still_s = cost.stall_s
    job.saver.settle()
    snapshot = trainable.capture()
    cost.stall_s += time.monotonic() - started
    if result.stop is not None:
        snapshot = Snapshot(snapshot.groups, {**snapshot.state, "stop_reason": str(result.stop)}, snapshot.files)
    job.save(outcome.last_step, snapshot, keep=result.keep, background=background)
    if not background:
        cost.last_s, cost.stall_s = cost.stall_s - stood_still_s, stood_still_s
    outcome.save_seconds += time.monotonic() - started
