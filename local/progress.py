"""What the person at the terminal sees: one line a step, with the seconds since the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import STDOUT, Popen, TimeoutExpired

from local.process import LocalError

_BEGIN = time.monotonic()
_STILL_AFTER_S = 20.0


def say(text: str) -> None:
    """One line, such as `[ 12.3 s] MLflow answers`."""
    print(f"[{time.monotonic() - _BEGIN:6.1f} s] {text}", flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say what begins and, when it took noticeable time, what it took."""
    say(f"{text} …")
    begin = time.monotonic()
    yield
    if (took := time.monotonic() - begin) >= 1.0:
        say(f"{text}: {took:.1f} s")


def run_logged(argv: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path, advice: str) -> None:
    """Run a program with its output in `log`; while it lasts say so, and if it fails quote its last lines.

    Raises:
        LocalError: it failed; the message ends with `advice`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as stream:
        process = Popen(argv, stdout=stream, stderr=STDOUT, env=dict(env), cwd=cwd)
        code = _follow(process, Path(argv[0]).name, log)
    if code:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LocalError(f"{Path(argv[0]).name} ended with {code}. Its last words, from {log}:\n{last}\n{advice}")


def _follow(process: Popen[bytes], name: str, log: Path) -> int:
    try:
        while True:
            try:
                return process.wait(timeout=_STILL_AFTER_S)
            except TimeoutExpired:
                lines = log.read_text(errors="replace").splitlines()
                say(f"  {name} is still at it: {lines[-1].strip()[:100] if lines else ''}")
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        sys.exit(130)
