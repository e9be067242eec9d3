"""The benchmarks run, and see every job end that ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("module", "options", "said"),
    [
        ("many", "--jobs 30 --running 2 --looks 2 --interval 1 --baseline-jobs 2 --baseline-seconds 6", "2 ends seen, 0 not"),
        ("submitting", "--jobs 2", "the protocol, a connection a task"),
        ("watching", "--jobs 8 --ssh-jobs 6 --seconds 12 --interval 1 --peer-interval 1", "SSHRemoteJobTrigger (Airflow's SSH provider) over one loop"),
    ],
)  # fmt: skip
def test_a_small_run(module: str, options: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.slurm.{module}", *options.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, text=True, capture_output=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert said in done.stdout
