"""Free ports, chosen once and remembered, so that a service comes back where it was."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterable
from pathlib import Path

# Below the kernel's ephemeral range (32768 and up), so that no outgoing connection takes a chosen port while its service
# is down, and below 20000, where jobs of two nodes find their rendezvous ports.
FIRST_PORT, LAST_PORT = 10240, 19999


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nobody listens on the port. A connection still in TIME_WAIT does not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a connection to the port is accepted."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def free_port(taken: Iterable[int] = ()) -> int:
    """A port nobody listens on and that is not in `taken`."""
    refused = set(taken)
    for _ in range(1000):
        port = random.randint(FIRST_PORT, LAST_PORT)  # noqa: S311 - not a secret
        # Slurm's daemons listen on every address, so the port has to be free on every address.
        if port not in refused and is_free(port) and is_free(port, "0.0.0.0"):  # noqa: S104 - a probe, nothing is served
            return port
    raise RuntimeError(f"found no free port between {FIRST_PORT} and {LAST_PORT}: is something listening on all of them?")


class Ports:
    """Named ports in a JSON file. `pick(name)` gives the remembered port, or chooses and remembers one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ports: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}

    def pick(self, name: str, *, ours: bool = False) -> int:
        """The port of `name`. `ours`: the service runs already, so that its port is rightly in use."""
        port = self._ports.get(name)
        if port is None or not (ours or is_free(port, "0.0.0.0")):  # noqa: S104 - a probe, nothing is served
            port = free_port(self._ports.values())
            self._ports[name] = port
            write_atomically(self._path, json.dumps(self._ports, indent=1, sort_keys=True))
        return port


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a small file so that a reader, or a kill half-way, sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=mode)
    temporary.write_text(text)
    temporary.rename(path)
