"""Runs a stage program with a pause after each step, so that a test can act in the middle: python slow_steps.py MODULE …"""

import runpy
import sys
import time
from typing import Any

from include.runtime.progress import Progress

_record = Progress.record


def _slowly(self: Progress, *args: Any) -> None:
    _record(self, *args)
    time.sleep(0.5)


if __name__ == "__main__":
    Progress.record = _slowly  # type: ignore[method-assign,assignment]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
