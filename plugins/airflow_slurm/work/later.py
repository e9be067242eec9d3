"""Waits for a site that cannot answer now, which use up no retry of the task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

#: Seconds before the first and at most before any later try.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0


@dataclass(frozen=True)
class Pause:
    """One wait. ``progress``: what the next one has to know, as JSON."""

    seconds: float
    until: datetime
    progress: dict[str, Any]
    why: str

    def __str__(self) -> str:
        return f"{self.why} Again in {self.seconds:.0f} s, until {self.until:%Y-%m-%d %H:%M} UTC (no retry of the task is used up)."


def pause(progress: Mapping[str, Any], longest_s: float, error: Exception) -> Pause:
    """The next wait, twice as long as the last one.

    :param progress: of the wait before; empty for the first. :param longest_s: of all waits together; after that ``error`` is raised.
    """
    first_at = float(progress.get("first_at") or time.time())
    tries = int(progress.get("tries", 0)) + 1
    if time.time() - first_at >= longest_s:
        raise error
    seconds = min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 10), LONGEST_PAUSE_S)
    known = {**progress, "first_at": first_at, "tries": tries}
    return Pause(seconds, datetime.fromtimestamp(first_at + longest_s, UTC), known, str(error))
