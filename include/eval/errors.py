"""What can go wrong in an evaluation."""

from include.domain.errors import AlignmentError


class EvaluationError(AlignmentError, ValueError):
    """An evaluation is not consistent with itself, or a model cannot be measured; the message names what and where."""
