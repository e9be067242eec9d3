"""Errors of the training programs."""

from include.domain.errors import AlignmentError


class TrainingError(AlignmentError):
    """A training program cannot do what its specification asks for; the message names the row, setting or file."""
