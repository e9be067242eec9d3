"""An fsspec file system over SFTP: one asyncssh connection, strict host keys, a loop in a thread of its own.

fsspec's own SFTP speaks through paramiko and opens a connection for each instance; this one shares the way that the Slurm
connection uses, and renames over what is there (posix-rename), which a plain SFTP rename refuses.
"""

import io
import os
import posixpath
import stat
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fsspec.spec import AbstractFileSystem

from include.stores.sftp_channel import Channel, SftpTarget

T = TypeVar("T")

__all__ = ["SftpFileSystem", "SftpTarget"]

BUFFER_BYTES = 4 << 20


class SftpFileSystem(AbstractFileSystem):
    """What the artifact store needs of a file system, over SFTP. Paths are absolute on the host."""

    protocol = "sftp"
    cachable = False  # fsspec would keep instances by their arguments, in which a passphrase may be
    root_marker = "/"

    def __init__(self, target: SftpTarget) -> None:
        super().__init__()
        self.channel = Channel(target)

    def _call(self, path: str, call: Callable[[Any], Awaitable[T]]) -> T:
        import asyncssh

        try:
            return self.channel.run(call)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as error:
            raise FileNotFoundError(path) from error
        except (asyncssh.SFTPPermissionDenied, asyncssh.SFTPWriteProtect) as error:
            raise PermissionError(f"{path}: {error.reason}") from error
        except asyncssh.SFTPFileAlreadyExists as error:
            raise FileExistsError(path) from error
        except asyncssh.SFTPError as error:
            raise OSError(f"{path} on {self.channel.target.host}: {error.reason}") from error

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether it is there; a host that can't be reached is an error, not a no."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return _entry(path, self._call(path, lambda sftp: sftp.stat(path)))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        seen = self.info(path)
        if seen["type"] == "file":
            return [seen] if detail else [path]
        found = self._call(path, lambda sftp: sftp.readdir(path))
        entries = [_entry(posixpath.join(path, item.filename), item.attrs) for item in found if item.filename not in (".", "..")]
        entries.sort(key=lambda entry: str(entry["name"]))
        return entries if detail else [entry["name"] for entry in entries]

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.makedirs(posixpath.dirname(path), exist_ok=True)
        self._call(path, lambda sftp: sftp.mkdir(path))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        self._call(path, lambda sftp: sftp.makedirs(path, exist_ok=True))

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames a file or folder in one step, over a file that is there."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._call(target, lambda sftp: sftp.posix_rename(source, target))

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        self._call(path, lambda sftp: sftp.remove(path))

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and folders with `recursive`; a link is removed, never what it points at."""
        for item in [path] if isinstance(path, str) else path:
            self._remove(self._strip_protocol(item), recursive)

    def _remove(self, path: str, recursive: bool) -> None:
        seen: Any = self._call(path, lambda sftp: sftp.lstat(path))
        if stat.S_ISDIR(seen.permissions or 0) and recursive:
            self._call(path, lambda sftp: sftp.rmtree(path))
        else:
            self.rm_file(path)

    def symlink(self, target: str, path: str) -> None:
        """Makes `path` a link to `target` (which may be relative to the link's folder)."""
        self._call(path, lambda sftp: sftp.symlink(target, path))

    def readlink(self, path: str) -> str:
        return str(self._call(path, lambda sftp: sftp.readlink(path)))

    def chmod(self, path: str, mode: int) -> None:
        self._call(path, lambda sftp: sftp.chmod(path, mode))

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> Any:
        if mode not in ("rb", "wb"):
            raise ValueError(f"{path}: mode {mode!r} is not read or write in bytes")
        handle = self._call(path, lambda sftp: sftp.open(path, mode))
        raw = _RemoteFile(self, path, handle, mode)
        return io.BufferedReader(raw, BUFFER_BYTES) if mode == "rb" else io.BufferedWriter(raw, BUFFER_BYTES)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The whole file in one repeatable call; a part of it with `start` or `end`."""
        name = self._strip_protocol(path)
        data: bytes = self._call(name, lambda sftp: _read(sftp, name))
        return data[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a whole small file in one repeatable call."""
        name = self._strip_protocol(path)
        self._call(name, lambda sftp: _write(sftp, name, value))


async def _read(sftp: Any, path: str) -> bytes:
    async with sftp.open(path, "rb") as stream:
        return bytes(await stream.read())


async def _write(sftp: Any, path: str, data: bytes) -> None:
    async with sftp.open(path, "wb") as stream:
        await stream.write(data)


class _RemoteFile(io.RawIOBase):
    """A file on the host, as Python's own buffered streams want it."""

    def __init__(self, fs: SftpFileSystem, path: str, handle: Any, mode: str) -> None:
        self._fs, self._path, self._handle, self._mode = fs, path, handle, mode
        self._at = 0

    def readable(self) -> bool:
        return self._mode == "rb"

    def writable(self) -> bool:
        return self._mode == "wb"

    def seekable(self) -> bool:
        return self._mode == "rb"

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        if base is None:
            base = int(self._fs.info(self._path)["size"])
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._run(lambda: self._handle.read(len(buffer), self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def write(self, buffer: Any) -> int:
        data = bytes(buffer)
        self._run(lambda: self._handle.write(data, self._at))
        self._at += len(data)
        return len(data)

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._fs._call(self._path, lambda _sftp: call())

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._run(lambda: self._handle.close())


def _entry(path: str, attrs: Any) -> dict[str, Any]:
    kind = attrs.permissions or 0
    type_ = "directory" if stat.S_ISDIR(kind) else "link" if stat.S_ISLNK(kind) else "file"
    return {"name": path, "size": attrs.size or 0, "type": type_, "mode": stat.S_IMODE(kind), "mtime": attrs.mtime}
