"""The dataset folder keeps rows as they are, and its identity does not depend on files."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from include.domain.canonical import digest_rows
from include.domain.manifest import Manifest, verify_files
from include.transforms.datasets_io import (
    DatasetHeader,
    SidedRow,
    load_info,
    open_side,
    read_info,
    read_members,
    read_rows,
    read_suite,
    verify_dataset,
    write_dataset,
)
from include.transforms.errors import DatasetError

ODD = "one\u2028two\u2029three\x85four\r\nfive \U0001f642"


def _row(row_id: str, side: str = "train", text: str = "x") -> SidedRow:
    return SidedRow(row_id, side, f"group-{row_id}", "demonstration", {"text": text, "source": "made", "licence": "CC0"})


def _header(**more: object) -> DatasetHeader:
    return DatasetHeader("made", "demonstration", "filters@1", **more)  # type: ignore[arg-type]


def test_rows_come_back_sorted_and_unchanged(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", _header(), [_row("b", text=ODD), _row("a")])
    rows = read_rows(tmp_path / "d", "train")
    assert [row.id for row in rows] == ["a", "b"]
    assert rows[1].record == {"text": ODD, "source": "made", "licence": "CC0"}
    assert (rows[1].split_group, rows[1].use) == ("group-b", "demonstration")


def test_the_content_hash_is_over_canonical_rows_sorted_by_id(tmp_path: Path) -> None:
    rows = [_row("b", "holdout"), _row("a")]
    info = write_dataset(tmp_path / "d", _header(), rows)
    body = [{"id": r.id, "side": r.side, "use": r.use, "record": dict(r.record)} for r in sorted(rows, key=lambda r: r.id)]
    assert info.content_hash == digest_rows("dataset", body)


def test_the_order_of_rows_and_the_description_do_not_move_the_content_hash(tmp_path: Path) -> None:
    first = write_dataset(tmp_path / "a", _header(), [_row("a"), _row("b")])
    second = write_dataset(tmp_path / "b", _header(notes={"n": 1}, derived_from=("sha256:" + "0" * 64,)), [_row("b"), _row("a")])
    assert first.content_hash == second.content_hash


@pytest.mark.parametrize("changed", [_row("a", text="y"), _row("a", side="validation")])
def test_a_changed_row_moves_the_content_hash(tmp_path: Path, changed: SidedRow) -> None:
    first = write_dataset(tmp_path / "a", _header(), [_row("a"), _row("b")])
    assert write_dataset(tmp_path / "b", _header(), [changed, _row("b")]).content_hash != first.content_hash


def test_an_empty_dataset_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="0 rows"):
        write_dataset(tmp_path / "d", _header(), [])
    assert not (tmp_path / "d").exists()


def test_an_id_that_stands_twice_is_refused_across_sides(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="id a stands twice"):
        write_dataset(tmp_path / "d", _header(), [_row("a"), _row("a", "holdout")])


def test_a_folder_is_written_once(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", _header(), [_row("a")])
    with pytest.raises(DatasetError, match="not empty"):
        write_dataset(tmp_path / "d", _header(), [_row("b")])


def test_the_description_counts_sides_licences_origins_and_uses(tmp_path: Path) -> None:
    info = write_dataset(tmp_path / "d", _header(), [_row("a"), _row("b"), _row("c", "holdout")])
    assert info.counts == {"train": 2, "holdout": 1}
    assert (info.licences, info.origins, info.uses) == ({"CC0": 3}, {"made": 3}, {"demonstration": 3})
    assert load_info(tmp_path / "d") == info
    assert read_info(tmp_path / "d")["schema"] == "align/dataset/v1"


def test_the_manifest_guards_the_files(tmp_path: Path) -> None:
    info = write_dataset(tmp_path / "d", _header(), [_row("a")])
    manifest = Manifest.from_json(json.loads((tmp_path / "d" / "manifest.json").read_text()))
    verify_files(manifest, tmp_path / "d")
    assert manifest.digest == info.artifact_digest
    assert {entry.path for entry in manifest.files} == {"dataset.json", "train.parquet"}


def test_a_side_without_rows_is_empty_and_an_unknown_one_an_error(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", _header(), [_row("a")])
    assert read_rows(tmp_path / "d", "validation") == []
    with pytest.raises(DatasetError, match="'test' is none of train"):
        read_rows(tmp_path / "d", "test")


def test_a_lost_file_is_noticed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", _header(), [_row("a")])
    (tmp_path / "d" / "train.parquet").unlink()
    with pytest.raises(DatasetError, match=r"train\.parquet is missing"):
        read_rows(tmp_path / "d", "train")


def test_a_file_with_fewer_rows_than_stated_is_noticed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", _header(), [_row("a"), _row("b")])
    path = tmp_path / "d" / "train.parquet"
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    with pytest.raises(DatasetError, match=r"holds 1 rows, dataset\.json says 2"):
        read_rows(tmp_path / "d", "train")


def test_a_changed_record_does_not_pass_verification(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", _header(), [_row("a")])
    assert verify_dataset(tmp_path / "d") == load_info(tmp_path / "d").content_hash
    path = tmp_path / "d" / "train.parquet"
    table = pq.read_table(path)
    changed = [text.replace('"x"', '"z"') for text in table.column("record").to_pylist()]
    pq.write_table(table.set_column(3, table.schema.field("record"), [changed]), path)
    with pytest.raises(DatasetError, match="its rows give"):
        verify_dataset(tmp_path / "d")


def test_a_suite_is_both_holdouts_in_order_of_id(tmp_path: Path) -> None:
    rows = [_row("c", "holdout"), _row("a", "safety_holdout"), _row("b", "train")]
    write_dataset(tmp_path / "d", _header(), rows)
    assert [row.id for row in read_suite(tmp_path / "d")] == ["a", "c"]


def test_members_are_kept_beside_the_rows(tmp_path: Path) -> None:
    members = {"label-2": "sha256:" + "2" * 64, "label-1": "sha256:" + "1" * 64}
    write_dataset(tmp_path / "d", _header(members=members), [_row("a")])
    assert read_members(tmp_path / "d") == members
    assert pq.read_table(tmp_path / "d" / "members.parquet").column("label_id").to_pylist() == ["label-1", "label-2"]


def test_a_side_opens_memory_mapped_with_the_same_rows(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", _header(), [_row("b", text=ODD), _row("a")])
    opened = open_side(tmp_path / "d", "train", tmp_path / "cache")
    assert opened.column_names == ["id", "split_group", "use", "record"]
    assert [row["id"] for row in opened] == ["a", "b"]
    assert json.loads(opened[1]["record"])["text"] == ODD
    assert opened.cache_files
    assert all(str(tmp_path / "cache") in file["filename"] for file in opened.cache_files)
