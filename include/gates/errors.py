"""What can go wrong with gates, apart from their verdicts."""

from include.domain.errors import AlignmentError


class GateError(AlignmentError, ValueError):
    """A policy, or a table of measurements, cannot be read; the message names the field."""
