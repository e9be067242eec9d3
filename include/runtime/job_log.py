"""Lines for the job's own log: both streams of a program go to its attempt's folder, this is what people see while it runs."""

import os
from contextlib import suppress

VARIABLE = "ALIGN_JOB_LOG_FD"
"""The number of the log's descriptor, left open by the bootstrap; not set where there is none (srun hands no descriptor on)."""

_taken: dict[int, int] = {}
"""process → descriptor: a number means nothing in another process."""


def take() -> None:
    """Takes the log for this process. What it starts later does not see it."""
    number = os.environ.pop(VARIABLE, "")
    if number.isdigit():
        with suppress(OSError):
            os.set_inheritable(int(number), False)
            _taken[os.getpid()] = int(number)


def say(text: str) -> None:
    """One line, if this process has such a log; a log that cannot be written stops no work."""
    if (descriptor := _taken.get(os.getpid())) is not None:
        with suppress(OSError):
            os.write(descriptor, (" ".join(text.split()) + "\n").encode())
