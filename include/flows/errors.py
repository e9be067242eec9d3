"""Errors of the flows: what a person reads in a red task."""

from airflow.sdk.exceptions import AirflowFailException

from include.domain.errors import AlignmentError
from include.domain.outcomes import NotDone


class FlowError(AlignmentError):
    """A step of a flow cannot go on; the message says what to do."""


class NoAnswer(FlowError, AirflowFailException):
    """Nobody answered in time. Silence is an outcome of its own, and no release."""


class RubricInDoubt(NoAnswer):
    """Annotators agree too little beyond chance: the rubric is reviewed before anybody labels by it again."""


class NoInterval(FlowError, AirflowFailException):
    """What a run was asked to look at is no span of time that is over: no retry helps."""


class ToBeReviewed(FlowError, AirflowFailException):
    """An audit has crossed a threshold: a person looks at the work, or at the rubric. No retry helps."""


class Rejected(FlowError, AirflowFailException):
    """A person said no, or a gate did. `reason`: in the named words, with what is meant."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or str(NotDone.REJECTED)


class RecipeChanged(FlowError, AirflowFailException):
    """The recipe is not the one this run began with: no retry helps."""
