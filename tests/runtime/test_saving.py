"""When checkpoints are saved, which of them stay, whose they are, and when an attempt that did nothing is a failure."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from include.runtime import job as job_module
from include.runtime.checkpoint import Snapshot
from include.runtime.job import Job
from include.runtime.program import run_program
from tests.runtime.bench import Bench, whole, work


class Clock:
    """A clock that goes on by 25 seconds whenever it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("minutes", "saved"), [(1.0, [3, 6]), (0.4, [1, 2, 3, 4, 5, 6, 7]), (0.0, [])])
def test_saves_come_by_the_clock_too(bench: Bench, monkeypatch: pytest.MonkeyPatch, minutes: float, saved: list[int]) -> None:
    clock = Clock()
    monkeypatch.setattr(job_module, "time", clock)

    def body(job: Job) -> None:
        job.expect(7)
        job.resume()
        for step in range(1, 8):
            clock.now += 25
            job.record(step, {"loss": 1.0})
            if job.save_due(step):
                job.save(step, Snapshot({"model": {"w": torch.ones(1)}}))
        job.complete({})

    code, _ = bench.run(body, save_every_steps=100, save_every_minutes=minutes, keep_checkpoints=100)
    assert code == 0
    folder = bench.root / "run" / "attempts" / "1-5.0" / "checkpoints"
    assert sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*")) == saved


@pytest.mark.parametrize(
    ("settings", "left"), [({}, [6, 7]), ({"keep_every_steps": 3}, [3, 6, 7]), ({"keep_checkpoints": 1, "keep_best": 1}, [4, 7])]
)
def test_the_placement_says_which_checkpoints_stay(bench: Bench, settings: dict[str, int], left: list[int]) -> None:
    def body(job: Job) -> None:
        job.expect(7)
        job.resume()
        for step in range(1, 8):
            job.record(step, {"loss": 1.0})
            job.save(step, Snapshot({"model": {"w": torch.ones(1)}}), keep=bool(settings.get("keep_best")) and step in (2, 4))
        job.complete({})

    code, _ = bench.run(body, **settings)
    assert code == 0
    folder = bench.root / "run" / "attempts" / "1-5.0" / "checkpoints"
    assert sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir()) == left


def _stopped_before_a_step(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    job.expect(3)
    job.resume()
    job.check_stop()


def test_an_attempt_that_stood_still_is_tried_once_more_and_then_it_is_a_failure(bench: Bench) -> None:
    code, report = bench.run(_stopped_before_a_step, "1-5.0")
    assert (code, report.outcome, report.first_step, report.last_step) == (75, "interrupted", 0, 0)
    code, report = bench.run(_stopped_before_a_step, "2-6.0")
    assert (code, report.outcome, report.stop_reason) == (1, "failed", "error")
    assert "neither this attempt nor 1-5.0 advanced a step: the time limit is too short" in report.message


def test_an_attempt_that_stands_still_after_one_that_advanced_is_tried_again(bench: Bench) -> None:
    def advances(job: Job) -> None:
        work(job, until=2)
        os.kill(os.getpid(), signal.SIGUSR1)
        job.check_stop()

    assert bench.run(advances, "1-5.0", save_every_steps=1)[0] == 75
    code, report = bench.run(_stopped_before_a_step, "2-6.0")
    assert (code, report.outcome, report.first_step, report.last_step) == (75, "interrupted", 2, 2)
    code, report = bench.run(_stopped_before_a_step, "3-7.0")
    assert (code, report.outcome) == (1, "failed")
    assert "nor 2-6.0 advanced" in report.message


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(bench: Bench) -> None:
    def dies(job: Job) -> None:
        work(job, until=2)
        raise RuntimeError("power cut")

    bench.run(dies, save_every_steps=1)
    other = replace(bench.spec, seed=12, config={"steps": 3, "learning_rate": 0.1})
    assert run_program("sft", whole, bench.arguments("2-6.0", other)) == 1
    report = bench.report("2-6.0")
    assert report.outcome == "failed"
    for words in (bench.spec.key, other.key, "seed is 11 there, 12 here", "config.learning_rate is None there, 0.1 here"):
        assert words in report.message
