"""One attempt of one key, as its program sees it. `include.runtime.program` runs a program with it.

A program is started as ``PROGRAM --spec RUN/spec.json --placement ATTEMPT/placement.json --out ATTEMPT`` and writes
below ATTEMPT and nowhere else.
"""

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.domain.errors import SpecError
from include.domain.outcomes import Outcome, StopReason
from include.domain.spec import Placement, Report, RunSpec
from include.runtime import rng
from include.runtime.checkpoint import Checkpoint, CheckpointStore, Found, Retention, Snapshot
from include.runtime.cost import Peaks, Resumption, against_estimate, furthest_step, preemption, used
from include.runtime.errors import Interrupted, ProgressError, Superseded
from include.runtime.outputs import Outputs
from include.runtime.progress import Progress
from include.runtime.ranks import Ranks
from include.runtime.saving import Saver
from include.runtime.settings import Settings
from include.runtime.signals import StopFlag
from include.runtime.supersede import newer_attempt

DEFAULT_SAVE_EVERY_STEPS = 50
DEFAULT_KEEP_CHECKPOINTS = 2


@dataclass(frozen=True)
class Wishes:
    """What all ranks have settled between two steps: whether to save, and whether to stop after it."""

    save: bool
    signal: str | None
    newer: str | None


class Job:
    """One attempt of one key: its settings, inputs, checkpoints, figures and outputs. On several ranks each has one."""

    def __init__(self, spec: RunSpec, placement: Placement, out: Path, flag: StopFlag, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self.spec = spec
        self.placement = placement
        self.out = out
        self.attempt = out.name
        self.config = Settings(spec.config, "config")
        self.settings = Settings(placement.settings, "settings")
        self.inputs: dict[str, Path] = {}
        self.progress = Progress(out, writes=self.ranks.main)
        self.outputs = Outputs(out / "output")
        self.checkpoints = CheckpointStore(out.parent, self.attempt, spec.key, _retention(self.settings), spec.identity)
        self.saver = Saver(self.checkpoints, lambda step: self.progress.saved(step, self.attempt), self.ranks)
        self.peaks = Peaks()
        self.train_seconds = 0.0
        self.warnings: list[str] = []
        self.result: Report | None = None
        self._flag = flag
        self._found = Found(None)
        self._resumption = Resumption(0, 0)
        self._save_every = self.settings.positive("save_every_steps", DEFAULT_SAVE_EVERY_STEPS)
        self._save_every_s = 60 * self.settings.number("save_every_minutes", 0.0)
        self._background = self.settings.flag("save_in_background", False)
        self._saved_at = time.monotonic()

    @property
    def stage(self) -> str:
        return self.spec.stage

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def stop_requested(self) -> bool:
        return bool(self._flag)

    def stop_comes(self, within_s: float = 5.0) -> bool:
        """Whether a stop is asked for, now or in so many seconds: of a signal to all processes of a job a child may fall before the
        program has seen its own."""
        until = time.monotonic() + within_s
        while not self.stop_requested and time.monotonic() < until:
            time.sleep(0.05)
        return self.stop_requested

    def input(self, name: str) -> Path:
        """The verified folder of an input."""
        if name not in self.inputs:
            raise SpecError(f"{self.stage} needs the input {name!r}; the run has {', '.join(sorted(self.inputs))}")
        return self.inputs[name]

    def input_digest(self, name: str) -> str:
        self.input(name)
        return self.spec.inputs[name]

    def expect(self, steps: int) -> None:
        """How many steps the whole run is to have done at its end."""
        if steps <= 0:
            raise SpecError(f"{self.stage}: {steps} steps are asked for; a run that does nothing is refused")
        self.progress.asked_steps = steps

    def resume(self) -> Checkpoint | None:
        """The newest whole checkpoint over all attempts of the key, or None for a start at step 0; the ranks verify it together."""
        self._found = self.checkpoints.find(fresh_start=self.settings.flag("fresh_start", False), ranks=self.ranks)
        for item in self._found.set_aside if self.ranks.main else ():
            self.warn(f"checkpoint {item.name} is not used: {item.reason}")
        checkpoint = self._found.checkpoint
        step = checkpoint.step if checkpoint else 0
        self._resumption = Resumption(max(0, furthest_step(self.out.parent, self.attempt) - step), step)
        self.progress.begin(step)
        self._saved_at = time.monotonic()
        if checkpoint and self.ranks.main:
            print(f"resuming from step {checkpoint.step} of attempt {checkpoint.attempt}", file=sys.stderr, flush=True)
        return checkpoint

    def restore_random(self, checkpoint: Checkpoint) -> None:
        """Puts back this rank's generators; call it last, when everything else is loaded. A rank that was not there keeps its own."""
        if (own := checkpoint.random.get(str(self.ranks.rank))) is not None:
            rng.restore(dict(own))

    def save(self, step: int, snapshot: Snapshot, *, keep: bool = False, background: bool = False) -> None:
        """Writes a checkpoint of `step` steps done; every rank calls it, and writes what of it is its own.

        Args:
            keep: protects it from retention.
            background: return as soon as the tensors are copied. The next save, and the end of the job, wait for it.
        """
        started = time.monotonic()
        random = {str(rank): state for rank, state in enumerate(self.ranks.gather(rng.capture()))}
        self.saver.save(step, snapshot, random, keep=keep, background=background and self._background)
        self._saved_at = time.monotonic()
        self.saver.cost.stall_s += self._saved_at - started

    def wishes(self, step: int) -> Wishes:
        """Settles with all ranks whether to save after this step, and whether to stop."""
        newer = newer_attempt(self.out.parent, self.attempt) if self.ranks.main else None
        due = self.ranks.main and (
            step % self._save_every == 0 or (self._save_every_s > 0 and time.monotonic() - self._saved_at >= self._save_every_s)
        )
        number = getattr(signal, self._flag.received) if self._flag.received else 0
        save, told, is_newer = self.ranks.most(float(due), float(number), float(newer is not None))
        name = signal.Signals(int(told)).name if told else None
        return Wishes(bool(save) or name is not None, name, newer or ("a later one" if is_newer else None))

    def obey(self, wishes: Wishes) -> None:
        """Raises Superseded or Interrupted where that was settled; call it after saving."""
        if wishes.newer is None and wishes.signal is None:
            return
        self.saver.settle()
        if wishes.newer is not None:
            raise Superseded(f"attempt {wishes.newer} of this key is newer than {self.attempt}")
        raise Interrupted(f"{wishes.signal} received; stopped after step {self.progress.step}")

    def save_due(self, step: int) -> bool:
        return self.wishes(step).save

    def record(self, step: int, metrics: Mapping[str, float], tokens: int = 0) -> None:
        """`step` steps are done; `tokens` are those of this step alone, over all ranks."""
        self.saver.poll()
        self.progress.record(step, metrics, tokens)

    def check_stop(self) -> None:
        """Raises Interrupted or Superseded; call it between steps, after saving."""
        self.obey(self.wishes(self.progress.step))

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        print(f"warning: {message}", file=sys.stderr, flush=True)

    @contextmanager
    def output(self, name: str, kind: str, meta: Mapping[str, Any] | None = None) -> Iterator[Path]:
        """An empty folder for the artifact `name`; its manifest is written on leaving."""
        yield self.outputs.open(name)
        self.outputs.close(name, kind, meta)

    def complete(
        self,
        metrics: Mapping[str, float],
        summary: Mapping[str, Any] | None = None,
        stop_reason: StopReason = StopReason.LAST_STEP,
    ) -> None:
        """The work is done: writes the outputs' manifest and prepares the report.

        Raises:
            ProgressError: nothing was done, or fewer steps than asked for without an early stop.
        """
        self.saver.settle()
        done, asked = self.progress.step, self.progress.asked_steps
        if done <= 0 or (done < asked and stop_reason is not StopReason.EARLY_STOP):
            raise ProgressError(f"{self.stage} ended at step {done} of {asked}: what was asked for is not done")
        outputs = self.outputs.finish()
        figures = {name: float(value) for name, value in metrics.items()}
        self.result = self.report(Outcome.COMPLETE, stop_reason, metrics=figures, outputs=outputs, summary=dict(summary or {}))

    def report(self, outcome: Outcome, reason: StopReason, **fields: Any) -> Report:
        """The report of this attempt as it stands."""
        fields["summary"] = {**fields.get("summary", {}), **self._cost()}
        fields.setdefault("metrics", {})
        fields.setdefault("outputs", {})
        return Report(
            key=self.spec.key,
            attempt=self.attempt,
            outcome=str(outcome),
            stop_reason=str(reason),
            first_step=self.progress.first_step,
            last_step=self.progress.step,
            asked_steps=self.progress.asked_steps,
            resumed_from=self._resumed_from(),
            seconds=round(self.progress.seconds, 3),
            **fields,
        )

    def _resumed_from(self) -> dict[str, Any] | None:
        if self._found.checkpoint is None and not self._found.set_aside:
            return None
        checkpoint = self._found.checkpoint
        aside = [{"name": item.name, "reason": item.reason} for item in self._found.set_aside]
        return {"attempt": checkpoint and checkpoint.attempt, "step": checkpoint.step if checkpoint else 0, "set_aside": aside}

    def _cost(self) -> dict[str, Any]:
        """Tokens, memory, GPU time, checkpoints, what resuming lost and spared, and whether a preemption's notice would do."""
        steps = self.progress.step - self.progress.first_step
        a_step = self.train_seconds / steps if steps else 0.0
        notice = preemption(self.saver.cost, a_step, self.placement.resources)
        if notice and not notice["fits"] and self.placement.resources.get("preemptible"):
            self.warn(
                f"this job is marked preemptible, but a step and a save take {notice['needed_s']} s and the site gives notice of "
                f"{notice['notice_s']} s: what was done since the last checkpoint would be lost"
            )
        if said := self.saver.cost.warning(self.train_seconds):
            self.warn(said)
        costs = used(self.progress.seconds, self.ranks, self.peaks)
        return {
            "warnings": self.warnings,
            "tokens": self.progress.tokens,
            "tokens_per_s": self._tokens_per_s,
            **costs,
            **self._estimated(costs),
            "checkpoints": self.saver.cost.to_json(self.train_seconds),
            "resumption": self._resumption.to_json(a_step),
            **({"preemption": notice} if notice else {}),
        }

    @property
    def _tokens_per_s(self) -> float:
        return self.progress.tokens / self.train_seconds if self.train_seconds else 0.0

    def _estimated(self, costs: Mapping[str, float]) -> dict[str, Any]:
        """What was estimated before the job was submitted, against what was seen; {} where nothing was."""
        seen = {
            "tokens": float(self.progress.tokens),
            "seconds": self.train_seconds or self.progress.seconds,
            "tokens_per_s": self._tokens_per_s,
            "memory_gb": costs.get("peak_gpu_memory_bytes", costs["peak_memory_bytes"]) / 1e9,
            "checkpoint_gb": self.saver.cost.size_bytes / 1e9,
            "save_s": self.saver.cost.longest_s,
        }
        rows = against_estimate(self.placement.resources.get("estimate"), seen)
        return {"estimate": rows} if rows else {}


def _retention(settings: Settings) -> Retention:
    best = settings.integer("keep_best", 0)
    return Retention(
        settings.positive("keep_checkpoints", DEFAULT_KEEP_CHECKPOINTS), settings.integer("keep_every_steps", 0), best if best > 0 else None
    )
