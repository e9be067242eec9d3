"""What every stage program stands on: `run_program` calls its body with a `Job`, and writes the report however it ends.

A program is started as ``PROGRAM --spec RUN/spec.json --placement ATTEMPT/placement.json --out ATTEMPT`` and writes
below ATTEMPT and nowhere else. Before its body runs, the specification is read and checked against its key, every input
is verified byte for byte, tokenizer and chat template of every model are compared, and all generators are seeded.
"""

import argparse
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from include.domain.errors import SpecError
from include.domain.outcomes import INTERRUPTED_EXIT_CODE, Outcome, StopReason
from include.domain.spec import Placement, Report, RunSpec
from include.runtime import rng
from include.runtime.checkpoint import Checkpoint, CheckpointStore, Found, Snapshot
from include.runtime.errors import GuardTripped, Interrupted, ProgressError, Superseded
from include.runtime.files import read_json
from include.runtime.inputs import verify_inputs
from include.runtime.outputs import Outputs
from include.runtime.progress import Progress
from include.runtime.report import write_report
from include.runtime.settings import Settings
from include.runtime.signals import StopFlag
from include.runtime.supersede import newer_attempt
from include.runtime.tokenizer import check_tokenizer, has_tokenizer

SUPERSEDED_EXIT_CODE = 76
FAILED_EXIT_CODE = 1
DEFAULT_SAVE_EVERY_STEPS = 50
DEFAULT_KEEP_CHECKPOINTS = 2


class Job:
    """One attempt of one key: its settings, inputs, checkpoints, figures and outputs."""

    def __init__(self, spec: RunSpec, placement: Placement, out: Path, flag: StopFlag) -> None:
        self.spec = spec
        self.placement = placement
        self.out = out
        self.attempt = out.name
        self.config = Settings(spec.config, "config")
        self.settings = Settings(placement.settings, "settings")
        self.inputs: dict[str, Path] = {}
        self.progress = Progress(out)
        self.outputs = Outputs(out / "output")
        keep = self.settings.positive("keep_checkpoints", DEFAULT_KEEP_CHECKPOINTS)
        self.checkpoints = CheckpointStore(out.parent, self.attempt, spec.key, keep)
        self.warnings: list[str] = []
        self.result: Report | None = None
        self._flag = flag
        self._found = Found(None)
        self._save_every = self.settings.positive("save_every_steps", DEFAULT_SAVE_EVERY_STEPS)

    @property
    def stage(self) -> str:
        return self.spec.stage

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def stop_requested(self) -> bool:
        return bool(self._flag)

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
        """The newest whole checkpoint over all attempts of the key, or None for a start at step 0."""
        self._found = self.checkpoints.find(fresh_start=self.settings.flag("fresh_start", False))
        for item in self._found.set_aside:
            self.warn(f"checkpoint {item.name} is not used: {item.reason}")
        checkpoint = self._found.checkpoint
        self.progress.begin(checkpoint.step if checkpoint else 0)
        if checkpoint:
            print(f"resuming from step {checkpoint.step} of attempt {checkpoint.attempt}", file=sys.stderr, flush=True)
        return checkpoint

    def restore_random(self, checkpoint: Checkpoint) -> None:
        """Puts back the generators; call it last, when everything else is loaded."""
        rng.restore(dict(checkpoint.random["0"]))

    def save(self, step: int, snapshot: Snapshot, *, keep: bool = False) -> Path:
        """Writes a checkpoint of `step` steps done; `keep` protects it from retention."""
        path = self.checkpoints.save(step, snapshot, {"0": rng.capture()}, keep=keep)
        self.progress.saved(step, self.attempt)
        return path

    def save_due(self, step: int) -> bool:
        return step % self._save_every == 0 or self.stop_requested

    def record(self, step: int, metrics: Mapping[str, float], tokens: int = 0) -> None:
        """`step` steps are done; `tokens` are those of this step alone."""
        self.progress.record(step, metrics, tokens)

    def check_stop(self) -> None:
        """Raises Interrupted or Superseded; call it between steps, after saving."""
        if (newer := newer_attempt(self.out.parent, self.attempt)) is not None:
            raise Superseded(f"attempt {newer} of this key is newer than {self.attempt}")
        if self._flag:
            raise Interrupted(f"{self._flag.received} received; stopped after step {self.progress.step}")

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
        done, asked = self.progress.step, self.progress.asked_steps
        if done <= 0 or (done < asked and stop_reason is not StopReason.EARLY_STOP):
            raise ProgressError(f"{self.stage} ended at step {done} of {asked}: what was asked for is not done")
        outputs = self.outputs.finish()
        figures = {name: float(value) for name, value in metrics.items()}
        self.result = self.report(Outcome.COMPLETE, stop_reason, metrics=figures, outputs=outputs, summary=dict(summary or {}))

    def report(self, outcome: Outcome, reason: StopReason, **fields: Any) -> Report:
        """The report of this attempt as it stands."""
        fields["summary"] = {
            **fields.get("summary", {}),
            "warnings": self.warnings,
            "tokens": self.progress.tokens,
            **_used(self.progress.seconds),
        }
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


