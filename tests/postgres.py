"""A private PostgreSQL server for tests, reached through a Unix socket."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

_INITDB = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def _fast_folder() -> str:
    """Memory where there is enough of it: the server's thousands of small files cost a busy disk minutes."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 1 << 30 else "/tmp"


@contextmanager
def server(max_connections: int = 100) -> Iterator[sa.URL]:
    """A server below a temporary folder, stopped at the end."""
    if not _INITDB:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    # PostgreSQL refuses to run as root, so root lends it the account that the package made. `runuser` changes the account, not
    # subprocess: that would copy the page tables of the whole test process, for which a small machine has no memory at the end.
    user = "postgres" if os.getuid() == 0 else None
    as_user = ["runuser", "-u", user, "--"] if user else []
    folder = Path(tempfile.mkdtemp(prefix="pg", dir=_fast_folder()))
    if user:
        shutil.chown(folder, user)
    data = folder / "data"

    def run(program: str, *options: str) -> None:
        argv = [*as_user, str(_INITDB[-1].parent / program), "-D", str(data), *options]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd="/tmp")

    run("initdb", "-A", "trust", "-N", "--no-instructions")
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c max_connections={max_connections}"
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield sa.URL.create("postgresql+psycopg", username=user or getpass.getuser(), database="postgres", query={"host": str(folder)})
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder)
