"""Symbolic links where a file system has them."""

import contextlib
import os
import posixpath
import uuid

from include.stores.transfer import FileSystem, is_local, replace


def link(fs: FileSystem, target: str, path: str) -> bool:
    """Makes `path` a link to `target` in one step, over what was there; whether the file system can do that at all.

    A real folder at `path` is left alone, and counts as not possible.
    """
    if not is_local(fs) and not hasattr(fs, "symlink"):
        return False
    fs.makedirs(posixpath.dirname(path), exist_ok=True)
    temporary = f"{path}.{uuid.uuid4().hex[:12]}.tmp"
    try:
        if is_local(fs):
            os.symlink(target, temporary)
        else:
            fs.symlink(target, temporary)
        replace(fs, temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.rm_file(temporary)
        return False
    return True
