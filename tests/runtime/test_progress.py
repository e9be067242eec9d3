"""What a running job says in its own log: now and then a line, never one that stops it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from include.runtime import bootstrap, job_log, progress
from include.runtime.progress import Progress


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job's log, its descriptor handed on as the bootstrap does."""
    path = tmp_path / "slurm-1.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    monkeypatch.setenv(job_log.VARIABLE, str(descriptor))
    monkeypatch.setattr(job_log, "_taken", {})
    return path


def test_the_first_step_the_last_and_one_in_ten_seconds_are_said(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    counted = Progress(tmp_path)
    counted.asked_steps = 40
    counted.begin(0)
    for step in range(1, 41):
        now += 1.0
        if step == 20:
            counted.saved(20, "1-1.0")
        counted.record(step, {"loss": 2.0 / step, "lr": float("nan")}, tokens=10)
    lines = log.read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"step {n} of 40" for n in (1, 11, 21, 31, 40)]
    assert lines[2] == "step 21 of 40, loss 0.09524, lr nan, checkpoint 20, about 19 s left"


def test_without_a_log_or_with_one_that_is_gone_the_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(job_log.VARIABLE, raising=False)
    monkeypatch.setattr(job_log, "_taken", {})
    job_log.take()
    job_log.say("nobody hears this")
    gone = os.open(tmp_path / "gone", os.O_WRONLY | os.O_CREAT)
    os.close(gone)
    monkeypatch.setenv(job_log.VARIABLE, str(gone))
    job_log.take()
    job_log.say("nor this")
    assert job_log._taken == {}
    assert os.stat(tmp_path / "gone").st_size == 0


def test_both_sides_call_the_descriptor_by_one_name(log: Path) -> None:
    assert (bootstrap.LOG_VARIABLE, bootstrap.LOG_FILE_VARIABLE) == (job_log.VARIABLE, job_log.FILE_VARIABLE)
    job_log.take()
    job_log.say("one\nline")
    assert log.read_text() == "one line\n"


def test_what_the_program_starts_has_neither_the_name_nor_the_descriptor(log: Path) -> None:
    number = os.environ[job_log.VARIABLE]
    job_log.take()
    look = f"import os; print(os.environ.get({job_log.VARIABLE!r}), os.path.exists('/proc/self/fd/{number}'))"
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, close_fds=False, check=True)
    assert seen.stdout.split() == ["None", "False"]


def test_a_log_named_by_its_path_is_added_to_and_never_made_or_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(job_log.VARIABLE, raising=False)
    path = tmp_path / "slurm-1.log"
    (tmp_path / "link.log").symlink_to(path)
    for name in ("slurm-1.log", "link.log"):
        monkeypatch.setattr(job_log, "_taken", {})
        monkeypatch.setenv(job_log.FILE_VARIABLE, str(tmp_path / name))
        job_log.take()
        job_log.say("nobody hears this")
        assert not path.exists()
    path.write_text("begin\n")
    monkeypatch.setenv(job_log.FILE_VARIABLE, str(path))
    job_log.take()
    job_log.say("step 1")
    assert path.read_text() == "begin\nstep 1\n"
    assert job_log.FILE_VARIABLE not in os.environ
