"""`run_program` runs the body of a stage program with a `Job`, and writes the report however it ends.

On several ranks every process runs the body; the first one verifies the inputs and writes everything that is written.
A rank that fails alone leaves ``rank-N.json`` beside the report, so that the report can say who failed first.
"""

import argparse
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from include.domain.errors import SpecError
from include.domain.outcomes import INTERRUPTED_EXIT_CODE, Outcome, StopReason
from include.domain.spec import Placement, Report, RunSpec
from include.runtime import rng
from include.runtime.cost import earlier_stood_still
from include.runtime.errors import GuardTripped, Interrupted, ProgressError, RankDone, Superseded
from include.runtime.files import json_bytes, read_json, replace_durable
from include.runtime.inputs import input_folders, verify_inputs
from include.runtime.job import Job
from include.runtime.ranks import Ranks, join, leave, ranks_of_environment
from include.runtime.report import write_report
from include.runtime.signals import StopFlag
from include.runtime.tokenizer import check_tokenizer, has_tokenizer

SUPERSEDED_EXIT_CODE = 76
FAILED_EXIT_CODE = 1
OTHERS_SPEAK_S = 2.0
"""How long the first rank, failing, waits for another rank's word: the connection breaks before the cause is written."""


Tokens = tuple[str | None, str | None]
"""Digests of a tokenizer and of a chat template."""


@dataclass(frozen=True)
class Rules:
    """How inputs are looked at. raw: see `run_program`; others: inputs of another tokenizer and template than the run's, by name."""

    raw: frozenset[str]
    others: Callable[[RunSpec], Mapping[str, Tokens]]


class Refused(Exception):
    """The first rank refused to begin; it has said why in its report."""


def run_program(
    stage: str,
    body: Callable[[Job], None],
    argv: Sequence[str] | None = None,
    raw: frozenset[str] = frozenset(),
    *,
    many_ranks: bool = False,
    others: Callable[[RunSpec], Mapping[str, Tokens]] = lambda spec: {},
) -> int:
    """Runs a stage program to its report; gives its exit code.

    Args:
        others: by name, the inputs that belong to another tokenizer and chat template than the run's, as the specification says;
            every input is held against what it belongs to.
        body: does the work and ends with `job.complete`.
        raw: inputs that are single files without a manifest, which the body verifies itself.
        many_ranks: the program can share its work among several processes.
    """
    flag = StopFlag()
    flag.install()
    ranks = ranks_of_environment()
    job = _open(stage, _arguments(argv), flag, ranks)
    report: Report | None
    if ranks.count > 1 and not many_ranks:
        message = f"{stage} runs in one process; {ranks.count} were started. Set tasks: 1"
        report, code = job.report(Outcome.FAILED, StopReason.ERROR, message=message), FAILED_EXIT_CODE
    else:
        job.ranks = join(ranks)
        report, code = _attempt(job, body, Rules(raw, others))
    _say(job, report, code)
    return code


def _say(job: Job, report: Report | None, code: int) -> None:
    """The first rank writes the report; another one that failed leaves its word for it."""
    if report is None:
        return
    if job.ranks.main:
        write_report(job.out, report)
    elif code == FAILED_EXIT_CODE:
        word = {"rank": job.ranks.rank, "time": time.time(), "stop_reason": report.stop_reason, "message": report.message}
        replace_durable(job.out / f"rank-{job.ranks.rank}.json", json_bytes({**word, "guard": report.summary.get("guard")}))


def _attempt(job: Job, body: Callable[[Job], None], rules: Rules) -> tuple[Report | None, int]:
    try:
        report, code = _try(job, body, rules)
        if report is not None and report.stop_reason == StopReason.ERROR and job.ranks.main:
            report = _with_the_first_word(job, report)
        return report, code
    finally:
        leave(job.ranks)


def _try(job: Job, body: Callable[[Job], None], rules: Rules) -> tuple[Report | None, int]:
    try:
        _begin(job, rules)
        body(job)
        if job.result is None:
            raise ProgressError(f"{job.stage} returned without calling complete()")
        return job.result, 0
    except RankDone:
        return None, 0
    except Refused:
        return None, FAILED_EXIT_CODE
    except Interrupted as stop:
        return _interrupted(job, stop)
    except Superseded as stop:
        return job.report(Outcome.INTERRUPTED, StopReason.SUPERSEDED, message=str(stop)), SUPERSEDED_EXIT_CODE
    except GuardTripped as stop:
        traceback.print_exc()
        return _failed(job, StopReason.GUARD, str(stop), summary={"guard": stop.guard})
    except Exception as error:  # noqa: BLE001 - whatever it is, the report must say so: without one the end would be unknown
        traceback.print_exc()
        return _failed(job, StopReason.ERROR, f"{type(error).__name__}: {error}")


