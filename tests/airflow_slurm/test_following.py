"""One job, look after look: what its log says of it, and what the next process takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog
from structlog.testing import capture_logs

from airflow_slurm.errors import FileUnreadable
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import history_of
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.parse import queue_rows
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch import output
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.lines import Lines
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


@pytest.mark.parametrize(("code", "cause", "retryable"), [(211, "no_module", False), (212, "failed", True), (1, "failed", True)])
async def test_a_script_that_could_not_load_what_it_needs_is_named_and_not_run_again(
    wait: Wait, code: int, cause: str, retryable: bool
) -> None:
    event = await follower(replace(wait, exits={"211": "no_module"})).look(looked(100.0, "FAILED", status=str(code << 8)))
    assert event is not None
    assert (event["view"]["cause"], event["view"]["retryable"], event["view"]["exit_code"]) == (cause, retryable, code)


async def test_an_output_that_may_not_be_read_is_said_once_and_ends_no_wait(wait: Wait) -> None:
    watching = follower(wait, Output())
    with capture_logs() as said:
        for at in (100.0, 160.0, 220.0):
            assert await watching.look(looked(at, "RUNNING")) is None
        event = await watching.look(looked(280.0, "COMPLETED"))
    assert event is not None
    assert [line["event"] for line in said if "not copied" in line["event"] and line["log_level"] == "warning"] == [
        "The job's output is not copied here: /runs/log can't be read over connection 'c1': Permission denied. Its login has to be let in, on all "
        "folders on the way too."
    ]


class Taker:
    """Remembers the lines of a job, and how it ended."""

    got: ClassVar[list[str]] = []

    def begin(self, file: str) -> int | None:
        return 0

    def take(self, file: str, lines: Sequence[str], end: int) -> None:
        Taker.got += lines

    def ended(self, file: str, view: JobView, given_up: bool) -> None:
        Taker.got.append(f"{Path(file).name} {view.state}")


async def test_the_lines_that_a_watched_job_writes_are_handed_over_before_its_end_is_told(wait: Wait, tmp_path: Path) -> None:
    Taker.got = []
    (tmp_path / "figures").write_text("one\n")
    asked = Lines("/runs/{n}-{job_id}.{restarts}", f"{__name__}.Taker").to_json()
    watching = follower(replace(wait, lines=asked, follow_log=False), Output(tmp_path / "figures"))
    assert await watching.look(looked(100.0, "RUNNING")) is None
    (tmp_path / "figures").write_text("one\ntwo\n")
    event = await watching.look(looked(160.0, "COMPLETED", restarts=1))
    assert event is not None
    assert Taker.got[-3:] == ["one", "two", "1-7.1 COMPLETED"]


async def test_how_long_a_job_has_been_unknown_outlasts_the_process_that_saw_it(wait: Wait) -> None:
    first = follower(wait)
    assert await first.look(looked(100.0, "RUNNING", restarts=1)) is None
    for at in range(1000, 4300, 60):
        assert await first.look(looked(float(at))) is None
    second = follower(wait)
    event = await second.look(looked(4299.0))
    assert event is None
    assert second.view.restarts == 1
    # Kept at 1000, 1120 and then every 300 s: what passed since 4120 does not count.
    assert (second.view.missing_since, second.view.unknown_since) == (1179.0, 1179.0)
    assert await second.look(looked(4778.0)) is None
    event = await second.look(looked(4779.0))
    assert event is not None
    assert event["status"] == "unknown"


@pytest.mark.parametrize("asked", [True, False])
async def test_what_passed_while_nobody_looked_is_no_time_in_which_nobody_could_say(wait: Wait, asked: bool) -> None:
    first = follower(wait)
    assert await first.look(looked(100.0, "RUNNING")) is None
    for at in (1000.0, 1200.0):
        assert await first.look(looked(at, asked=asked)) is None
    second = follower(wait)
    for at in (90000.0, 90060.0):
        assert await second.look(looked(at, asked=False)) is None
    assert await second.look(looked(90120.0, "RUNNING")) is None


async def test_a_view_of_an_earlier_version_does_not_count_as_watched_either(wait: Wait, kept: FileReceipts) -> None:
    kept.observe("k", 1, JobView("7", phase=Phase.UNKNOWN, cause="it does not answer", observed_at=100.0, unknown_since=1000.0))
    assert await follower(wait).look(looked(90000.0, asked=False)) is None


async def test_a_job_that_is_there_again_is_waited_for_whatever_an_earlier_process_missed(wait: Wait) -> None:
    first = follower(wait)
    for at in (1000.0, 1200.0):
        assert await first.look(looked(at)) is None
    second = follower(wait)
    assert await second.look(looked(9000.0, "RUNNING")) is None
    assert (second.view.missing_since, second.view.unknown_since) == (None, None)
    assert await second.look(looked(9060.0)) is None  # it is missed anew from here on


async def test_how_long_a_controller_has_not_answered_outlasts_the_process_too(wait: Wait) -> None:
    first = follower(wait)
    for at in range(1000, 4600, 60):
        assert await first.look(looked(float(at), asked=False)) is None
    second = follower(wait)
    assert await second.look(looked(4600.0, asked=False)) is None
    event = await second.look(looked(4960.0, asked=False))
    assert event is not None
    assert (event["status"], 1000.0 < event["view"]["unknown_since"] <= 1300.0) == ("unknown", True)


async def test_an_end_that_nobody_acted_on_is_judged_anew(wait: Wait) -> None:
    assert await follower(wait).look(looked(100.0, "COMPLETED")) is not None
    second = follower(wait)
    event = await second.look(looked(200.0, "FAILED", status="256"))
    assert event is not None
    assert event["view"]["state"] == "FAILED"


async def test_the_tasks_of_an_array_that_were_unknown_have_been_so_since_then(wait: Wait) -> None:
    def looks(at: float) -> Snapshot:
        return Snapshot(at, frozenset({"7"}), {}, {})

    array = replace(wait, array="0-1", log_path=None)
    first = follower(array)
    for at in range(1000, 4300, 60):
        assert await first.look(looks(float(at))) is None
    second = follower(array)
    assert await second.look(looks(4299.0)) is None
    event = await second.look(looks(4960.0))
    assert event is not None
    assert event["status"] == "unknown"


async def test_the_tasks_of_an_array_count_only_watched_time_too(wait: Wait) -> None:
    array = replace(wait, array="0-1", log_path=None)
    first, second = follower(array), follower(array)
    for watching, at in ((first, 1000.0), (first, 1200.0), (second, 90000.0)):
        assert await watching.look(Snapshot(at, frozenset({"7"}), {}, {})) is None


async def test_where_all_of_the_output_is_is_said_at_start_and_end(wait: Wait, tmp_path: Path) -> None:
    watching = follower(replace(wait, page="https://airflow/slurm/…/output/1"), Output(tmp_path / "log"))
    with capture_logs() as said:
        for at, state in ((100.0, "PENDING"), (160.0, "RUNNING"), (220.0, "RUNNING"), (280.0, "COMPLETED")):
            await watching.look(looked(at, state))
    where = "Its output is in /runs/log (all of it: https://airflow/slurm/…/output/1)"
    assert [line["event"] for line in said if "output" in line["event"]] == [where, where]


async def test_a_restarted_triggerer_copies_no_line_again_and_leaves_none_out(wait: Wait, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with capture_logs() as said:
        log.write_text("one\ntwo\nhal")
        assert await follower(wait, Output(log)).look(looked(1000.0, "RUNNING")) is None
        log.write_text("one\ntwo\nhalf\nfour\n")
        second = follower(wait, Output(log))
        assert await second.look(looked(1060.0, "RUNNING")) is None
        log.write_text("one\ntwo\nhalf\nfour\nfive")
        assert await follower(wait, Output(log)).look(looked(1120.0, "COMPLETED")) is not None
    copied = [line["event"] for line in said if line["event"].startswith("[job 7]")]
    assert copied == ["[job 7] one", "[job 7] two", "[job 7] half", "[job 7] four", "[job 7] five"]


async def test_how_far_an_output_was_copied_is_kept_every_five_minutes(wait: Wait, kept: FileReceipts, tmp_path: Path) -> None:
    log = tmp_path / "log"
    watching, kept_at = follower(wait, Output(log)), []
    for look in range(12):
        log.write_text("line\n" * (look + 1))
        assert await watching.look(looked(1000.0 + 60 * look, "RUNNING")) is None
        [record] = history_of(kept, "k")
        assert record.view is not None
        kept_at.append(record.view.log_offset // 5)
    assert kept_at == [1] * 5 + [6] * 5 + [11] * 2


async def test_lines_that_a_shared_file_system_shows_late_are_copied_too(
    wait: Wait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    paused = asyncio.sleep

    async def shows_the_rest(seconds: float) -> None:
        assert seconds == 3.0
        log.write_text("first\nlast")
        await paused(0)

    monkeypatch.setattr(output, "LATE_LINES_S", 3.0)
    monkeypatch.setattr(output.asyncio, "sleep", shows_the_rest)
    with capture_logs() as said:
        assert await follower(wait, Output(log)).look(looked(100.0, "COMPLETED")) is not None
    assert [line["event"] for line in said if line["event"].startswith("[job 7]")] == ["[job 7] first", "[job 7] last"]
