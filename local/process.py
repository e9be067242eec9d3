"""Processes that outlive the command that started them, each in a session of its own, known by pid and start time.

The pid file is written by the process itself before it becomes the daemon: killing the starter half-way leaves no
daemon that nobody knows. It holds the line of /proc/PID/stat, whose start time tells a reused pid from our own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BECOME = 'cat "/proc/$$/stat" > "$0.new" && mv "$0.new" "$0" && exec "$@"'


class LocalError(RuntimeError):
    """Something on this machine does not work; the message says what to do."""


@dataclass(frozen=True)
class ProcessStat:
    """What /proc/PID/stat says of a process: state letter, parent, session, start time in clock ticks since boot."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    start_time: int

    @classmethod
    def parse(cls, line: str) -> ProcessStat:
        head, _, tail = line.rpartition(")")
        pid, _, name = head.partition(" (")
        fields = tail.split()
        return cls(int(pid), name, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))

    @classmethod
    def of(cls, pid: int) -> ProcessStat | None:
        """The living process with this pid, or None; a zombie does not live."""
        try:
            found = cls.parse(Path(f"/proc/{pid}/stat").read_text())
        except (OSError, ValueError, IndexError):
            return None
        return None if found.state in "ZX" else found

    def lives(self) -> bool:
        now = ProcessStat.of(self.pid)
        return now is not None and now.start_time == self.start_time


def all_processes() -> Iterator[ProcessStat]:
    """Every living process of this machine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := ProcessStat.of(int(entry.name))):
            yield found


def descendants(roots: Sequence[ProcessStat]) -> list[ProcessStat]:
    """The given processes and all below them, whatever session these moved to."""
    children: dict[int, list[ProcessStat]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found, waiting = [], list(roots)
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting.extend(children.get(process.pid, []))
    return found


def open_files(pid: int) -> set[str]:
    """The paths a process holds open; empty for one that is gone or another user's."""
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(link.readlink()))
    except OSError:
        return found
    return found


def send(process: ProcessStat, sig: signal.Signals) -> None:
    """Signal a process if it is still the same one."""
    if process.lives():
        try:
            os.kill(process.pid, sig)
        except ProcessLookupError:
            return


def wait_until(what: str, ready: Callable[[], bool], *, timeout_s: float, every_s: float = 0.1, hint: str = "") -> float:
    """Wait until `ready()` is true and give the seconds it took; raises LocalError with `hint` at the end."""
    begin = time.monotonic()
    while not ready():
        if time.monotonic() - begin > timeout_s:
            raise LocalError(f"{what} did not come within {timeout_s:.0f} s. {hint}".rstrip())
        time.sleep(every_s)
    return time.monotonic() - begin


class Daemons:
    """The daemons of one folder: `<run>/<name>.pid` and `<logs>/<name>.log`."""

    def __init__(self, run: Path, logs: Path) -> None:
        self.run, self.logs = run, logs

    def log_path(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _recorded(self, name: str) -> ProcessStat | None:
        try:
            return ProcessStat.parse((self.run / f"{name}.pid").read_text())
        except (OSError, ValueError, IndexError):
            return None

    def pid(self, name: str) -> int | None:
        """The pid of the daemon while it lives."""
        recorded = self._recorded(name)
        return recorded.pid if recorded and recorded.lives() else None

    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> int:
        """Start a foreground program in a session of its own, unless it runs already; gives its pid."""
        if running := self.pid(name):
            return running
        self.run.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        pid_file = self.run / f"{name}.pid"
        descriptor = os.open(self.log_path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _BECOME, str(pid_file), *argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=dict(env), cwd=cwd,
            )  # fmt: skip
        wait_until(f"the pid file of {name}", lambda: self._has_begun(name, process), timeout_s=10, every_s=0.01)
        return process.pid

    def _has_begun(self, name: str, process: subprocess.Popen[bytes]) -> bool:
        recorded = self._recorded(name)
        return (recorded is not None and recorded.pid == process.pid) or process.poll() is not None

    def members(self, name: str) -> list[ProcessStat]:
        """All living processes of the daemon's session, also after its leader's end."""
        recorded = self._recorded(name)
        if recorded is None:
            return []
        leader = ProcessStat.of(recorded.pid)
        if leader is not None and leader.start_time != recorded.start_time:
            return []  # the pid belongs to somebody else now
        return [p for p in all_processes() if p.session == recorded.pid and p.start_time >= recorded.start_time]

    def stop(self, *names: str, sig: signal.Signals = signal.SIGTERM, grace_s: float = 10.0) -> list[str]:
        """Signal the daemons' whole sessions at once, kill what is left after `grace_s`; gives the names of those that ran."""
        found = {name: self.members(name) for name in names}
        for members in found.values():
            for process in members:
                send(process, sig)
        self._await_end(names, grace_s)
        for name in names:
            for process in self.members(name):
                send(process, signal.SIGKILL)
        self._await_end(names, 5.0)
        for name in names:
            if not self.members(name):
                (self.run / f"{name}.pid").unlink(missing_ok=True)
        return [name for name in names if found[name]]

    def _await_end(self, names: Sequence[str], seconds: float) -> None:
        end = time.monotonic() + seconds
        while any(self.members(name) for name in names) and time.monotonic() < end:
            time.sleep(0.1)

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of the daemon's log, for a message."""
        try:
            return "\n".join(self.log_path(name).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
