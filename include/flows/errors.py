"""Errors of the flows: what a person reads in a red task."""

from include.domain.errors import AlignmentError


class FlowError(AlignmentError):
    """A step of a flow cannot go on; the message says what to do."""


class NoAnswer(FlowError):
    """Nobody answered in time. Silence is an outcome of its own, and no release."""


class Rejected(FlowError):
    """A person said no, or a gate did."""
