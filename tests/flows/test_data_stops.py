"""What stops the task that builds datasets, and what only looks odd: by the function that the DAG calls, on files as people bring them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.data.errors import ValidationStopped
from include.domain.split import SIDES
from include.flows import data_tasks, links, services
from include.flows.preference_tasks import local_dataset
from include.transforms.datasets_io import read_rows
from tests.data.conftest import demonstrations, jsonl
from tests.flows.conftest import Plane

ROWS = demonstrations(30)
SEPARATORS = {"U+2028": "\u2028", "U+2029": "\u2029", "U+0085": "\x85"}


class Task:
    """The building task of one run, and the link that it left for its page."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.pushed: dict[str, str] = {}

    def build(self, data: bytes, **more: Any) -> dict[str, Any]:
        """`more`: of the recipe's data settings."""
        (self.folder / "rows.jsonl").write_bytes(data)
        source = {"name": "own", "kind": "jsonl", "mapping": "rows", "path": "rows.jsonl", "licence": "CC0-1.0"}
        source["options"] = {"dataset": "demonstrations", "rows": "demonstration"}  # type: ignore[assignment]
        data_settings = {"project": "tiny", "split_salt": "s", "licences": ["CC0-1.0"], "use_shares": {"demonstration": 1.0}}
        self.plane.change_recipe("tiny", data=data_settings | {"sources": [source], **more})
        return data_tasks.build(self.plane.run(), "dag:build_dataset/manual__1/data.build_datasets/1")


@pytest.fixture
def task(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    made = Task(plane, tmp_path)
    monkeypatch.setenv("ALIGN_SOURCES", str(tmp_path))
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    ti = SimpleNamespace(xcom_push=lambda key, value: made.pushed.update({key: value}))
    monkeypatch.setattr(links, "get_current_context", lambda: {"ti": ti})
    return made


def changed(number: int, **values: Any) -> list[dict[str, Any]]:
    return [row | values if i == number else row for i, row in enumerate(ROWS)]


STOPPED = {
    "an empty file": (b"", "0 rows, at least 1 expected"),
    "a column of nulls": (jsonl([{**row, "exampleId": None} for row in ROWS]), "30 of 30 values unexpected"),
    "a column of nulls that no row can be without": (jsonl([{**row, "response": None} for row in ROWS]), "quarantined_share"),
    "a duplicated id": (jsonl(changed(7, exampleId="e2")), "values_to_be_unique: 2 of 30 values unexpected: e2"),
    "a Latin-1 file": (jsonl(changed(3, response="At the café.")).decode().encode("latin-1"), "is not UTF-8: byte 0xe9"),
    "an array where lines are expected": (json.dumps(ROWS).encode(), "a JSON array where one object a line is expected"),
}


@pytest.mark.parametrize("case", STOPPED)
def test_bad_data_stops_the_task_with_a_report_and_stores_nothing(task: Task, case: str) -> None:
    data, words = STOPPED[case]
    with pytest.raises(ValidationStopped, match=".") as stopped:
        task.build(data)
    assert words in str(stopped.value)
    address = task.pushed["validation_report"]
    assert address.startswith("/alignment/validation/")
    folder = services.work_dir() / address.removeprefix("/alignment/")
    assert "<html" in (folder / "index.html").read_text("utf-8")
    kept = json.loads((folder / "report.json").read_text("utf-8"))
    assert kept["outcome"] != "passed"
    assert words.partition(": ")[2] in str(kept) or words in str(kept)
    assert services.catalog().datasets.latest("tiny-demonstrations") is None
    assert list(task.plane.store_root.rglob("*.parquet")) == []


def stored(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    folder = local_dataset(result["demonstrations"])
    rows = [row for side in SIDES for row in read_rows(folder, side)]
    return {row.id: (row.record["prompt"]["messages"][-1]["content"], row.record["response"][-1]["content"]) for row in rows}


def as_brought(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {row["exampleId"]: (row["prompt"], row["response"]) for row in rows}


def test_an_expectation_of_the_recipes_own_stops_the_task_with_the_same_report_and_page(task: Task) -> None:
    short = {"dataset": "demonstrations", "expect": "expect_column_value_lengths_to_be_between", "column": "response"}
    with pytest.raises(ValidationStopped) as stopped:
        task.build(jsonl(ROWS), expectations=[{**short, "arguments": {"max_value": 3}, "why": "one word is enough"}])
    assert "demonstrations, expected by the recipe.response" in str(stopped.value)
    assert "(one word is enough)" in str(stopped.value)
    assert task.pushed
    assert set(task.build(jsonl(ROWS), expectations=[{**short, "arguments": {"max_value": 300}}])) == {"demonstrations"}


@pytest.mark.parametrize("dressed", ["BOM", "CRLF", "both"])
def test_bom_and_crlf_are_accepted_and_no_row_changes(task: Task, dressed: str) -> None:
    data = jsonl(ROWS)
    data = data.replace(b"\n", b"\r\n") if dressed in ("CRLF", "both") else data
    result = task.build(b"\xef\xbb\xbf" + data if dressed in ("BOM", "both") else data)
    assert stored(result) == as_brought(ROWS)
    assert result["demonstrations"]["content_hash"] == task.build(jsonl(ROWS))["demonstrations"]["content_hash"]


@pytest.mark.parametrize("name", SEPARATORS)
def test_a_line_break_of_unicode_inside_a_text_is_accepted_and_no_row_changes(task: Task, name: str) -> None:
    rows = changed(5, prompt=f"{ROWS[5]['prompt']}{SEPARATORS[name]}tail", response=f"first{SEPARATORS[name]}second")
    assert stored(task.build(jsonl(rows))) == as_brought(rows)
    assert "validation_report" in task.pushed
