"""Lines for the job's own log: both streams of a program go to its attempt's folder, this is what people see while it runs."""

import os
from contextlib import suppress

VARIABLE = "ALIGN_JOB_LOG_FD"
"""The number of the log's descriptor, left open by the bootstrap; not set where there is none (srun hands no descriptor on)."""
FILE_VARIABLE = "ALIGN_JOB_LOG_FILE"
"""The log's path, for the first of several ranks: srun starts it on the host that writes the log."""

_taken: dict[int, int] = {}
"""process → descriptor: a number means nothing in another process."""


def take() -> None:
    """Takes the log for this process. What it starts later does not see it."""
    number, path = os.environ.pop(VARIABLE, ""), os.environ.pop(FILE_VARIABLE, "")
    with suppress(OSError):
        if number.isdigit():
            os.set_inheritable(int(number), False)
            _taken[os.getpid()] = int(number)
        elif path:  # never made anew: where it is not, this host does not have it
            _taken[os.getpid()] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def say(text: str) -> None:
    """One line, if this process has such a log; a log that cannot be written stops no work."""
    if (descriptor := _taken.get(os.getpid())) is not None:
        with suppress(OSError):
            os.write(descriptor, (" ".join(text.split()) + "\n").encode())
