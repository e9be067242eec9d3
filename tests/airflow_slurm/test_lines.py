"""Lines of a running job on their way to the application: each once, and never in the way of the watch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import structlog
from structlog.testing import capture_logs

from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch import lines
from airflow_slurm.watch.lines import LineFollower, Lines, say_given_up
from airflow_slurm.watch.poller import Hub

RUNNING = JobView("7", phase=Phase.RUNNING, state="RUNNING")
ENDED = JobView("7", phase=Phase.SUCCEEDED, state="COMPLETED")


class Notebook:
    """A taker that remembers, and misbehaves as it is told."""

    got: ClassVar[list[tuple[str, str]]] = []
    ends: ClassVar[list[tuple[str, str, bool]]] = []
    told: ClassVar[dict[str, int]] = {}
    trouble: ClassVar[Exception | None] = None
    gate: ClassVar[threading.Event | None] = None

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self, file: str) -> int | None:
        if Notebook.gate is not None:
            Notebook.gate.wait(60)
        if Notebook.trouble is not None:
            raise Notebook.trouble
        return Notebook.told.get(file, 0)

    def take(self, file: str, lines: Sequence[str], end: int) -> None:
        if Notebook.trouble is not None:
            raise Notebook.trouble
        Notebook.got += [(Path(file).parent.name, line) for line in lines]
        Notebook.told[file] = end

    def ended(self, file: str, view: JobView, given_up: bool) -> None:
        Notebook.ends.append((Path(file).parent.name, view.state, given_up))


class Files:
    """At the process edge: a login node's files."""

    async def size_of(self, path: str) -> int | None:
        return len(bytes_of(path)) or None

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        return bytes_of(path)[offset : offset + limit]


def bytes_of(path: str) -> bytes:
    return Path(path).read_bytes() if Path(path).exists() else b""


@pytest.fixture(autouse=True)
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Notebook.got, Notebook.ends, Notebook.told, Notebook.trouble, Notebook.gate = [], [], {}, None, None
    lines._RESTS.clear()
    yield
    if Notebook.gate is not None:
        Notebook.gate.set()


def asked(folder: Path) -> dict[str, Any]:
    return Lines(f"{folder}/{{n}}-{{job_id}}.{{restarts}}/figures.jsonl", f"{__name__}.Notebook", {"name": "x"}).to_json()


def follower(folder: Path) -> LineFollower:
    return LineFollower(asked(folder), 2, Hub(client=Files()), structlog.get_logger())  # type: ignore[arg-type]


def write(folder: Path, text: str, restarts: int = 0) -> Path:
    file = folder / f"2-7.{restarts}" / "figures.jsonl"
    file.parent.mkdir(exist_ok=True)
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(text)
    return file


async def settled(watching: LineFollower, view: JobView = RUNNING) -> None:
    await watching.look(view)
    if watching._task is not None:
        await asyncio.wait_for(asyncio.shield(watching._task), 20)


async def test_each_line_comes_once_and_half_a_line_when_it_is_whole(tmp_path: Path) -> None:
    watching = follower(tmp_path)
    await settled(watching)
    write(tmp_path, "one\ntw")
    await settled(watching)
    write(tmp_path, "o\nthree\n")
    await settled(watching)
    await settled(watching)
    assert [line for _, line in Notebook.got] == ["one", "two", "three"]


async def test_a_line_ends_where_its_writer_ended_it(tmp_path: Path) -> None:
    write(tmp_path, '{"a": "\u2028 \x85 \x0c"}\n\ntwo\n')
    await settled(follower(tmp_path))
    assert [line for _, line in Notebook.got] == ['{"a": "\u2028 \x85 \x0c"}', "", "two"]


async def test_many_jobs_whose_taker_is_away_make_it_rest_once_and_a_long_trouble_goes_on_resting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Notebook.trouble = OSError("away")
    write(tmp_path, "one\n")
    clock = [0.0]
    monkeypatch.setattr(lines, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    watching = [follower(tmp_path) for _ in range(5)]
    rests = []
    for _ in range(1100):
        clock[0] = lines._RESTS[f"{__name__}.Notebook"].until
        for each in watching:
            await each.look(RUNNING)
        await asyncio.gather(*(each._task for each in watching if each._task is not None))
        rests.append(lines._RESTS[f"{__name__}.Notebook"].until - clock[0])
    assert rests[:6] == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0]
    assert set(rests[6:]) == {600.0}


