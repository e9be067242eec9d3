"""The finite list of named reasons for what did, and did not, happen."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a stage program ended, in report.json. No report means not finished, whatever Slurm says."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class StopReason(StrEnum):
    """Why a program stopped."""

    LAST_STEP = "last_step"
    EARLY_STOP = "early_stop"
    SIGNAL = "signal"
    SUPERSEDED = "superseded"
    GUARD = "guard"
    ERROR = "error"


class NotDone(StrEnum):
    """Why something did not happen; shown as it is written here."""

    NO_NEW_INPUT = "no new input"
    ALREADY_RELEASED = "already released"
    ALREADY_REJECTED = "already rejected"
    NO_CHAMPION = "no champion"
    NOT_EVALUABLE = "not evaluable"
    NOT_EVALUATED = "not evaluated"
    NO_IMPROVEMENT = "no improvement"
    OTHER_ENVIRONMENT = "other environment"
    REJECTED = "rejected"
    NO_ANSWER = "no answer"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """A gate's verdict. Only `pass` lets through, or a `not_evaluated` that the recipe waives with a reason."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_EVALUATED = "not_evaluated"


INTERRUPTED_EXIT_CODE = 75
"""EX_TEMPFAIL: the program saved and asks to be started again."""
