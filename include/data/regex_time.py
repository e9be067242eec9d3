"""How long a recipe's regular expression takes, tried row by row in a process of its own: nothing else ends a search that goes on for ever.

It is Python's `re` that is tried, as pandas 3.1 searches with it wherever RE2 cannot, which may depend on a single row.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from include.data.errors import DataError

ROW_S = 10.0
WHOLE_S = 600.0
_START_S = 60.0
_WORKER = """
import json, os, re, sys
given = json.load(sys.stdin)
search = re.compile(given["regex"]).search
os.write(1, b".")
for text in given["texts"]:
    search(text)
    os.write(1, b".")
"""
"""Tells by a byte that it has begun, and by one more that a row is done."""


@dataclass(frozen=True)
class StoodAt:
    """Where a search was ended: in which row, by its place, and after how long."""

    row: int
    seconds: float


def stands_still(regex: str, texts: Sequence[str]) -> StoodAt | None:
    """The row that `regex` took longer than `ROW_S` for, or was at when all rows together took longer than `WHOLE_S`; None where none did.

    Raises:
        DataError: it could not be tried, with the process's own words.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(json.dumps({"regex": regex, "texts": list(texts)}).encode())
        given.seek(0)
        worker = subprocess.Popen([sys.executable, "-I", "-c", _WORKER], stdin=given, stdout=subprocess.PIPE, stderr=said)
        assert worker.stdout is not None, "asked for"
        try:
            return _watched(worker.stdout, len(texts), said)
        finally:
            worker.kill()
            worker.stdout.close()
            worker.wait()


def _watched(told: IO[bytes], rows: int, said: IO[bytes]) -> StoodAt | None:
    if not (begun := _more(told, _START_S, said)):
        raise DataError(f"a process to try a regular expression in did not begin within {_START_S:g} s")
    done, ends = begun - 1, time.monotonic() + WHOLE_S
    while done < rows:
        if (left := ends - time.monotonic()) <= 0:
            return StoodAt(done, WHOLE_S)
        more = _more(told, min(ROW_S, left), said)
        if not more and left > ROW_S:
            return StoodAt(done, ROW_S)
        done += more
    return None


def _more(told: IO[bytes], wait_s: float, said: IO[bytes]) -> int:
    """How many bytes came; 0 where none did for so long."""
    if not select.select([told], [], [], wait_s)[0]:
        return 0
    if came := len(os.read(told.fileno(), 1 << 16)):
        return came
    said.seek(0)
    raise DataError(f"the process that tried a regular expression ended: {said.read().decode(errors='replace')[-500:]}")
