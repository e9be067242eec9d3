"""What may go wrong in a job, below the one base of all errors."""

from include.domain.errors import AlignmentError, IntegrityError


class RuntimeFault(AlignmentError):
    """Base of the errors of a job's surroundings: inputs, checkpoints, signals, guards."""


class InputError(RuntimeFault, IntegrityError):
    """An input is not what its digest says; the message names the input and the file."""


class CheckpointError(RuntimeFault, IntegrityError):
    """Checkpoints are there but cannot be used; the message names each one and why."""


class ProgressError(RuntimeFault):
    """A program ended without having done what it was asked for."""


class Interrupted(RuntimeFault):
    """A signal asked the program to stop; it has saved what it had."""


class Superseded(RuntimeFault):
    """A newer attempt of the same key is there: this one stops, to save time."""


class RankDone(RuntimeFault):
    """This rank has done its part of the work; the first rank finishes alone."""


class GuardTripped(RuntimeFault):
    """A named guard stopped the run; the last good checkpoint stays."""

    def __init__(self, guard: str, message: str) -> None:
        super().__init__(f"{guard}: {message}")
        self.guard = guard
