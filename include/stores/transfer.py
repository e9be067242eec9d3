"""Bytes between places: hashed as they pass, and visible at their new place only when they are whole."""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from include.domain.errors import IntegrityError

CHUNK_BYTES = 4 << 20
OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "memory"))
"""File systems where a write becomes visible as a whole when it is closed, and where a rename is a copy."""

FileSystem = Any
"""A ready fsspec file system (fsspec itself is typed in part only)."""


def protocols(fs: FileSystem) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def is_object_store(fs: FileSystem) -> bool:
    return bool(OBJECT_STORES & set(protocols(fs)))


def is_local(fs: FileSystem) -> bool:
    return "file" in protocols(fs)


def copy_hashed(source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    """Copies to the end and gives (``sha256:<hex>``, bytes)."""
    hasher, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        hasher.update(chunk)
        target.write(chunk)
        size += len(chunk)
    return f"sha256:{hasher.hexdigest()}", size


class Hashing:
    """Hashes one file after the other, and tells how far it is every `step_bytes`."""

    def __init__(self, total_bytes: int, said: Callable[[str], None], step_bytes: int = 1 << 30) -> None:
        self._total, self._said, self._step = total_bytes, said, step_bytes
        self._done = 0

    def sha256(self, source: BinaryIO) -> str:
        """``sha256:<hex>`` of all that `source` still gives."""
        hasher = hashlib.sha256()
        while chunk := source.read(CHUNK_BYTES):
            hasher.update(chunk)
            before, self._done = self._done, self._done + len(chunk)
            if before // self._step != self._done // self._step:
                self._said(f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB verified")
        return f"sha256:{hasher.hexdigest()}"


@contextlib.contextmanager
def whole_file(fs: FileSystem, path: str) -> Iterator[BinaryIO]:
    """A file to write, which appears at `path` in one step at the end, and not at all when the block fails."""
    if is_object_store(fs):
        with fs.open(path, "wb") as stream:
            try:
                yield stream
            except BaseException:
                _discard(stream)
                raise
        return
    temporary = _prepare(fs, path)
    try:
        with fs.open(temporary, "wb") as stream:
            yield stream
        replace(fs, temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fs.rm_file(temporary)
        raise


def write_whole(fs: FileSystem, path: str, data: bytes) -> None:
    """Writes a small file so that a reader sees the old bytes or the new ones."""
    if is_object_store(fs):
        fs.pipe_file(path, data)
        return
    temporary = _prepare(fs, path)
    try:
        fs.pipe_file(temporary, data)
        replace(fs, temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fs.rm_file(temporary)
        raise


def _prepare(fs: FileSystem, path: str) -> str:
    """Makes the folder, and gives a name of its own beside `path`."""
    place = PurePosixPath(path)
    fs.makedirs(str(place.parent), exist_ok=True)
    return str(place.with_name(f".{place.name}.{uuid.uuid4().hex[:12]}.tmp"))


def _discard(stream: Any) -> None:
    """Keeps a half-written object from being finished by the stream's own close."""
    if hasattr(stream, "discard"):
        stream.discard()
    stream.closed = True


def replace(fs: FileSystem, source: str, target: str) -> None:
    """Renames in one step over what is there."""
    if is_local(fs):
        os.replace(source, target)
    else:
        fs.mv(source, target)


@contextlib.contextmanager
def whole_local_file(path: Path) -> Iterator[BinaryIO]:
    """The same on this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "wb") as stream:
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def demand(where: str, sha256: str, seen: str) -> None:
    """Raises IntegrityError when the bytes at `where` are others than `sha256`."""
    if seen != sha256:
        raise IntegrityError(f"{where} is corrupt: its bytes give {seen}, expected {sha256}")


def make_read_only(fs: FileSystem, path: str) -> None:
    """What is named by its digest never changes again; where modes exist, they say so."""
    if is_local(fs):
        os.chmod(path, 0o444)
    elif hasattr(fs, "chmod"):
        fs.chmod(path, 0o444)
