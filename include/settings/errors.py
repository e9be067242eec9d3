"""Errors of the settings room."""

from include.domain.errors import AlignmentError


class SettingsError(AlignmentError, ValueError):
    """A configuration file is not as it must be; the message names file, field and what would have been valid."""
