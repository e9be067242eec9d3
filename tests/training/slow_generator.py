"""The generator with trouble made on purpose, as ALIGN_TEST_GENERATOR says: ``hold ITERATION PORTION``, ``die ITERATION``, and once
in an attempt alone ``die-once ITERATION PORTION`` (killed in the middle of a portion) or ``hang-once ITERATION PORTION``.

Holding, it holds a portion back, with the weights it has, until the trainer has given the iteration up: what it then writes comes too late.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from include.training.rl import generator as ppo_generator
from include.training.rl.exchange import Exchange

_draw = ppo_generator.draw
_iteration = ppo_generator.Generator._iteration
_at = {"iteration": -1, "portion": 0}
_exchange = Exchange(Path(sys.argv[1]))


def _slow_iteration(self: ppo_generator.Generator, iteration: int) -> None:
    kind, *numbers = os.environ["ALIGN_TEST_GENERATOR"].split()
    if kind == "die" and iteration == int(numbers[0]):
        sys.exit(3)
    _at.update(iteration=iteration, portion=0)
    _iteration(self, iteration)


def _slow_draw(model: Any, encoded: Any, wanted: Any, settings: Any) -> Sequence[Any]:
    kind, *numbers = os.environ["ALIGN_TEST_GENERATOR"].split()
    if kind == "hold" and (_at["iteration"], _at["portion"]) == (int(numbers[0]), int(numbers[1])):
        while not _exchange.closed(_at["iteration"]) and not _exchange.stopped:
            time.sleep(0.02)
    if kind.endswith("-once") and (_at["iteration"], _at["portion"]) == (int(numbers[0]), int(numbers[1])) and _first_time():
        if kind == "die-once":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    _at["portion"] += 1
    return _draw(model, encoded, wanted, settings)


def _first_time() -> bool:
    mark = _exchange.folder / "troubled"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    ppo_generator.Generator._iteration = _slow_iteration  # type: ignore[method-assign]
    ppo_generator.draw = _slow_draw
    raise SystemExit(ppo_generator.main())
