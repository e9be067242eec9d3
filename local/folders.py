"""Folders that are closed against change once they are whole, and opened again only to be removed or built anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def _folders(top: Path) -> Iterator[Path]:
    """The folder and all folders below it, outermost first; links are not followed."""
    yield top
    for parent, names, _ in os.walk(top):
        yield from (path for name in names if not (path := Path(parent, name)).is_symlink())


def make_read_only(top: Path) -> None:
    """No file can be added, removed or replaced any more. Files keep their mode: uv shares them with its cache."""
    for folder in sorted(_folders(top), reverse=True):
        folder.chmod(0o555)


def make_writable(top: Path) -> None:
    for folder in _folders(top):
        folder.chmod(folder.stat().st_mode | 0o700)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, read-only or not; what is not there is no error."""
    if path.is_dir() and not path.is_symlink():
        make_writable(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
