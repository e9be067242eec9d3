"""Runs a stage program and kills it (SIGKILL, nothing can be tidied up) at a named moment, which it leaves in the file `died`.

    python kill_at.py MODULE MOMENT NUMBER …the program's own arguments

Moments: ``update`` (after the NUMBER-th update, before it is recorded), ``recorded`` (before anything is saved),
``half-saved`` (after the first file of tensors; ``half-saved-state``: of state), ``before-rename``, ``after-rename`` (before older ones are removed), each in the
NUMBER-th save; ``generating`` (in the middle of the NUMBER-th batch of answers); ``reference`` (before the NUMBER-th part of DPO's reference
log-probabilities is kept); ``backward`` (in the NUMBER-th update, when the first micro-batch's gradients lie there and the second one's are
about to be added); ``between-steps`` (in PPO's NUMBER-th update, when the actor has made its step and the critic is about to);
``export`` (before an output's manifest).
"""

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from include.runtime import checkpoint, generation, pieces, progress
from include.runtime.outputs import Outputs

DIED = "died"


def die() -> None:
    """At once, and says so. Outside of saves, when those that were begun are whole: where the next attempt starts is not left to the machine's pace."""
    if not _saves(threading.current_thread()):
        for thread in filter(_saves, threading.enumerate()):
            thread.join(60)
    Path(sys.argv[-1], DIED).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def _saves(thread: threading.Thread) -> bool:
    """Whether it is one of `include.runtime.saving`."""
    return thread.name.startswith("save-")


def die_at(owner: Any, name: str, number: int, *, after: bool = False) -> None:
    """Kills this process when `owner.name` is called for the NUMBER-th time."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < number:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        die()
        return None

    setattr(owner, name, counted)


def die_generating(number: int) -> None:
    """Kills this process at the fifth token of the NUMBER-th batch of answers."""
    begin: Callable[..., Any] = generation._prefill
    batches = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == number:
            die_at(generation, "choose", 5)
        return begin(*args, **kwargs)

    generation._prefill = counted


def _in_update(number: int, arm: Callable[[], None]) -> None:
    """Calls `arm` when the update before the NUMBER-th has been recorded."""
    record: Callable[..., Any] = progress.Progress.record
    recorded = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal recorded
        result = record(*args, **kwargs)
        recorded += 1
        if recorded == number - 1:
            arm()
        return result

    progress.Progress.record = counted  # type: ignore[method-assign]


def die_learning(engine: type[Any], moment: str, number: int) -> None:
    """Kills this process within an update. Micro-batches are counted by engine, and from its last step: it does not die between updates."""
    backward, step = engine.backward, engine.step
    waiting: dict[int, int] = {}

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        waiting[id(self)] = waiting.get(id(self), 0) + 1
        if waiting[id(self)] == 2:
            die()
        return backward(self, *args, **kwargs)

    def settled(self: Any, *args: Any, **kwargs: Any) -> Any:
        waiting.pop(id(self), None)
        return step(self, *args, **kwargs)

    def arm() -> None:
        if moment == "between-steps":
            die_at(engine, "step", 2)
        else:
            engine.backward, engine.step = counted, settled

    _in_update(number, arm)


class RenamesOnly:
    """`os`, as the checkpoint module sees it: its renames can be counted apart from everybody else's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def main() -> None:
    module, moment, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    checkpoint.os = RenamesOnly()  # type: ignore[assignment]
    moments: dict[str, tuple[Any, str, bool]] = {
        "update": (progress.Progress, "record", False),
        "recorded": (progress.Progress, "record", True),
        "half-saved": (pieces, "sync_file", True),
        "half-saved-state": (checkpoint, "write_durable", True),
        "before-rename": (checkpoint.os, "rename", False),
        "after-rename": (checkpoint.os, "rename", True),
        "export": (Outputs, "close", False),
    }
    if moment == "generating":
        die_generating(number)
    elif moment in ("backward", "between-steps"):
        from include.training.engines.deepspeed import DeepSpeedEngine

        die_learning(DeepSpeedEngine, moment, number)
    elif moment == "reference":
        from include.training.pairs.reference_cache import ReferenceCache

        die_at(ReferenceCache, "_put", number)
    else:
        owner, name, after = moments[moment]
        die_at(owner, name, number, after=after)
    sys.argv = [module, *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
