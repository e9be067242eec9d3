"""One SSH connection for all, in front of a server that does what a test wants: files that are not to be read, commands that never stop writing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from airflow_slurm.errors import AnswerLost, FileUnreadable, OutputUnreadable, SshUnreachable
from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote import transport as transport_module
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.remote.transport import SshTransport


class Files(asyncssh.SFTPServer):
    """Of the folder in ``root``; below ``closed`` nothing may be looked at, and ``gone`` ends the session."""

    root: Path
    closed = 0

    def __init__(self, channel: asyncssh.SSHServerChannel) -> None:
        super().__init__(channel, chroot=str(self.root))
        self._channel = channel

    def stat(self, path: bytes) -> object:
        if path.startswith(b"/closed/"):
            raise asyncssh.SFTPPermissionDenied("Permission denied")
        if path == b"/gone":
            raise asyncssh.SFTPConnectionLost("Connection lost")
        if path == b"/stale":
            raise asyncssh.SFTPFailure("Failure")
        return super().stat(path)

    def read(self, file_obj: object, offset: int, size: int) -> bytes:
        if file_obj.name.endswith(b"/stale"):  # type: ignore[attr-defined]
            raise asyncssh.SFTPFailure("Failure")
        return super().read(file_obj, offset, size)  # type: ignore[return-value]

    def close(self, file_obj: object) -> None:
        Files.closed += 1
        super().close(file_obj)

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        if path.startswith(b"/closed/"):
            raise asyncssh.SFTPPermissionDenied("Permission denied")
        return super().open(path, pflags, attrs)


class Server(asyncssh.SSHServer):
    connections = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        Server.connections += 1

    def begin_auth(self, username: str) -> bool:
        return False


async def commands(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """``flood`` writes for ever to one of its streams; anything else comes back as it is, with its input."""
    line = process.command or ""
    if line.startswith("flood"):
        stream = process.stderr if line.endswith("stderr") else process.stdout
        try:
            while True:
                stream.write(b"x" * 65536)
                await stream.drain()
        except (OSError, asyncssh.Error):
            return
    process.stdout.write(line.encode() + b":" + (await process.stdin.read() if line == "cat" else b""))
    process.stderr.write(b"said")
    process.exit(0)


@pytest.fixture
async def transport(tmp_path: Path) -> AsyncIterator[SshTransport]:
    Files.root, Files.closed, Server.connections = tmp_path, 0, 0
    key = asyncssh.generate_private_key("ssh-ed25519")
    listener = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Server, server_host_keys=[key], process_factory=commands, sftp_factory=Files, encoding=None
    )
    port = listener.get_port()
    made = SshTransport(lambda: asyncssh.connect("127.0.0.1", port, known_hosts=None, username="x", client_keys=None), "c1", 20.0)
    yield made
    await made.close()
    listener.close()


async def test_a_file_that_may_not_be_read_is_named_and_costs_no_connection(transport: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("here")
    (tmp_path / "folder").mkdir()
    for ask in (transport.size_of("/closed/log"), transport.changed_at("/closed/log"), transport.read_from("/closed/log", 0, 10)):
        with pytest.raises(FileUnreadable, match=r"/closed/log can't be read over connection 'c1': Permission denied"):
            await ask
    with pytest.raises(FileUnreadable, match="/folder"):
        await transport.read_from("/folder", 0, 10)
    assert await transport.read_from("/log", 0, 10) == b"here"
    assert await transport.size_of("/none") is None
    assert Server.connections == 1


async def test_an_sftp_session_that_is_lost_is_opened_anew(transport: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("here")
    with pytest.raises(SshUnreachable, match="/gone"):
        await transport.size_of("/gone")
    assert await transport.size_of("/log") == 4
    assert Server.connections == 2


async def test_an_expected_output_that_may_not_be_looked_at_is_neither_missing_nor_unreachable(
    transport: SshTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "done").write_text("here")
    client = SlurmClient(lambda: None, conn_id="c1")  # type: ignore[arg-type, return-value]
    client._transport = transport
    monkeypatch.setattr(SlurmHook, "run", lambda self, ask: ask(client))
    with pytest.raises(OutputUnreadable, match="/closed/done can't be read .* clear the task: its job is kept"):
        await SlurmHook("c1").missing(["/closed/done", "/done"], 0.0)  # type: ignore[misc]
    assert await SlurmHook("c1").missing(["/none", "/done"], 0.0) == {"/none"}  # type: ignore[misc]
    # A file system in trouble is no refusal: it is looked for later.
    with pytest.raises(SshUnreachable, match="/stale can't be read over connection 'c1': Failure.$"):
        await SlurmHook("c1").missing(["/stale", "/done"], 0.0)  # type: ignore[misc]
    with pytest.raises(OutputUnreadable, match="/closed/done"):
        await SlurmHook("c1").missing(["/closed/done", "/stale"], 0.0)  # type: ignore[misc]


async def test_a_file_that_opens_and_is_not_read_keeps_no_handle(transport: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "stale").write_text("here")
    for _ in range(2):
        with pytest.raises(FileUnreadable, match="/stale"):
            await transport.read_from("/stale", 0, 10)
    assert Files.closed == 2
    assert Server.connections == 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_command_that_never_stops_to_write_is_cut_off_and_the_next_one_runs(
    transport: SshTransport, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    monkeypatch.setattr(transport_module, "MAX_OUTPUT", 4 * 1024 * 1024)
    with pytest.raises(AnswerLost, match=r"squeue over connection 'c1' was cut off: it wrote more than [14] MiB to standard"):
        await asyncio.wait_for(transport.run(f"flood {stream}", "", "squeue"), 15.0)
    assert await transport.run("cat", "input", "sbatch") == ("cat:input", "said")
    assert await transport.run("true", "", "sinfo") == ("true:", "said")
    assert Server.connections == 1
