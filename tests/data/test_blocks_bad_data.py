"""Validation stops bad data: red, with a report a person can read, and nothing stored."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from include.data.build import BuildResult
from include.data.errors import ValidationStopped
from include.data.report import ValidationOutcome

from .conftest import demonstrations, jsonl

Build = Callable[..., BuildResult]


def _stopped(build: Build, data: bytes) -> ValidationStopped:
    with pytest.raises(ValidationStopped) as caught:
        build(data)
    return caught.value


def test_an_empty_file_stops(build: Build, tmp_path: Path) -> None:
    stopped = _stopped(build, b"")
    assert stopped.report.outcome is ValidationOutcome.FAILED
    assert "0 rows, at least 1 expected" in str(stopped)
    assert not (tmp_path / "out-rows" / "datasets").exists()


def test_a_column_of_nulls_stops(build: Build) -> None:
    stopped = _stopped(build, jsonl([{**row, "exampleId": None} for row in demonstrations(20)]))
    assert stopped.report.outcome is ValidationOutcome.FAILED
    assert "expect_column_values_to_not_be_null: 20 of 20 values unexpected" in str(stopped)


@pytest.mark.parametrize("column", ["prompt", "response"])
def test_a_column_of_nulls_that_a_row_cannot_be_without_stops(build: Build, column: str, tmp_path: Path) -> None:
    stopped = _stopped(build, jsonl([{**row, column: None} for row in demonstrations(20)]))
    assert stopped.report.outcome is ValidationOutcome.FAILED
    assert "sources.quarantined_share" in str(stopped)
    lines = (tmp_path / "out-rows" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in lines] == list(range(1, 21))
    assert f"{column}: expected a text or a list of turns, got null" in json.loads(lines[0])["reason"]


def test_a_few_nulls_among_ids_stop_too(build: Build) -> None:
    rows = demonstrations(20)
    rows[3]["exampleId"] = None
    assert "1 of 20 values unexpected" in str(_stopped(build, jsonl(rows)))


def test_a_duplicated_id_stops_and_is_named(build: Build) -> None:
    rows = demonstrations(20)
    rows[7]["exampleId"] = "e2"
    stopped = _stopped(build, jsonl(rows))
    assert stopped.report.outcome is ValidationOutcome.FAILED
    assert "expect_column_values_to_be_unique: 2 of 20 values unexpected: e2" in str(stopped)


def test_a_latin_1_file_stops_as_could_not_check(build: Build) -> None:
    rows = demonstrations(5)
    rows[3]["response"] = "Because of the café."
    stopped = _stopped(build, jsonl(rows).decode().encode("latin-1"))
    assert stopped.report.outcome is ValidationOutcome.COULD_NOT_CHECK
    assert "rows.jsonl is not UTF-8: byte 0xe9 at offset" in str(stopped)
    assert "(line 4)" in str(stopped)


def test_an_array_where_lines_are_expected_stops(build: Build) -> None:
    stopped = _stopped(build, json.dumps(demonstrations(5), indent=1).encode())
    assert stopped.report.outcome is ValidationOutcome.COULD_NOT_CHECK
    assert "line 1: a JSON array where one object a line is expected" in str(stopped)


def test_too_many_rows_set_aside_stop(build: Build) -> None:
    data = jsonl(demonstrations(95)) + b'{"prompt":"x",}\n' * 5
    assert "quarantined_share" in str(_stopped(build, data))


def test_a_licence_outside_the_allow_list_stops(build: Build) -> None:
    rows = demonstrations(20)
    rows[4]["licence"] = "CC-BY-NC-4.0"
    assert "demonstrations as read.licence: expect_column_values_to_be_in_set: 1 of 20 values unexpected: CC-BY-NC-4.0" in str(
        _stopped(build, jsonl(rows))
    )


def test_fewer_rows_than_the_floor_stop(build: Build) -> None:
    with pytest.raises(ValidationStopped, match="20 rows, at least 21 expected"):
        build(jsonl(demonstrations(20)), min_rows={"demonstrations": 21})


def test_a_dataset_of_which_nothing_is_left_stops(build: Build) -> None:
    with pytest.raises(ValidationStopped, match="0 rows, at least 1 expected"):
        build(jsonl([{"exampleId": "a", "prompt": "Hi", "response": "<|im_end|>"}]))


def test_the_report_is_pages_with_the_failed_expectation(build: Build) -> None:
    rows = demonstrations(20)
    rows[7]["exampleId"] = "e2"
    report = _stopped(build, jsonl(rows)).report
    assert report.index.is_file()
    pages = [page.read_text("utf-8") for page in report.docs.rglob("validations/**/*.html")]
    assert any("values must be unique" in page and "Failed" in page for page in pages)
    assert json.loads((report.docs.parent / "validation.json").read_text())["outcome"] == "failed"
