"""Starts :mod:`.watchers` in a process of its own, so that memory and CPU are its alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any


class Watcher:
    """One watching process. :param folder: for its files; made here. :param spec: what it has to know, JSON."""

    def __init__(self, kind: str, folder: Path, spec: Mapping[str, Any], connections: Mapping[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "watcher.log"
        (folder / "spec.json").write_text(json.dumps(spec))
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.slurm.watchers", kind, str(folder / "spec.json")],
                env={**os.environ, **connections, "AIRFLOW_HOME": str(folder / "airflow")},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        # Read as it comes: a full pipe would stop the process that is measured.
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def ready(self) -> None:
        """Wait until it watches.

        :raises SystemExit: if it ended instead.
        """
        if not any(line.get("ready") for line in self._lines()):
            raise SystemExit(f"The watching process ended:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> tuple[dict[str, Any], dict[str, float]]:
        """What it used, and when it saw which job end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        lines = list(self._lines())
        self._process.wait()
        return next(line for line in lines if "cpu_s" in line), {line["job"]: line["at"] for line in lines if "job" in line}

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _lines(self) -> Iterator[dict[str, Any]]:
        while (line := self._answers.get()) is not None:
            if line.startswith("{"):
                yield json.loads(line)
