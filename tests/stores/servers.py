"""Servers for tests: each on a free port, ended by the fixture that started it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from include.stores.sftp import SftpTarget

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 300.0) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended at once: {log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the server did not listen within {timeout_s:.0f} s: {log.read_text()[-2000:]}")


@contextlib.contextmanager
def running(argv: list[str], port: int, log: Path, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a session of its own, from its first connection to the end of the block."""
    with open(log, "wb") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=stream, start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        wait_for_port(port, process, log)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(10)


def make_key(path: Path) -> str:
    """A new ed25519 key pair; gives the public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


class SshServer:
    """A private sshd that serves SFTP; `restart` breaks every connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.host_key = make_key(folder / "host")
        (folder / "authorized").write_text(make_key(folder / "user") + "\n")
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")
        lines = (
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/authorized",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no", "StrictModes no", "PermitRootLogin yes",
            f"PidFile {folder}/pid", "Subsystem sftp internal-sftp",
        )  # fmt: skip
        (folder / "config").write_text("\n".join(lines) + "\n")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)

    @contextlib.contextmanager
    def run(self) -> Iterator[subprocess.Popen[bytes]]:
        with running([str(SSHD), "-D", "-e", "-f", str(self.folder / "config")], self.port, self.folder / "log") as process:
            yield process

    def target(self, **changes: object) -> SftpTarget:
        options: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "username": getpass.getuser(),
            "client_keys": (str(self.folder / "user"),),
            "known_hosts": str(self.folder / "known_hosts"),
        }
        return SftpTarget(**(options | changes))  # type: ignore[arg-type]


def mlflow_argv(port: int, folder: Path) -> list[str]:
    store = f"sqlite:///{folder}/mlflow.db"
    return [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
