"""One asyncssh connection with SFTP, strict about host keys, in a loop of its own thread."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from include.stores.errors import StoreError

T = TypeVar("T")

CONNECT_TIMEOUT_S = 30
CALL_TIMEOUT_S = 600


@dataclass(frozen=True)
class SftpTarget:
    """Where to, as whom. The host's key comes from a known_hosts file or is given; without either nothing is reached."""

    host: str
    port: int = 22
    username: str = ""
    client_keys: tuple[str, ...] = ()
    known_hosts: str | None = None
    host_key: str | None = None
    passphrase: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.known_hosts and not self.host_key:
            raise StoreError(
                f"SFTP to {self.host}: give the host's key, as `host_key` or in a `known_hosts` file; it is never taken on trust"
            )
        if self.known_hosts and not Path(self.known_hosts).is_file():
            raise StoreError(f"SFTP to {self.host}: the known_hosts file {self.known_hosts} is not there")


class Channel:
    """A connection in a loop of its own thread, made again after a fork and after it broke."""

    def __init__(self, target: SftpTarget) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Any = None
        self._client: Any = None
        self._opening: asyncio.Lock | None = None

    def run(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """`call(sftp client)` in the loop's thread; once more over a new connection when the old one broke.

        Every call has to be repeatable: writes go to names of their own until they are whole.
        """
        future = asyncio.run_coroutine_threadsafe(self._attempt_twice(call), self._living_loop())
        try:
            return future.result(CALL_TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise StoreError(f"SFTP to {self._where} did not answer within {CALL_TIMEOUT_S} s") from error

    def _living_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._pid, self._client, self._connection, self._opening = os.getpid(), None, None, asyncio.Lock()
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=f"sftp-{self.target.host}", daemon=True).start()
            return self._loop

    async def _attempt_twice(self, call: Callable[[Any], Awaitable[T]]) -> T:
        import asyncssh

        broken = (asyncssh.ConnectionLost, asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection, ConnectionError)
        try:
            return await call(await self._living_client())
        except broken:
            self._client = None
        try:
            return await call(await self._living_client())
        except broken as error:
            raise StoreError(f"SFTP to {self._where} broke twice: {error}") from error

    async def _living_client(self) -> Any:
        if self._opening is None:
            raise StoreError("the SFTP channel was used before its loop was made")
        async with self._opening:
            if self._client is None:
                if self._connection is not None:
                    self._connection.abort()
                self._connection = await self._connect()
                self._client = await self._connection.start_sftp_client()
            return self._client

    @property
    def _where(self) -> str:
        return f"{self.target.username or 'the present user'}@{self.target.host}:{self.target.port}"

    async def _connect(self) -> Any:
        import asyncssh

        target = self.target
        options: dict[str, Any] = {
            "known_hosts": target.known_hosts if not target.host_key else self._given_key(),
            "client_keys": list(target.client_keys) or None,
            "passphrase": target.passphrase,
            "agent_path": None,
            "config": [],
            "preferred_auth": "publickey",
            "keepalive_interval": 30,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "login_timeout": CONNECT_TIMEOUT_S,
        }
        if target.username:
            options["username"] = target.username
        try:
            return await asyncssh.connect(target.host, target.port, **options)
        except asyncssh.HostKeyNotVerifiable as error:
            raise StoreError(
                f"SFTP to {self._where}: the host's key is not the expected one: {error}. Ask its administrators which is"
            ) from error
        except asyncssh.PermissionDenied as error:
            raise StoreError(f"SFTP to {self._where}: no given key is accepted: {error}") from error
        except (OSError, asyncssh.Error, TimeoutError) as error:
            raise StoreError(f"SFTP to {self._where} cannot be opened: {error or type(error).__name__}") from error

    def _given_key(self) -> Any:
        import asyncssh

        name = self.target.host if self.target.port == 22 else f"[{self.target.host}]:{self.target.port}"
        return asyncssh.import_known_hosts(f"{name} {self.target.host_key}\n")

    def close(self) -> None:
        """Ends the connection and its thread; the next call makes new ones."""
        with self._lock:
            loop, connection = self._loop, self._connection
            self._loop = self._connection = self._client = None
        if loop is None or self._pid != os.getpid():
            return
        if connection is not None:
            loop.call_soon_threadsafe(connection.abort)
        loop.call_soon_threadsafe(loop.stop)
