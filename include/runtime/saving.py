"""Saving while the work goes on: tensors are copied at once, a thread writes them; at most one save is under way."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from include.runtime.checkpoint import CheckpointStore, Snapshot
from include.runtime.ranks import ALONE, Ranks

STALL_SHARE = 0.02
STALL_WORTH_SAYING_S = 5.0
"""A run that stood still for less is too short for a share to say anything."""


@dataclass
class SaveCost:
    """saves: whole ones. seconds: spent writing them, wherever. stall_s: for which the work stood still; last_s: for which the end waited for
    the last one, after which no work followed. longest_s and size_bytes: of the longest and the largest save."""

    saves: int = 0
    seconds: float = 0.0
    stall_s: float = 0.0
    last_s: float = 0.0
    longest_s: float = 0.0
    size_bytes: int = 0

    def share(self, train_seconds: float) -> float:
        """Of the time of the work, what it stood still for saves."""
        whole = train_seconds + self.stall_s
        return self.stall_s / whole if whole > 0 else 0.0

    def warning(self, train_seconds: float) -> str | None:
        """Where the work stood still for too long."""
        share = self.share(train_seconds)
        if share <= STALL_SHARE or self.stall_s < STALL_WORTH_SAYING_S:
            return None
        return (
            f"checkpoints: the work stood still for {self.stall_s:.1f} s, {share:.1%} of its time, and {STALL_SHARE:.0%} is usual: "
            "save_every_steps and save_every_minutes make them rarer, save_in_background writes them behind the work"
        )

    def to_json(self, train_seconds: float) -> dict[str, float]:
        return {
            "saves": float(self.saves),
            "seconds": round(self.seconds, 4),
            "stall_s": round(self.stall_s, 4),
            "last_s": round(self.last_s, 4),
            "longest_s": round(self.longest_s, 4),
            "stall_share": round(self.share(train_seconds), 5),
            "size_bytes": float(self.size_bytes),
        }


class Saver:
    """Writes checkpoints into a store, in the caller's thread or behind its back. Every rank has one, and saves when the others do.

    Args:
        whole: told the step of each checkpoint that is whole, always in the caller's thread.
    """

    def __init__(self, store: CheckpointStore, whole: Callable[[int], None], ranks: Ranks = ALONE) -> None:
        self.store = store
        self._ranks = ranks
        self._apart: Ranks | None = None
        self.cost = SaveCost()
        self._whole = whole
        self._thread: threading.Thread | None = None
        self._step = 0
        self._error: BaseException | None = None

    def save(self, step: int, snapshot: Snapshot, random: Mapping[str, Any], *, keep: bool, background: bool) -> None:
        """Writes one; a save that is still under way is waited for first (back-pressure)."""
        self.settle()
        self._step = step
        self._apart = self._apart or self._ranks.apart()
        if background:
            copied = snapshot.of_rank(self._ranks.rank).copied()
            self._thread = threading.Thread(target=self._write, args=(step, copied, random, keep), name=f"save-{step}")
            self._thread.start()
        else:
            self._write(step, snapshot, random, keep)
            self._finish()

    def poll(self) -> None:
        """Takes note of a save that has ended meanwhile; raises what it raised."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread.join()
            self._thread = None
            self._finish()

    def settle(self) -> None:
        """Waits for a save under way; raises what it raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._finish()

    def _write(self, step: int, snapshot: Snapshot, random: Mapping[str, Any], keep: bool) -> None:
        started = time.monotonic()
        try:
            written = self.store.save(step, snapshot, random, keep=keep, ranks=self._apart or self._ranks)
            if self._ranks.main:
                self.cost.size_bytes = max(self.cost.size_bytes, sum(path.stat().st_size for path in written.iterdir()))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller's thread must raise it
            self._error = error
        took = time.monotonic() - started
        self.cost.seconds += took
        self.cost.longest_s = max(self.cost.longest_s, took)

    def _finish(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.cost.saves += 1
        self._whole(self._step)
