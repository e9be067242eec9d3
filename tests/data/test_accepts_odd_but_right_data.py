"""What only looks odd is accepted, and no row changes."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include.data.build import BuildResult, build_datasets
from include.domain.split import SIDES
from include.transforms.datasets_io import read_rows, verify_dataset

from .conftest import demonstrations, jsonl, plan_of_files, sentence, source_plan

Build = Callable[..., BuildResult]


def _texts(result: BuildResult) -> dict[str, tuple[str, str]]:
    folder = result.datasets["demonstrations"].folder
    rows = [row for side in SIDES for row in read_rows(folder, side)]
    return {row.id: (row.record["prompt"]["messages"][-1]["content"], row.record["response"][-1]["content"]) for row in rows}


def test_bom_and_crlf_change_no_row(build: Build) -> None:
    data = jsonl(demonstrations(20))
    plain = build(data, "plain")
    dressed = build(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"), "dressed")
    assert _texts(plain) == _texts(dressed) == {row["exampleId"]: (row["prompt"], row["response"]) for row in demonstrations(20)}


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_unicode_line_breaks_inside_a_text_survive(build: Build, separator: str) -> None:
    rows = demonstrations(20)
    rows[5]["prompt"] += f"{separator}tail"
    rows[5]["response"] = f"first{separator}second"
    result = build(jsonl(rows))
    assert _texts(result)["e5"] == (rows[5]["prompt"], f"first{separator}second")
    assert verify_dataset(result.datasets["demonstrations"].folder) == result.datasets["demonstrations"].content_hash


def test_escaped_and_plain_text_are_the_same_content(build: Build) -> None:
    rows = [{**row, "response": "naïve\u2028\U0001f642"} for row in demonstrations(20)]
    plain = build(jsonl(rows), "rows")
    path_of_source = plain.datasets["demonstrations"].content_hash
    escaped = build("".join(json.dumps(row) + "\n" for row in rows).encode(), "rows")
    assert escaped.datasets["demonstrations"].content_hash == path_of_source


def test_a_lone_surrogate_is_set_aside_with_its_line_and_the_others_stay(build: Build) -> None:
    data = jsonl(demonstrations(60)) + b'{"exampleId":"bad","prompt":"lone \\ud83d end","response":"x"}\n'
    result = build(data)
    (row,) = [json.loads(line) for line in result.quarantine.read_text().splitlines()]
    assert (row["line"], row["reason"]) == (61, "lone surrogate in $.prompt: the text has no UTF-8 form")
    assert len(_texts(result)) == 60


def test_a_broken_line_within_the_allowed_share_is_set_aside_and_the_rest_passes(build: Build) -> None:
    result = build(jsonl(demonstrations(99)) + b'{"exampleId":"bad",}\n', max_quarantine_share=0.01)
    (row,) = [json.loads(line) for line in result.quarantine.read_text().splitlines()]
    assert (row["line"], row["raw"]) == (100, '{"exampleId":"bad",}')
    assert len(_texts(result)) == 99


def test_references_of_every_verifier_are_kept_and_one_that_none_can_read_is_set_aside(tmp_path: Path) -> None:
    wanted = [("multiple_choice", "B"), ("math_answer", {"value": "3/4"}), ("instructions", [{"id": "punctuation:no_comma"}])]
    rows = [{"id": f"r{i}", "prompt": sentence(i), "reference": _reference(*wanted[i % 3])} for i in range(30)]
    bad = [_reference("multiple_choice", "none of them"), _reference("run_python", "print()"), _reference("pattern", "(a+)+b")]
    rows += [{"id": f"bad{i}", "prompt": sentence(100 + i), "reference": reference} for i, reference in enumerate(bad)]
    path = tmp_path / "verified.jsonl"
    path.write_bytes(jsonl(rows))
    plan = plan_of_files(source_plan(path, dataset="rl", rows="prompt", use="rl"), max_quarantine_share=0.2)
    result = build_datasets(plan, tmp_path / "out")
    reasons = [json.loads(line)["reason"] for line in result.quarantine.read_text().splitlines()]
    assert [reason.split(":")[0] for reason in reasons] == ["reference"] * 3
    assert "none of 26 options" in reasons[0]
    assert "no verifier run_python@1; there are: arithmetic@1" in reasons[1]
    assert "could take for ever" in reasons[2]
    stored = [row for side in ("train", "validation", "holdout") for row in read_rows(result.datasets["rl"].folder, side)]
    assert Counter(row.record["reference"]["verifier"] for row in stored).keys() == {name for name, _ in wanted}


def _reference(verifier: str, expected: Any) -> dict[str, Any]:
    return {"verifier": verifier, "verifier_version": "1", "expected": expected}
