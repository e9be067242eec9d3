"""Errors of reading, normalising and storing rows."""

from include.domain.errors import AlignmentError


class TransformError(AlignmentError):
    """A transform cannot go on; the message names the file or the row."""


class DatasetError(TransformError):
    """A dataset folder breaks its contract."""


class SourceError(TransformError):
    """A source cannot be read; the message names the file and, where there is one, the line or offset."""
