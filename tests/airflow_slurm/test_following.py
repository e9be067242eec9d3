"""One job, look after look: what its log says of it, and what the next process takes over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from airflow_slurm.errors import FileUnreadable
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.parse import queue_rows
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.poller import Hub, Snapshot
from airflow_slurm.watch.waiting import Wait

from .conftest import OWNER
from .login_node import LoginNode


class Output(LoginNode):
    """At the process edge: a login node that has the job's output, or does not give it."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(scontrol=[Answer("BOOT_TIME = 1\n", "", 0)])
        self.path = path

    async def size_of(self, path: str) -> int | None:
        if self.path is None:
            raise FileUnreadable(path, "c1", "Permission denied")
        return self.path.stat().st_size if self.path.exists() else None

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        assert self.path is not None
        return self.path.read_bytes()[offset : offset + limit]


@pytest.fixture
def wait(kept: FileReceipts) -> Wait:
    config = {"root": str(kept.root)}
    return Wait("k", 1, "7", "a", 40.0, OWNER, "airflow_slurm.file_receipts.FileReceipts", config, queued_at=50.0, log_path="/runs/log")


def follower(wait: Wait, client: LoginNode | None = None) -> Any:
    return follower_of(wait, Hub(client=client), structlog.get_logger())


def looked(at: float, state: str = "", *, status: str = "0", restarts: int = 0, asked: bool = True) -> Snapshot:
    row = f"7|7|{state}|{restarts}|{status}|50|60|70|1|n1|None|a\n" if state else ""
    return Snapshot(at, frozenset({"7"}), {row.job_id: row for row in queue_rows(row)} if asked else None, {})


@pytest.mark.parametrize(("code", "cause", "retryable"), [(111, "no_module", False), (112, "failed", True), (1, "failed", True)])
async def test_a_script_that_could_not_load_what_it_needs_is_named_and_not_run_again(
    wait: Wait, code: int, cause: str, retryable: bool
) -> None:
    event = await follower(replace(wait, exits={"111": "no_module"})).look(looked(100.0, "FAILED", status=str(code << 8)))
    assert event is not None
    assert (event["view"]["cause"], event["view"]["retryable"], event["view"]["exit_code"]) == (cause, retryable, code)


async def test_an_output_that_may_not_be_read_is_said_once_and_ends_no_wait(wait: Wait) -> None:
    watching = follower(wait, Output())
    with capture_logs() as said:
        for at in (100.0, 160.0, 220.0):
            assert await watching.look(looked(at, "RUNNING")) is None
        event = await watching.look(looked(280.0, "COMPLETED"))
    assert event is not None
    assert [line["event"] for line in said if "not copied" in line["event"]] == [
        "The job's output is not copied here: /runs/log can't be read over connection 'c1': Permission denied. Its login has to be let in, on all "
        "folders on the way too."
    ]
