"""Bytes that come in pieces, and the tail of a job's output."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm.remote.tail import LogTail
from airflow_slurm.remote.text import ChunkDecoder, decode
from airflow_slurm.slurm import parse


@given(text=st.text(), size=st.integers(min_value=1, max_value=7))
def test_a_character_split_between_pieces_stays_whole(text: str, size: int) -> None:
    data, decoder = text.encode("utf-8", "surrogatepass"), ChunkDecoder()
    pieces = [decoder.feed(data[i : i + size]) for i in range(0, len(data), size)] + [decoder.feed(b"", final=True)]
    assert "".join(pieces) == data.decode("utf-8", "replace")


def test_a_receipt_after_a_character_on_the_edge_of_a_chunk_is_found() -> None:
    data = b"x" * 16383 + "é".encode() + b"\nSubmitted batch job 4077\n"
    decoder = ChunkDecoder()
    text = decoder.feed(data[:16384]) + decoder.feed(data[16384:], final=True)
    assert "\ufffd" not in text
    assert parse.sbatch_receipt(text) == ("4077", None)


def test_bytes_that_are_no_text_are_replaced_and_hide_nothing() -> None:
    text = decode(b"step 1 \xff\xfe loss=0.5\nSubmitted batch job 4078\n")
    assert text.count("\ufffd") == 2
    assert parse.sbatch_receipt(text) == ("4078", None)


class RemoteFile:
    """A file at the process edge: what an SFTP server would hold."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    async def size_of(self, path: str) -> int | None:
        return None if self.data is None else len(self.data)

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        return (self.data or b"")[offset : offset + limit]


@pytest.fixture
def remote() -> RemoteFile:
    return RemoteFile()


async def test_lines_come_once_and_whole(remote: RemoteFile) -> None:
    tail = LogTail("/log")
    assert await tail.read(remote) == []  # type: ignore[arg-type]
    remote.data = b"Zeile 1\nhalb fert" + "ü".encode()[:1]
    assert await tail.read(remote) == ["Zeile 1"]  # type: ignore[arg-type]
    remote.data = b"Zeile 1\nhalb fert" + "ü".encode() + b"\r\nEnde"
    assert await tail.read(remote) == ["halb fertü"]  # type: ignore[arg-type]
    assert await tail.read(remote) == []  # type: ignore[arg-type]
    assert tail.close() == ["Ende"]


async def test_output_that_runs_away_is_cut_and_says_so(remote: RemoteFile) -> None:
    tail = LogTail("/runs/slurm-1.log", chunk=10)
    remote.data = b"0123456789" * 5 + b"\n"
    lines = await tail.read(remote)  # type: ignore[arg-type]
    assert lines[0] == "[41 bytes of output left out here; all of it is in /runs/slurm-1.log]"
    assert lines[1:] == ["123456789"]


async def test_a_file_that_was_started_anew_is_read_from_its_start(remote: RemoteFile) -> None:
    tail = LogTail("/log")
    remote.data = b"first run\n"
    await tail.read(remote)  # type: ignore[arg-type]
    remote.data = b"again\n"
    assert await tail.read(remote) == ["[/log was started anew; reading it from its beginning]", "again"]  # type: ignore[arg-type]


async def test_a_file_that_was_replaced_by_a_longer_one_is_noticed(remote: RemoteFile) -> None:
    tail = LogTail("/log")
    remote.data = b"first run\n"
    await tail.read(remote)  # type: ignore[arg-type]
    remote.data = b"another run, and longer\n"
    assert await tail.read(remote) == [  # type: ignore[arg-type]
        "[/log was started anew; reading it from its beginning]",
        "another run, and longer",
    ]


async def test_a_replaced_file_far_ahead_is_noticed_too(remote: RemoteFile) -> None:
    tail = LogTail("/log", chunk=10)
    remote.data = b"first run\n"
    await tail.read(remote)  # type: ignore[arg-type]
    remote.data = b"0123456789" * 5 + b"\n"
    lines = await tail.read(remote)  # type: ignore[arg-type]
    assert lines[0] == "[/log was started anew; reading it from its beginning]"
    assert lines[1] == "[41 bytes of output left out here; all of it is in /log]"


async def test_output_left_out_in_the_middle_of_a_character_shows_no_half_of_it(remote: RemoteFile) -> None:
    tail = LogTail("/log", chunk=10)
    remote.data = "ééééééé\n".encode()
    lines = await tail.read(remote)  # type: ignore[arg-type]
    assert lines == ["[6 bytes of output left out here; all of it is in /log]", "éééé"]


async def test_the_log_of_a_task_is_bounded_and_ends_with_the_end(remote: RemoteFile) -> None:
    tail = LogTail("/log", chunk=10, limit=20)
    remote.data = b""
    shown: list[str] = []
    for number in range(100):
        remote.data += f"line {number:03}\n".encode()
        shown += await tail.read(remote)  # type: ignore[arg-type]
    assert len([line for line in shown if line.startswith("[")]) == 1
    assert "20 bytes of output are in this log" in next(line for line in shown if line.startswith("["))
    last = await tail.read(remote, final=True)  # type: ignore[arg-type]
    assert last[0].startswith("[870 bytes of output left out here")
    assert last[-1] == "line 099"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=12))
def test_whatever_the_pieces_nothing_is_lost_and_nothing_comes_twice(pieces: list[str]) -> None:
    async def follow() -> str:
        tail, remote = LogTail("/log"), RemoteFile()
        remote.data = b""
        lines: list[str] = []
        for piece in pieces:
            for byte in piece.encode():
                remote.data += bytes([byte])
                lines += await tail.read(remote)  # type: ignore[arg-type]
        return "\n".join([*lines, "".join(tail.close())])

    *whole, last = "".join(pieces).split("\n")
    assert asyncio.run(follow()) == "\n".join([*(line.rstrip("\r") for line in whole), last])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8), st.integers(0, 7))
def test_whoever_goes_on_from_what_was_told_gives_every_line_once(pieces: list[str], stop: int) -> None:
    async def follow() -> list[str]:
        tail, remote, lines = LogTail("/log"), RemoteFile(), []
        remote.data = b""
        for number, piece in enumerate(pieces):
            remote.data += piece.encode()
            lines += await tail.read(remote)  # type: ignore[arg-type]
            if number == stop:
                tail = LogTail("/log", offset=tail.told)
        lines += await tail.read(remote)  # type: ignore[arg-type]
        return [*lines, *tail.close()]

    *whole, last = "".join(pieces).split("\n")
    assert asyncio.run(follow()) == [line.rstrip("\r") for line in whole] + ([last] if last else [])
