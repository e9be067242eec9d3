"""What plain Great Expectations lets pass does not pass here."""

from pathlib import Path
from typing import Any

from include.data import gx_run
from include.data.expectations import Expect, Table, in_set, unique
from include.data.report import Check, ValidationOutcome, outcome_of
from include.data.validate import validate


def _outcome(table: Table, tmp_path: Path) -> ValidationOutcome:
    return validate([table], tmp_path / "docs").outcome


def test_a_table_of_no_rows_fails(tmp_path: Path) -> None:
    assert _outcome(Table("t", {"id": []}, 0, (unique("id"),)), tmp_path) is ValidationOutcome.FAILED


def test_no_table_at_all_fails(tmp_path: Path) -> None:
    assert validate([], tmp_path / "docs").outcome is ValidationOutcome.FAILED


def test_a_column_of_which_only_some_values_were_examined_fails(tmp_path: Path) -> None:
    report = validate([Table("t", {"id": [None, None, "x1"]}, 1, (in_set("id", ["x1"]),))], tmp_path / "docs")
    assert report.outcome is ValidationOutcome.FAILED
    assert "2 of 3 values unexpected" in report.text


def test_a_column_without_any_value_was_not_evaluated(tmp_path: Path) -> None:
    report = validate([Table("t", {"id": ["a"], "kind": [None]}, 1, (in_set("kind", ["x"]),))], tmp_path / "docs")
    assert "nothing evaluated: no value to look at" in report.text
    assert report.outcome is ValidationOutcome.FAILED


def test_a_column_that_is_not_there_could_not_be_checked(tmp_path: Path) -> None:
    report = validate([Table("t", {"id": ["a"]}, 1, (unique("other"),))], tmp_path / "docs")
    assert report.outcome is ValidationOutcome.COULD_NOT_CHECK
    assert 'The column "other"' in report.text


def test_a_library_that_breaks_could_not_check(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(gx_run._CLASSES, "unique", "NoSuchExpectation")
    report = validate([Table("t", {"id": ["a"]}, 1, (unique("id"),))], tmp_path / "docs")
    assert report.outcome is ValidationOutcome.COULD_NOT_CHECK
    assert "NoSuchExpectation" in report.text


def test_a_good_table_passes_and_says_how_much_was_looked_at(tmp_path: Path) -> None:
    report = validate(
        [Table("t", {"id": ["a", "b"], "n": [1, 2]}, 2, (unique("id"), Expect("between", "n", {"min_value": 1})))], tmp_path / "docs"
    )
    assert report.passed
    assert {check.evaluated for check in report.checks if check.column} == {2}
    assert report.text.startswith("validation passed: 5 of 5 expectations passed")


def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    validate([Table("first", {"id": [None]}, 1)], tmp_path / "docs")
    validate([Table("second", {"id": ["a"]}, 1)], tmp_path / "docs")
    names = {page.relative_to(tmp_path / "docs").parts[1] for page in (tmp_path / "docs").rglob("validations/*")}
    assert names == {"second"}


def test_failed_comes_before_could_not_check_and_both_before_passed() -> None:
    def check(outcome: ValidationOutcome, evaluated: int = 1) -> Check:
        return Check("t", "e", "c", outcome, evaluated, "")

    passed, failed, unknown = (check(outcome) for outcome in ValidationOutcome)
    assert outcome_of([passed, failed, unknown]) is ValidationOutcome.FAILED
    assert outcome_of([passed, unknown]) is ValidationOutcome.COULD_NOT_CHECK
    assert outcome_of([passed]) is ValidationOutcome.PASSED
    assert outcome_of([check(ValidationOutcome.PASSED, 0)]) is ValidationOutcome.FAILED
    assert outcome_of([]) is ValidationOutcome.FAILED
