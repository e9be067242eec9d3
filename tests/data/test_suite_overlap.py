"""Evaluation suites are apart from training data, and it is checked on what is stored."""

from pathlib import Path

import pytest

from include.data.errors import DataError
from include.data.suites import overlaps, require_apart
from include.domain.records import Message
from include.transforms.datasets_io import DatasetHeader, SidedRow, write_dataset
from include.transforms.draft import Draft
from include.transforms.near import NearSettings

from .conftest import sentence

NEAR = NearSettings()


def _dataset(folder: Path, rows: str, texts: list[str], side: str) -> Path:
    drafts = [
        Draft("made", n, (Message("user", text),), "CC0", "licence", response=(Message("assistant", "x"),)) for n, text in enumerate(texts)
    ]
    records = [draft.suite_item("g") if rows == "suite" else draft.demonstration("g") for draft in drafts]
    ids = [str(record.to_json().get("item_id") or record.to_json()["example_id"]) for record in records]
    made = [SidedRow(i, side, "g", "evaluation", record.to_json()) for i, record in zip(ids, records, strict=True)]
    return write_dataset(folder, DatasetHeader(folder.name, rows, "filters@1"), made).folder


def test_apart_is_apart(tmp_path: Path) -> None:
    suite = _dataset(tmp_path / "suite", "suite", [sentence(n) for n in range(5)], "holdout")
    training = _dataset(tmp_path / "training", "demonstration", [sentence(n) for n in range(5, 30)], "train")
    assert require_apart([suite], [training], NEAR) == 5


def test_exact_and_near_overlaps_are_told_apart_and_named(tmp_path: Path) -> None:
    suite = _dataset(tmp_path / "suite", "suite", [sentence(1), sentence(2)], "safety_holdout")
    training = _dataset(tmp_path / "training", "demonstration", [sentence(1).upper(), f"{sentence(2)} Now", sentence(9)], "train")
    found = overlaps([suite], [training], NEAR)
    assert sorted(each.exact for each in found) == [False, True]
    assert {(each.suite, each.dataset) for each in found} == {("suite", "training")}
    with pytest.raises(DataError, match="2 training rows overlap with evaluation suites: training row"):
        require_apart([suite], [training], NEAR)


def test_rows_that_are_not_trained_on_may_overlap(tmp_path: Path) -> None:
    suite = _dataset(tmp_path / "suite", "suite", [sentence(1)], "holdout")
    held = _dataset(tmp_path / "held", "demonstration", [sentence(1)], "holdout")
    assert overlaps([suite], [held], NEAR) == []


@pytest.mark.parametrize(("rows", "side"), [("demonstration", "holdout"), ("suite", "train")])
def test_what_is_no_suite_of_held_out_rows_is_refused(tmp_path: Path, rows: str, side: str) -> None:
    folder = _dataset(tmp_path / "odd", rows, [sentence(1)], side)
    with pytest.raises(DataError, match="is no evaluation suite"):
        overlaps([folder], [], NEAR)
