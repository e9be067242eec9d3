"""Validation of what comes in and of what is stored, with pages that a person can read."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from include.data.expectations import SourceFacts, Table, dataset_table
from include.data.gx_run import run_expectations
from include.data.report import Check, ValidationOutcome, ValidationReport, outcome_of
from include.domain.split import SIDES
from include.transforms.datasets_io import DatasetInfo, Row, iter_rows


def validate(
    tables: Sequence[Table],
    docs: Path,
    notes: Sequence[str] = (),
    unread: Sequence[SourceFacts] = (),
    *,
    pages_if_passed: bool = True,
) -> ValidationReport:
    """Evaluates `tables`. What Great Expectations itself could not do is *could not check*, with its words.

    Args:
        docs: an earlier report there is replaced.
        unread: sources that could not be read: their rows could not be looked at, so nothing passes.
        pages_if_passed: False leaves the pages out where all passed, for a check before a fuller one.
    """
    shutil.rmtree(docs, ignore_errors=True)
    try:
        checks: tuple[Check, ...] = run_expectations(tables, docs, pages_if_passed=pages_if_passed)
    except Exception as error:  # noqa: BLE001 - the library raises of many kinds; none of them may count as passed
        checks = (Check("validation", type(error).__name__, None, ValidationOutcome.COULD_NOT_CHECK, 0, str(error)),)
    outcome = ValidationOutcome.COULD_NOT_CHECK if unread else outcome_of(checks)
    said = [f"could not read {fact.name}: {fact.error}" for fact in unread]
    return ValidationReport(outcome, docs, checks, (*said, *notes))


def stored_table(info: DatasetInfo, licences: Sequence[str], min_rows: int) -> Table:
    """A dataset folder as a table to be validated."""
    rows: list[tuple[str, Row]] = [(side, row) for side in SIDES for row in iter_rows(info.folder, side)]
    return dataset_table(info.dataset_id, rows, licences, min_rows)


def validate_dataset(info: DatasetInfo, licences: Sequence[str], docs: Path, min_rows: int = 1) -> ValidationReport:
    """Validates one dataset folder as it is stored."""
    return validate([stored_table(info, licences, min_rows)], docs)
