"""Lines for the job's own log: both streams of a program go to its attempt's folder, this is what people see while it runs."""

import os
from contextlib import suppress

VARIABLE = "ALIGN_JOB_LOG_FD"
"""The number of the log's descriptor, left open by the bootstrap; not set where there is none (srun hands no descriptor on)."""


def say(text: str) -> None:
    """One line, if there is such a log; a log that cannot be written stops no work."""
    number = os.environ.get(VARIABLE, "")
    if number.isdigit():
        with suppress(OSError):
            os.write(int(number), (" ".join(text.split()) + "\n").encode())
