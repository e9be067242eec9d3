"""Errors of the data room."""

from typing import TYPE_CHECKING

from include.domain.errors import AlignmentError

if TYPE_CHECKING:
    from include.data.report import ValidationReport


class DataError(AlignmentError):
    """Data cannot be built; the message names the source or the dataset."""


class ValidationStopped(DataError):
    """Data did not pass; `report` says what, and where the pages for people lie."""

    def __init__(self, report: "ValidationReport") -> None:
        super().__init__(report.text)
        self.report = report
