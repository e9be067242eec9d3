"""The whole local stack, for real: up, up again, hurt, and down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local import secret_files
from local.http_client import answers, call
from local.layout import Layout
from local.process import all_processes
from local.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="stack-"))
    yield path
    Stack(Layout(ROOT, path)).down()
    shutil.rmtree(path, ignore_errors=True)


def local(home: Path, *words: str, kill_after_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m local …` on a stack of its own; killed with its last breath after `kill_after_s`."""
    environment = {**os.environ, "ALIGN_LOCAL_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-m", "local", *words], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        out, _ = process.communicate(timeout=kill_after_s or 300)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out)


@pytest.fixture(scope="module")
def stack(home: Path) -> Stack:
    """Up, after two starts that were killed half-way."""
    for seconds in (1.5, 6.0):
        assert local(home, "up", kill_after_s=seconds).returncode == -signal.SIGKILL
    started = local(home, "up")
    assert started.returncode == 0, started.stdout
    return Stack(Layout(ROOT, home))


def pids(stack: Stack) -> dict[str, int | None]:
    services = {service.name: stack.daemons.pid(service.name) for service in stack.services()}
    return services | {daemon: stack.slurm.pid(daemon) for daemon in stack.slurm.daemons}


def test_after_starts_that_were_killed_every_service_runs_once(stack: Stack, home: Path) -> None:
    assert None not in pids(stack).values()
    status = local(home, "status")
    assert status.returncode == 0, status.stdout
    schedulers = [p for p in all_processes() if _runs(p.pid, home, "scheduler")]
    assert len({p.session for p in schedulers}) == 1


def _runs(pid: int, home: Path, word: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return str(home).encode() in environment and word.encode() in command


def test_up_twice_is_up_once(stack: Stack, home: Path) -> None:
    before = pids(stack)
    begin = time.monotonic()
    assert local(home, "up").returncode == 0
    assert time.monotonic() - begin < 10
    assert pids(stack) == before


def test_airflow_and_mlflow_answer_where_the_stack_file_says(stack: Stack) -> None:
    about = json.loads(stack.layout.stack_file.read_text())
    assert answers(f"{about['mlflow']['url']}/health")
    status, version = call("GET", f"{about['airflow']['url']}/api/v2/version")
    assert (status, version["version"].split(".")[0]) == (200, "3")


def test_the_connection_to_slurm_passes_airflows_own_test(stack: Stack) -> None:
    connection = json.loads(stack.environment()["AIRFLOW_CONN_SLURM_LOCAL"])
    body = {"connection_id": "try", "extra": json.dumps(connection.pop("extra")), **connection}
    answer = stack.api("admin").request("POST", "/connections/test", body)
    assert answer["status"] is True, answer["message"]


def test_no_secret_stands_in_a_log_an_argument_or_an_open_file(stack: Stack, home: Path) -> None:
    secrets = [secret_files.password(stack.layout, user) for user in ("requester", "approver", "admin")]
    secrets += [path.read_text().strip() for path in (stack.layout.secrets / "annotation").glob("*.token")]
    assert [p for p in stack.layout.secrets.rglob("*") if p.is_file() and stat.S_IMODE(p.stat().st_mode) & 0o077] == []
    logs = [p.read_text(errors="replace") for p in (home / "logs").glob("*.log")]
    assert [
        text[:80] for text in [*logs, stack.layout.stack_file.read_text(), local(home, "env").stdout] for s in secrets if s in text
    ] == []
    arguments = b"".join(path.read_bytes() for p in all_processes() if (path := Path(f"/proc/{p.pid}/cmdline")).exists())
    assert [secret for secret in secrets if secret.encode() in arguments] == []


def test_a_killed_scheduler_is_named_and_comes_back_alone(stack: Stack, home: Path) -> None:
    before = pids(stack)
    killed = before["airflow-scheduler"]
    assert killed
    os.kill(killed, signal.SIGKILL)
    assert stack.down_services() == ["Airflow scheduler"]
    assert local(home, "status").returncode == 1
    assert local(home, "up").returncode == 0
    after = pids(stack)
    assert after.pop("airflow-scheduler") != before.pop("airflow-scheduler")
    assert after == before


def test_down_stops_all_of_it_and_down_again_nothing(stack: Stack, home: Path) -> None:
    assert local(home, "down").returncode == 0
    assert [p.name for p in all_processes() if _runs(p.pid, home, "")] == []
    assert "nothing of the local stack was running" in local(home, "down").stdout
