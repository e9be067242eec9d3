"""The service as it really runs: a process of its own, started by its command, with its files in one folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

PROJECT = Path(__file__).parents[2]
_START_S = 60.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Server:
    """A folder with accounts; `start` and `kill` as often as wanted."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PROJECT),
            "ANNOTATION_DB": str(self.folder / "annotation.sqlite"),
            "ANNOTATION_TOKENS_FILE": str(self.folder / "tokens.json"),
            "ANNOTATION_PSEUDONYM_KEY_FILE": str(self.folder / "key"),
            "ANNOTATION_PORT": str(self.port),
        }

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "include.annotation", *arguments]
        return subprocess.run(program, env=self.environment, capture_output=True, text=True, check=False, timeout=_START_S)

    def add(self, name: str, role: str, *more: str) -> str:
        done = self.command("add-account", name, "--role", role, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self) -> Server:
        log = open(self.folder / "server.log", "ab")  # noqa: SIM115  the process keeps it
        self.process = subprocess.Popen([sys.executable, "-m", "include.annotation"], env=self.environment, stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/healthz", trust_env=False).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError((self.folder / "server.log").read_text("utf-8"))

    def kill(self, how: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(timeout=20)
