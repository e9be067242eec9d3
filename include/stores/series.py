"""One metric series of a stage from the series of its attempts: pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.domain.layout import AttemptName
from include.domain.spec import Report

Row = Mapping[str, Any]


@dataclass(frozen=True)
class AttemptLog:
    """An attempt as the tracker is told of it: its report (None when it was killed without one) and its metrics, a row a step.

    placement: settings and resources of this attempt, recorded beside, never compared.
    """

    name: str
    report: Report | None
    metrics: Sequence[Row]
    placement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """How many steps were done before this attempt's own first one."""
        if self.report is not None:
            return self.report.first_step
        return min((int(row["step"]) for row in self.metrics), default=1) - 1


def merged(attempts: Sequence[AttemptLog], committed: str) -> list[Row]:
    """The rows that lead to the committed attempt, by step; what an attempt did past the step that the next one resumed
    from is left out, and so are attempts that nothing was resumed from."""
    by_name = {attempt.name: attempt for attempt in attempts}
    rows: list[Row] = []
    current, limit = by_name.get(committed), None
    while current is not None:
        mine = [row for row in current.metrics if int(row["step"]) > current.start and (limit is None or int(row["step"]) <= limit)]
        rows = mine + rows
        limit, current = current.start, _before(current, attempts)
    return rows


def _before(attempt: AttemptLog, attempts: Sequence[AttemptLog]) -> AttemptLog | None:
    """The attempt that this one resumed from: as its report says, else the newest earlier one that got as far."""
    if attempt.start <= 0:
        return None
    older = [a for a in attempts if AttemptName.parse(a.name) < AttemptName.parse(attempt.name)]
    told = (attempt.report.resumed_from or {}).get("attempt") if attempt.report is not None else None
    if told is not None:
        return next((a for a in older if a.name == told), None)
    reached = [a for a in older if any(int(row["step"]) >= attempt.start for row in a.metrics)]
    return max(reached, key=lambda a: AttemptName.parse(a.name), default=None)
