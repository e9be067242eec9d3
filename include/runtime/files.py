"""Writing so that a reader sees the old bytes or the new ones, never half of them."""

import json
import os
from pathlib import Path
from typing import Any

from include.runtime.errors import RuntimeFault


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Makes the bytes of `path` durable."""
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())


def write_durable(path: Path, data: bytes) -> None:
    """Writes a file and makes its bytes durable (its name only with `sync_folder`)."""
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def replace_durable(path: Path, data: bytes) -> None:
    """Replaces `path` in one step: written aside, made durable, renamed."""
    aside = path.with_name(f".{path.name}.tmp")
    write_durable(aside, data)
    os.replace(aside, path)
    sync_folder(path.parent)


def replace_quickly(path: Path, data: bytes) -> None:
    """Replaces `path` in one step without waiting for the disk: for figures that may be lost with the machine."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(data)
    os.replace(aside, path)


def json_bytes(value: Any) -> bytes:
    """JSON for people and programs to read: keys sorted, no NaN or infinity."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """The JSON in `path`; RuntimeFault naming the file when it is not there or not JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise RuntimeFault(f"{path} is not there") from error
    except (ValueError, OSError) as error:
        raise RuntimeFault(f"{path} cannot be read as JSON: {error}") from error


def sync_tree(folder: Path) -> None:
    """Makes every file and folder below `folder` durable, innermost first."""
    for path in sorted(folder.rglob("*"), key=lambda p: -len(p.parts)):
        if path.is_dir():
            sync_folder(path)
        else:
            sync_file(path)
    sync_folder(folder)
