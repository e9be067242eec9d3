"""USR1 and TERM become a flag: the program finishes its step, saves, and says that it was interrupted.

The bootstrap blocks both signals before it hands over, so that one that comes while torch is still being imported waits
instead of killing the process; installing the handlers lets it through.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


@contextmanager
def kept_from_children(*numbers: signal.Signals) -> Iterator[None]:
    """Processes started inside begin with these signals blocked, and keep them so over exec; one that comes meanwhile waits.

    Slurm signals every process of a step. What a program ends itself, once it has saved, must not end before it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopFlag:
    """Raised by a signal, read between steps."""

    def __init__(self) -> None:
        self.received: str | None = None

    def __bool__(self) -> bool:
        return self.received is not None

    def install(self) -> None:
        """Handles USR1 and TERM, and lets through one that already waits."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
