"""Expectations that a recipe names: taken or refused when it is read, and blocking like the built-in ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from include.data import regex_time
from include.data.build import build_datasets
from include.data.errors import DataError, ValidationStopped
from include.data.own_expectations import _COLUMNS, own_expectations
from include.data.report import ValidationOutcome
from include.settings.expectations import COLUMNS, COMPOUND, KINDS, Expectation

from .conftest import demonstrations, jsonl, plan_of_files, source_plan


def _expected(expect: str, column: str | None = "response", **arguments: Any) -> dict[str, Any]:
    return {"dataset": "demonstrations", "expect": expect, "column": column, "arguments": arguments}


def _build(tmp_path: Path, *expected: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> Any:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(rows or demonstrations(40)))
    given = own_expectations(Expectation(**item) for item in expected)
    return build_datasets(plan_of_files(source_plan(path), expected=given), tmp_path / "out")


def _stopped(tmp_path: Path, *expected: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> ValidationStopped:
    with pytest.raises(ValidationStopped) as stopped:
        _build(tmp_path, *expected, rows=rows)
    return stopped.value


def test_what_is_met_passes_and_stands_in_the_report_and_on_the_pages(tmp_path: Path) -> None:
    result = _build(
        tmp_path,
        _expected("expect_column_value_lengths_to_be_between", min_value=5, max_value=400),
        _expected("expect_column_mean_to_be_between", "response_characters", min_value=10, max_value=40),
        _expected("expect_column_values_to_match_regex", regex="^Because"),
        _expected("expect_column_distinct_values_to_be_in_set", "language", value_set=["en", "de"]),
        {"dataset": "demonstrations", "expect": COMPOUND, "columns": ["prompt", "response"]},
    )
    own = [check for check in result.validation.checks if check.table == "demonstrations, expected by the recipe"]
    named = ["expect_column_value_lengths_to_be_between", "expect_column_mean_to_be_between", "expect_column_values_to_match_regex"]
    named += ["expect_column_distinct_values_to_be_in_set", COMPOUND]
    assert {check.name: check.evaluated for check in own if check.column} == dict.fromkeys(named, 40)
    assert {check.outcome for check in own} == {ValidationOutcome.PASSED}
    pages = "".join(page.read_text("utf-8") for page in (tmp_path / "out" / "validation").rglob("*.html"))
    assert "demonstrations, expected by the recipe" in pages
    plain = _build(tmp_path)
    assert plain.datasets["demonstrations"].content_hash == result.datasets["demonstrations"].content_hash


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (_expected("expect_column_value_lengths_to_be_between", max_value=5), "40 of 40 values unexpected"),
        (_expected("expect_column_mean_to_be_between", "response_characters", min_value=1000), "observed 2"),
        (_expected("expect_column_values_to_be_in_set", "language", value_set=["de"]), "unexpected: en"),
        (_expected("expect_column_distinct_values_to_contain_set", "topic", value_set=["law"]), "values such as ['other']"),
    ],
)
def test_what_is_not_met_stops_the_build_and_says_what_was_seen(tmp_path: Path, expected: dict[str, Any], said: str) -> None:
    stopped = _stopped(tmp_path, {**expected, "why": "agreed with the annotators"})
    assert stopped.report.outcome is ValidationOutcome.FAILED
    assert said in stopped.report.text
    assert "agreed with the annotators" in stopped.report.text
    assert stopped.report.index.is_file()
    written = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert written["outcome"] == "failed"


def test_one_that_raises_is_no_pass(tmp_path: Path) -> None:
    stopped = _stopped(tmp_path, _expected("expect_column_mean_to_be_between", "language", min_value=0))
    assert stopped.report.outcome is ValidationOutcome.COULD_NOT_CHECK
    assert "could_not_check: demonstrations, expected by the recipe.language" in stopped.report.text


def test_a_column_that_the_rows_have_not_could_not_be_checked(tmp_path: Path) -> None:
    stopped = _stopped(tmp_path, _expected("expect_column_values_to_be_unique", "chosen"))
    assert stopped.report.outcome is ValidationOutcome.COULD_NOT_CHECK
    assert 'The column "chosen"' in stopped.report.text


@pytest.mark.parametrize("kind", ["expect_column_values_to_be_unique", "expect_column_unique_value_count_to_be_between"])
def test_a_column_without_any_value_fails_as_nothing_was_evaluated(tmp_path: Path, kind: str) -> None:
    arguments = {"min_value": 0} if "between" in kind else {}
    stopped = _stopped(tmp_path, _expected(kind, "verifier", **arguments))
    assert stopped.report.outcome is ValidationOutcome.FAILED
    assert "nothing evaluated" in stopped.report.text


def test_an_expectation_of_a_data_set_that_is_not_built_fails(tmp_path: Path) -> None:
    stopped = _stopped(tmp_path, {**_expected("expect_column_values_to_be_unique"), "dataset": "demonstration"})
    assert "failed: demonstration, expected by the recipe" in stopped.report.text


def test_mostly_lets_a_share_be_otherwise(tmp_path: Path) -> None:
    rows = [{**row, "response": "No." if at < 3 else row["response"]} for at, row in enumerate(demonstrations(40))]
    some = _expected("expect_column_values_to_match_regex", regex="^Because", mostly=0.9)
    assert _build(tmp_path, some, rows=rows).validation.passed
    assert "3 of 40" in _stopped(tmp_path, {**some, "arguments": {"regex": "^Because", "mostly": 0.95}}, rows=rows).report.text


BACKTRACKS = r"(?!x)(a+)+$"
"""Takes twice as long with each further `a` before a `b`."""


@pytest.mark.parametrize("kind", ["expect_column_values_to_match_regex", "expect_column_values_to_not_match_regex"])
def test_a_regular_expression_that_stands_still_is_ended_and_named_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(regex_time, "ROW_S", 0.5)
    rows = demonstrations(12)
    rows[7] = {**rows[7], "response": "a" * 26 + "b"}
    met = _expected("expect_column_value_lengths_to_be_between", min_value=5)
    stopped = _stopped(tmp_path, {**_expected(kind, regex=BACKTRACKS), "why": "agreed"}, met, rows=rows)
    assert stopped.report.outcome is ValidationOutcome.COULD_NOT_CHECK
    (slow,) = (check for check in stopped.report.checks if check.outcome is ValidationOutcome.COULD_NOT_CHECK)
    assert (slow.name, slow.column) == (kind, "response")
    assert slow.seen.startswith(f"regular expression {BACKTRACKS!r} took longer than 0.5 s, and stood at row e7 (")
    assert slow.seen.endswith("(agreed)")
    (other,) = (check for check in stopped.report.checks if check.name == met["expect"])
    assert (other.outcome, other.evaluated) == (ValidationOutcome.PASSED, 12)


def test_rows_that_take_too_long_together_are_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_time, "WHOLE_S", 1.0)
    found = regex_time.stands_still(BACKTRACKS, ["b", *["a" * 21 + "b"] * 1000])
    assert found is not None
    assert (found.seconds, 0 < found.row < 1000) == (1.0, True)


def test_what_can_be_searched_is_no_matter_of_time() -> None:
    assert regex_time.stands_still(r"^\d+\s(\w+)$", ["12 é", "", "\ud800", "no"] * 5000) is None
    assert regex_time.stands_still("a", []) is None
    with pytest.raises(DataError, match=r"(?s)ended:.*missing \)"):
        regex_time.stands_still("(", ["a"])


def test_every_kind_is_one_of_great_expectations_with_these_arguments_and_every_column_is_known() -> None:
    import great_expectations as gx

    for kind, arguments in KINDS.items():
        of = getattr(gx.expectations, "".join(word.capitalize() for word in kind.split("_")))
        assert arguments <= set(of.__fields__), kind
    assert set(COLUMNS) == set(_COLUMNS)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"expect": "expect_query_results_to_match_comparison"}, "is not taken; there are"),
        ({"column": "annotator_id"}, "is no column; there are prompt"),
        ({"column": None}, "takes one `column`"),
        ({"columns": ["prompt", "response"]}, "takes one `column`"),
        ({"expect": COMPOUND}, "takes `columns`, two at least"),
        ({"arguments": {"value_set": ["a"], "row_condition": "1"}}, "does not take 'row_condition'"),
        ({"arguments": {}}, "needs value_set"),
        ({"arguments": {"value_set": []}}, "not a list of texts or numbers"),
        ({"arguments": {"value_set": ["a"], "mostly": 0}}, "above 0, at most 1"),
        ({"expect": "expect_column_mean_to_be_between", "arguments": {}}, "needs min_value or max_value"),
        ({"expect": "expect_column_mean_to_be_between", "arguments": {"min_value": "3"}}, "not a number"),
        ({"expect": "expect_column_mean_to_be_between", "arguments": {"min_value": 3, "max_value": 2}}, "is above max_value"),
        ({"expect": "expect_column_values_to_match_regex", "arguments": {"regex": "("}}, "is no regular expression"),
        ({"dataset": "a b"}, "pattern"),
        ({"severity": "warning"}, "severity"),
    ],
)
def test_a_senseless_expectation_is_refused_when_the_recipe_is_read(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Expectation(**{**_expected("expect_column_values_to_be_in_set", value_set=["a"]), **changed})
