"""One SSH connection that many commands share, and that is opened anew when it broke.

What goes wrong is told apart by whether anything was sent: before a command started (:class:`SshUnreachable`, safe to
repeat) or after (:class:`AnswerLost`, not safe to repeat if the command changes something).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import asyncssh

from airflow_slurm.errors import AnswerLost, BadConnection, FileUnreadable, LoginRefused, SshUnreachable
from airflow_slurm.remote.text import decode

# At INFO, asyncssh writes every command and channel into the log of whatever task asks.
asyncssh.set_log_level(logging.WARNING)

#: sshd allows 10 sessions a connection by default and frees them late: 8 at once already failed, 5 did not.
MAX_CHANNELS = 5
#: For reading a piece of a file, in seconds; commands have a limit of their own, since Slurm's clients wait long.
READ_TIMEOUT_S = 15.0

#: Bytes of standard output, and of standard error, that one command may write: a queue of 100 000 jobs is a third of it.
MAX_OUTPUT, MAX_STDERR = 64 * 1024 * 1024, 1024 * 1024
_PIECE = 256 * 1024

_BROKEN = (asyncssh.Error, OSError, EOFError)
#: Of what an SFTP server may answer, that which says that its session is of no use any more. Whatever else it says is about the file.
_SESSION_GONE = (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost, asyncssh.SFTPBadMessage)


class SshTransport:
    """See the module.

    :param connect: opens a connection. :param conn_id: what to call it in errors. :param timeout_s: for one command.
    """

    def __init__(self, connect: Callable[[], Awaitable[asyncssh.SSHClientConnection]], conn_id: str, timeout_s: float) -> None:
        self._open = connect
        self.conn_id = conn_id
        self._timeout_s = timeout_s
        self._connection: asyncssh.SSHClientConnection | None = None
        self._sftp: asyncssh.SFTPClient | None = None
        self._connects_left: int | None = None
        self._connecting = asyncio.Lock()
        self._starting_sftp = asyncio.Lock()
        self._channels = asyncio.Semaphore(MAX_CHANNELS)

    async def close(self) -> None:
        """Close the connection; the next command opens a new one."""
        connection, self._connection, self._sftp = self._connection, None, None
        if connection is not None:
            connection.abort()
            with suppress(TimeoutError):
                await asyncio.wait_for(connection.wait_closed(), 5.0)

    def allow_connects(self, count: int) -> None:
        """Let the connection be opened so often from now on, and no more until this is called again."""
        self._connects_left = count

    async def run(self, line: str, stdin: str, what: str) -> tuple[str, str]:
        """Standard output and error of one command line.

        :param what: what to call it in errors.
        :raises SshUnreachable: if it wasn't started. :raises AnswerLost: if it was, and nobody knows how it ended, or it never stops to write.
        """
        async with self._channels:
            process = await self._start(line)
            try:
                async with asyncio.timeout(self._timeout_s):
                    stdout, stderr = await _written(process, stdin.encode())
            except _TooMuch as error:
                process.close()
                raise AnswerLost(
                    f"{what} over connection {self.conn_id!r} was cut off: {error}. Does a start-up file of the login there print without end?"
                ) from error
            except asyncio.CancelledError:
                process.close()  # its channel is one of the few there are
                raise
            except (*_BROKEN, TimeoutError) as error:
                # Also after a timeout: the network may swallow what comes, and then the next question would vanish too.
                process.close()
                await self._drop(process.get_extra_info("connection"))
                words = _words(error)
                raise AnswerLost(f"{what} was started over connection {self.conn_id!r} and its answer got lost: {words}") from error
        return decode(stdout), decode(stderr)

    async def sftp(self) -> asyncssh.SFTPClient:
        """An SFTP client on the shared connection, kept open; don't close it."""
        async with self._starting_sftp:  # all jobs of a snapshot ask at once, and sshd allows ten sessions
            connection = await self._connected()
            if self._sftp is None:
                try:
                    self._sftp = await asyncio.wait_for(connection.start_sftp_client(), self._timeout_s)
                except (*_BROKEN, TimeoutError) as error:
                    await self._drop(connection)
                    raise SshUnreachable(f"No SFTP session over connection {self.conn_id!r}: {_words(error)}") from error
            return self._sftp

    # A file that is there and can't be read raises FileUnreadable in each of these; the connection stays.

    async def size_of(self, path: str) -> int | None:
        """Bytes of a remote file; None if it isn't there."""
        found = await self._stat(path)
        return None if found is None else found.size or 0

    async def changed_at(self, path: str) -> float | None:
        """When a remote file, or folder, was last written, in seconds since the epoch by the clock of its file server; None if it isn't there."""
        found = await self._stat(path)
        return None if found is None else float(found.mtime or 0)

    async def _stat(self, path: str) -> asyncssh.SFTPAttrs | None:
        try:
            async with self._reading(path) as sftp:
                return await sftp.stat(path)
        except asyncssh.SFTPNoSuchFile:
            return None

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        """Up to ``limit`` bytes of a remote file from an offset; nothing of one that isn't there."""
        try:
            async with self._reading(path) as sftp:
                # No "async with": leaving it would ask a server that is gone to close the file, and wait.
                file = await sftp.open(path, "rb")
                try:
                    data: bytes = await file.read(limit, offset)
                except asyncssh.SFTPError:
                    with suppress(asyncssh.SFTPError):
                        await file.close()  # one handle a look would soon be all that the server gives
                    raise
                await file.close()
                return data
        except asyncssh.SFTPNoSuchFile:
            return b""

    @asynccontextmanager
    async def _reading(self, path: str) -> AsyncIterator[asyncssh.SFTPClient]:
        """An SFTP client for one read, which must not take for ever.

        :raises FileUnreadable: if the server says no. :raises SshUnreachable: if it breaks or takes too long; the next read starts over.
        """
        sftp = await self.sftp()
        try:
            async with asyncio.timeout(min(self._timeout_s, READ_TIMEOUT_S)):
                yield sftp
        except asyncssh.SFTPNoSuchFile:
            raise
        except (*_BROKEN, TimeoutError) as error:
            if isinstance(error, asyncssh.SFTPError) and not isinstance(error, _SESSION_GONE):
                # A shared connection is not ended because of one file: all other jobs hang on it.
                # A server says SFTPFailure of whatever it has no word for: an I/O error, a stale handle, too many open files.
                refused = isinstance(error, asyncssh.SFTPPermissionDenied)
                raise FileUnreadable(path, self.conn_id, _words(error), refused=refused) from error
            if self._sftp is sftp:  # not one that somebody else has opened meanwhile
                self._sftp = None
                await self._drop(self._connection)
            raise SshUnreachable(f"{path} could not be read over connection {self.conn_id!r}: {_words(error)}") from error

    async def _start(self, line: str) -> asyncssh.SSHClientProcess[bytes]:
        """Start a command, connecting anew once if the kept connection turns out to be dead.

        Its input has not been sent at this point, and a command whose input is missing does nothing; the commands
        without input may be repeated.
        """
        for last in (False, True):
            connection = await self._connected()
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await connection.create_process(line, encoding=None)
            except asyncssh.ChannelOpenError as error:
                failure: Exception = error
                if not connection.is_closed():
                    await asyncio.sleep(0.3)
            except (*_BROKEN, TimeoutError) as error:
                failure = error
                await self._drop(connection)
            if last:
                raise SshUnreachable(f"No command could be started over connection {self.conn_id!r}: {_words(failure)}") from failure
        raise AssertionError("not reached")

    async def _drop(self, connection: asyncssh.SSHClientConnection | None) -> None:
        """End a connection that can't be trusted any more, unless another one has taken its place."""
        if connection is not None and connection is self._connection:
            await self.close()
        elif connection is not None:
            connection.abort()

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is not None and not self._connection.is_closed():
                return self._connection
            self._sftp = None
            if self._connects_left is not None:
                if self._connects_left <= 0:
                    raise SshUnreachable(
                        f"Connection {self.conn_id!r} broke too often; it is opened again with the next look at the cluster."
                    )
                self._connects_left -= 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    self._connection = await self._open()
            except asyncssh.HostKeyNotVerifiable as error:
                raise BadConnection(
                    f"Connection {self.conn_id!r}: the login node's host key is not the one that is trusted ({_words(error)}). "
                    "Set host_key or known_hosts to the right one, or find out who answers there."
                ) from error
            except asyncssh.PermissionDenied as error:
                raise LoginRefused(f"Connection {self.conn_id!r}: the login node refused the key or user: {_words(error)}") from error
            except (*_BROKEN, TimeoutError) as error:
                raise SshUnreachable(f"No SSH connection {self.conn_id!r}: {_words(error)}") from error
            return self._connection


