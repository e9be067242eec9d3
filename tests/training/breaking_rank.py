"""Runs a stage program whose files take long to become durable, and in which one rank breaks after a step, while its save is still under way:

python breaking_rank.py MODULE STEP …the program's own arguments; the rank that breaks is the one that runs this.
"""

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from include.runtime import pieces
from include.runtime.progress import Progress

SAVING_S = 1.0


def _breaks(record: Callable[..., None], at: int) -> Callable[..., None]:
    def told(self: Progress, step: int, *args: Any) -> None:
        record(self, step, *args)
        if step == at:
            raise RuntimeError("this rank breaks")

    return told


def _slowly(sync: Callable[[Path], None]) -> Callable[[Path], None]:
    def later(path: Path) -> None:
        time.sleep(SAVING_S)
        sync(path)

    return later


if __name__ == "__main__":
    pieces.sync_file = _slowly(pieces.sync_file)
    Progress.record = _breaks(Progress.record, int(sys.argv[2]))  # type: ignore[method-assign]
    sys.argv = [sys.argv[1], *sys.argv[3:]]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
