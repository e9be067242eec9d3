"""A private Slurm to measure against, and what a process cost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local.slurm_cluster import PrivateSlurm

CONN_ID = "bench"
#: Counts each command by a line in a file, and runs the real one.
_COUNTED = '#!/bin/sh\necho "${0##*/}" >> "${0%/bin/*}/commands"\nPATH="${PATH#*:}"\nexec "${0##*/}" "$@"\n'


@dataclass(frozen=True)
class Usage:
    """What a process used so far. CPU in seconds, memory in MiB."""

    cpu_s: float
    peak_mib: float
    at: float

    @classmethod
    def of_this_process(cls) -> Usage:
        """Now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, time.monotonic())


class Site:
    """A running private Slurm whose login node counts the commands it is asked to run."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm = slurm
        self.folder = slurm.base / "bench"
        self.bin = self.folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel"):
            (self.bin / name).write_text(_COUNTED)
            (self.bin / name).chmod(0o755)

    def commands(self, name: str | None = None) -> int:
        """How many were run so far, of one name or all."""
        path = self.folder / "commands"
        return sum(1 for line in path.read_text().splitlines() if name in (None, line)) if path.exists() else 0

    def connection(self, kind: str = "slurm", *, counted: bool = True, **extra: object) -> str:
        """An Airflow connection to the login node, in JSON; ``counted``: whether the commands of ours are counted there."""
        values = {"private_key": self.slurm.private_key.read_text(), "host_key": self.slurm.host_key, **extra}
        if kind == "slurm" and counted:
            values["slurm_bin"] = str(self.bin)
        return json.dumps({"conn_type": kind, "host": "127.0.0.1", "port": self.slurm.ssh_port, "login": self.slurm.user, "extra": values})

    def controller_cpu_s(self) -> float:
        """CPU time of slurmctld so far, in seconds."""
        pid = self.slurm.pid("slurmctld")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def submit(self, names: Sequence[str], *options: str) -> list[str]:
        """Queue one job of a minute's sleep and more for each name, past everything that is measured; ids."""
        script = 'for n in "$@"; do sbatch --parsable --job-name="$n" --output=/dev/null OPTIONS --wrap "sleep 7200"; done'
        done = self.slurm.run("sh", "-c", script.replace("OPTIONS", " ".join(options)), "sh", *names, timeout_s=600)
        return done.stdout.split()


@contextmanager
def private_site(*, accounting: bool = True) -> Iterator[Site]:
    """A Slurm of its own in a folder that is removed afterwards."""
    base = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp"))
    slurm = PrivateSlurm(base / "c", nodes=2, gpus=0, accounting=accounting, name="bench")
    try:
        slurm.start()
        yield Site(slurm)
    finally:
        slurm.stop()
        shutil.rmtree(base, ignore_errors=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; not a number for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in lines)


def load() -> str:
    """What the machine did besides, in words: delays mean little on one that is busy."""
    return f"Load of this machine: {os.getloadavg()[1]:.1f} (average of five minutes) on {os.cpu_count()} cores."


def ratio(ours: float, theirs: float) -> str:
    """How many times theirs is ours, in words."""
    return f"{theirs / ours:.0f} ×" if ours > 0 else "–"
