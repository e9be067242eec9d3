"""Errors of the stages room."""

from include.domain.errors import AlignmentError


class StageError(AlignmentError):
    """A stage cannot be planned, or its report cannot be taken as a success."""


class NotComplete(StageError):
    """The program's report or outputs are not (yet) all there."""


class Interrupted(StageError):
    """The program saved and asks to be started again from its last checkpoint."""


class RunFailed(StageError):
    """The program says that it failed; its own words stand in the message."""