def _used(seconds: float) -> dict[str, float]:
    """What the attempt took: the largest resident memory of the process, and GPU time where there is a GPU."""
    used = {"peak_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}
    if torch.cuda.is_available():
        used["gpu_seconds"] = seconds * torch.cuda.device_count()
        used["peak_gpu_memory_bytes"] = float(torch.cuda.max_memory_allocated())
    return used


def run_program(stage: str, body: Callable[[Job], None], argv: Sequence[str] | None = None, raw: frozenset[str] = frozenset()) -> int:
    """Runs a stage program to its report; gives its exit code.

    Args:
        body: does the work and ends with `job.complete`.
        raw: inputs that are single files without a manifest, which the body verifies itself.
    """
    flag = StopFlag()
    flag.install()
    job = _open(stage, _arguments(argv), flag)
    report, code = _attempt(job, body, raw)
    write_report(job.out, report)
    return code


def _attempt(job: Job, body: Callable[[Job], None], raw: frozenset[str]) -> tuple[Report, int]:
    try:
        job.inputs = verify_inputs(job.spec, job.placement, raw)
        _prepare(job)
        body(job)
        if job.result is None:
            raise ProgressError(f"{job.stage} returned without calling complete()")
        return job.result, 0
    except Interrupted as stop:
        return job.report(Outcome.INTERRUPTED, StopReason.SIGNAL, message=str(stop)), INTERRUPTED_EXIT_CODE
    except Superseded as stop:
        return job.report(Outcome.INTERRUPTED, StopReason.SUPERSEDED, message=str(stop)), SUPERSEDED_EXIT_CODE
    except GuardTripped as stop:
        traceback.print_exc()
        return job.report(Outcome.FAILED, StopReason.GUARD, message=str(stop), summary={"guard": stop.guard}), FAILED_EXIT_CODE
    except Exception as error:  # noqa: BLE001 - whatever it is, the report must say so: without one the end would be unknown
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        return job.report(Outcome.FAILED, StopReason.ERROR, message=message), FAILED_EXIT_CODE


def _prepare(job: Job) -> None:
    if job.stage != "base_import":
        for name, folder in job.inputs.items():
            if has_tokenizer(folder):
                check_tokenizer(name, folder, job.spec.tokenizer, job.spec.chat_template)
    threads = job.settings.integer("threads", int(os.environ.get("SLURM_CPUS_PER_TASK", "0")))
    if threads > 0:
        torch.set_num_threads(threads)
    rng.seed_all(job.seed)
    job.progress.write()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A stage program: reads a run's specification, writes below --out only.")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--placement", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def _open(stage: str, arguments: argparse.Namespace, flag: StopFlag) -> Job:
    spec = RunSpec.from_json(read_json(arguments.spec))
    placement = Placement.from_json(read_json(arguments.placement))
    if spec.stage != stage:
        raise SpecError(f"this program runs {stage}, {arguments.spec} is of {spec.stage}")
    if placement.key != spec.key:
        raise SpecError(f"{arguments.placement} is of key {placement.key}, {arguments.spec} of {spec.key}")
    return Job(spec, placement, arguments.out.resolve(), flag)
