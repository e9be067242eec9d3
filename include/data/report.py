"""What a validation found: three outcomes, and nothing evaluated is not passed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class ValidationOutcome(StrEnum):
    """could_not_check is neither passed nor failed, and stops as failed does."""

    PASSED = "passed"
    FAILED = "failed"
    COULD_NOT_CHECK = "could_not_check"


@dataclass(frozen=True)
class Check:
    """One expectation: what it is of, how it ended, what was seen.

    evaluated: values looked at; 0 means that the expectation proved nothing.
    """

    table: str
    name: str
    column: str | None
    outcome: ValidationOutcome
    evaluated: int
    seen: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "outcome": self.outcome.value}

    @property
    def line(self) -> str:
        of = f"{self.table}.{self.column}" if self.column else self.table
        return f"{self.outcome.value}: {of}: {self.name}: {self.seen}"


@dataclass(frozen=True)
class ValidationReport:
    """docs: a folder of pages that Great Expectations wrote, with index.html. notes: what else a person should read."""

    outcome: ValidationOutcome
    docs: Path
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return self.outcome is ValidationOutcome.PASSED

    @property
    def index(self) -> Path:
        return self.docs / "index.html"

    @property
    def text(self) -> str:
        """A few lines: the outcome, then what did not pass."""
        bad = [check.line for check in self.checks if check.outcome is not ValidationOutcome.PASSED]
        head = f"validation {self.outcome.value}: {len(self.checks) - len(bad)} of {len(self.checks)} expectations passed"
        return "\n".join([head, *bad, *self.notes, f"report: {self.index}"])

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "align/validation/v1",
            "outcome": self.outcome.value,
            "checks": [check.to_json() for check in self.checks],
            "notes": list(self.notes),
        }


def outcome_of(checks: Sequence[Check]) -> ValidationOutcome:
    """failed beats could_not_check beats passed; where nothing was evaluated, nothing passed."""
    outcomes = {check.outcome for check in checks}
    if not any(check.evaluated for check in checks) and ValidationOutcome.COULD_NOT_CHECK not in outcomes:
        return ValidationOutcome.FAILED
    if ValidationOutcome.FAILED in outcomes:
        return ValidationOutcome.FAILED
    if ValidationOutcome.COULD_NOT_CHECK in outcomes:
        return ValidationOutcome.COULD_NOT_CHECK
    return ValidationOutcome.PASSED