class _TooMuch(Exception):
    """A command writes more than any answer is long."""


async def _written(process: asyncssh.SSHClientProcess[bytes], stdin: bytes) -> tuple[bytes, bytes]:
    """What a command writes until it has ended."""
    if stdin:
        process.stdin.write(stdin)
        process.stdin.write_eof()
    streams = (("standard output", process.stdout, MAX_OUTPUT), ("standard error", process.stderr, MAX_STDERR))
    reading = [asyncio.create_task(_bounded(*stream)) for stream in streams]
    try:
        stdout, stderr = await asyncio.gather(*reading)
        await process.wait_closed()
    finally:
        for task in reading:
            task.cancel()
    return stdout, stderr


async def _bounded(name: str, stream: asyncssh.SSHReader[bytes], most: int) -> bytes:
    """All of a stream. :raises _TooMuch: for one that goes on and on, before it fills the memory of whoever waits for all jobs."""
    pieces, size = [], 0
    while piece := await stream.read(_PIECE):
        size += len(piece)
        if size > most:
            raise _TooMuch(f"it wrote more than {most // 1024 // 1024} MiB to {name}")
        pieces.append(piece)
    return b"".join(pieces)


def _words(error: BaseException) -> str:
    """The error's own text; asyncssh and asyncio raise some without any."""
    return str(error) or type(error).__name__