def _failed(job: Job, reason: StopReason, message: str, **fields: Any) -> tuple[Report, int]:
    """A save that is under way may still end: it is the last good one."""
    try:
        job.saver.settle()
    except Exception as error:  # noqa: BLE001 - the first failure is what is reported; this one is named beside it
        job.warn(f"the last save failed too: {error}")
    return job.report(Outcome.FAILED, reason, message=message, **fields), FAILED_EXIT_CODE


def _interrupted(job: Job, stop: Interrupted) -> tuple[Report, int]:
    """Asked to stop. Two attempts in a row that advanced nothing are a failure: another would not advance either."""
    stood = earlier_stood_still(job.out.parent, job.attempt) if job.progress.step == job.progress.first_step else None
    if stood is not None:
        message = f"{stop}; neither this attempt nor {stood} advanced a step: the time limit is too short for loading and one step"
        return job.report(Outcome.FAILED, StopReason.ERROR, message=message), FAILED_EXIT_CODE
    return job.report(Outcome.INTERRUPTED, StopReason.SIGNAL, message=str(stop)), INTERRUPTED_EXIT_CODE


def _with_the_first_word(job: Job, report: Report) -> Report:
    """Where another rank failed first, its reason is the reason: this one only saw the connection break."""
    if job.ranks.count == 1:
        return report
    end = time.monotonic() + OTHERS_SPEAK_S
    words: list[dict[str, Any]] = []
    while not words and time.monotonic() < end:
        words = [read_json(path) for path in sorted(job.out.glob("rank-*.json"))]
        time.sleep(0.05)
    if not words:
        return report
    first = min(words, key=lambda word: float(word["time"]))
    message = f"rank {first['rank']}: {first['message']} (rank 0 then saw: {report.message})"
    extra = {"summary": {"guard": first["guard"]}} if first.get("guard") else {}
    return job.report(Outcome.FAILED, StopReason(first["stop_reason"]), message=message, **extra)


def _begin(job: Job, rules: Rules) -> None:
    """Inputs are read through once, by the first rank; the others begin when it found them whole."""
    failure: Exception | None = None
    if job.ranks.main:
        try:
            job.inputs = verify_inputs(job.spec, job.placement, rules.raw)
            _check_tokenizers(job, rules.others(job.spec))
        except Exception as error:  # noqa: BLE001 - raised again below, when the other ranks know of it
            failure = error
    refused = job.ranks.most(float(failure is not None))[0]
    if failure is not None:
        raise failure
    if refused:
        raise Refused
    if not job.ranks.main:
        job.inputs = input_folders(job.spec, job.placement)
    threads = job.settings.integer("threads", int(os.environ.get("SLURM_CPUS_PER_TASK", "0")))
    if threads > 0:
        torch.set_num_threads(threads)
    rng.seed_all(job.seed, job.ranks.rank)
    if job.config.flag("deterministic", False):
        rng.make_deterministic()
    job.progress.write()


def _check_tokenizers(job: Job, others: Mapping[str, Tokens]) -> None:
    if job.stage != "base_import":
        for name, folder in job.inputs.items():
            if has_tokenizer(folder):
                check_tokenizer(name, folder, *others.get(name, (job.spec.tokenizer, job.spec.chat_template)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A stage program: reads a run's specification, writes below --out only.")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--placement", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def _open(stage: str, arguments: argparse.Namespace, flag: StopFlag, ranks: Ranks) -> Job:
    spec = RunSpec.from_json(read_json(arguments.spec))
    placement = Placement.from_json(read_json(arguments.placement))
    if spec.stage != stage:
        raise SpecError(f"this program runs {stage}, {arguments.spec} is of {spec.stage}")
    if placement.key != spec.key:
        raise SpecError(f"{arguments.placement} is of key {placement.key}, {arguments.spec} of {spec.key}")
    return Job(spec, placement, arguments.out.resolve(), flag, ranks)
