"""How often a cluster is asked. Pure but for the jitter.

At the default interval of 60 s at most 60 looks an hour, whatever is waited for: jitter only lengthens. A cluster in
trouble, or slow to answer, is asked less often.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: The longest wait between two looks at a cluster in trouble, in seconds.
LONGEST_PAUSE_S = 600.0
#: A wait is up to this much longer, so that clusters and triggerers spread.
JITTER = 0.05
#: The pause is at least so many times as long as the look took, up to so many intervals: a slow controller is given room.
PAUSE_PER_LOOK, SLOW_INTERVALS = 4, 2
#: How often a connection may be opened anew between two whole good looks, beyond the one that each look may open.
RECONNECTS = 3
#: Looks between two questions to an accounting database that keeps failing.
LONGEST_REST = 10


@dataclass
class Pace:
    """What one loop remembers of how its looks went. Times are seconds.

    :ivar failures: looks in a row in which the queue could not be read.
    :ivar accounting_failures: times in a row that accounting was asked and did not answer.
    """

    interval_s: float = 5.0
    failures: int = 0
    accounting_failures: int = 0
    _rest: int = 0

    def note(self, queue_read: bool, accounting_read: bool | None) -> None:
        """After a look. ``accounting_read`` is None if it wasn't asked."""
        self.failures = 0 if queue_read else self.failures + 1
        if accounting_read is None:
            self._rest = max(0, self._rest - 1)
        else:
            self.accounting_failures = 0 if accounting_read else self.accounting_failures + 1
            self._rest = min(2 ** min(self.accounting_failures - 1, 10) - 1, LONGEST_REST) if self.accounting_failures else 0

    @property
    def asks_accounting(self) -> bool:
        """Whether the next look may ask accounting: after failures it rests for 0, 1, 3, 7 and then 10 looks."""
        return self._rest == 0

    @property
    def connects(self) -> int:
        """How often the connection may be opened until the next look."""
        return 1 if self.failures or self.accounting_failures else RECONNECTS

    def pause_s(self, took_s: float) -> float:
        """Seconds to the next look after one that took so long: the interval, doubled with each failure in a row."""
        pause = min(self.interval_s * 2.0 ** min(self.failures, 10), LONGEST_PAUSE_S)
        pause = max(pause, min(took_s * PAUSE_PER_LOOK, SLOW_INTERVALS * self.interval_s), self.interval_s)
        return pause * random.uniform(1.0, 1.0 + JITTER)  # noqa: S311 - spreads load, guards nothing