async def test_a_process_that_takes_over_goes_on_where_the_taker_says(tmp_path: Path) -> None:
    write(tmp_path, "one\n")
    await settled(follower(tmp_path))
    write(tmp_path, "two\n")
    await settled(follower(tmp_path))
    assert [line for _, line in Notebook.got] == ["one", "two"]


async def test_a_requeued_job_has_a_file_of_its_own(tmp_path: Path) -> None:
    watching = follower(tmp_path)
    write(tmp_path, "one\n")
    await settled(watching)
    write(tmp_path, "again\n", restarts=1)
    await settled(watching, JobView("7", phase=Phase.RUNNING, state="RUNNING", restarts=1))
    assert Notebook.got == [("2-7.0", "one"), ("2-7.1", "again")]


async def test_the_last_lines_come_before_the_end_is_told(tmp_path: Path) -> None:
    watching = follower(tmp_path)
    write(tmp_path, "one\n")
    await settled(watching)
    write(tmp_path, "last\n")
    await watching.look(ENDED)
    assert [line for _, line in Notebook.got] == ["one", "last"]
    assert Notebook.ends == [("2-7.0", "COMPLETED", False)]


async def test_many_lines_come_in_pieces_over_several_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "PIECE", 64)
    write(tmp_path, "".join(f"line {number}\n" for number in range(100)))
    watching = follower(tmp_path)
    await settled(watching)
    assert 0 < len(Notebook.got) < 100
    for _ in range(5):
        await settled(watching)
    assert [line for _, line in Notebook.got] == [f"line {number}" for number in range(100)]


async def test_a_line_longer_than_a_piece_is_passed_over_and_no_look_is_stuck_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PIECE", 64)
    write(tmp_path, "x" * 200 + "\nafter\n")
    watching = follower(tmp_path)
    for _ in range(4):
        await settled(watching)
    assert Notebook.got[-1] == ("2-7.0", "after")


async def test_a_taker_that_hangs_holds_up_no_look_and_the_end_only_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LAST_LINES_S", 0.3)
    Notebook.gate = threading.Event()
    write(tmp_path, "one\n")
    watching = follower(tmp_path)
    for _ in range(20):
        await watching.look(RUNNING)
    await watching.look(ENDED)
    # All of these have come back, and the taker still hangs.
    assert watching._task is not None
    assert not watching._task.done()
    Notebook.gate.set()
    await asyncio.wait_for(asyncio.shield(watching._task), 20)
    assert [line for _, line in Notebook.got] == ["one"]


async def test_a_taker_in_trouble_is_named_once_and_left_alone_for_a_while(tmp_path: Path) -> None:
    Notebook.trouble = RuntimeError("the tracker is away")
    write(tmp_path, "one\n")
    watching = follower(tmp_path)
    with capture_logs() as said:
        for _ in range(3):
            await settled(watching)
    assert [line["event"] for line in said if line["log_level"] == "warning"] == [
        f"What the job writes to {asked(tmp_path)['path']} is not shown elsewhere now (it is tried again): the tracker is away"
    ]
    Notebook.trouble = None
    await settled(watching)
    assert Notebook.got == []
    lines._RESTS[f"{__name__}.Notebook"].until = 0.0
    await settled(watching)
    assert [line for _, line in Notebook.got] == ["one"]


async def test_a_taker_that_wants_nothing_is_given_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notebook, "begin", lambda self, file: None)
    write(tmp_path, "one\n")
    await settled(follower(tmp_path))
    assert Notebook.got == []


async def test_without_a_file_to_follow_nothing_is_done() -> None:
    watching = LineFollower({}, 1, Hub(), structlog.get_logger())
    await watching.look(RUNNING)
    await watching.look(ENDED)
    assert watching._task is None


async def test_a_job_that_was_given_up_is_told_as_such(tmp_path: Path) -> None:
    await say_given_up(asked(tmp_path), 2, JobView("7", phase=Phase.FAILED, state="CANCELLED"), structlog.get_logger())
    assert Notebook.ends == [("2-7.0", "CANCELLED", True)]


async def test_a_taker_that_is_not_there_is_said_and_ends_nothing(tmp_path: Path) -> None:
    with capture_logs() as said:
        await say_given_up(asked(tmp_path) | {"taker": "no.such.Taker"}, 2, ENDED, structlog.get_logger())
    assert "no.such.Taker" in said[0]["event"]
