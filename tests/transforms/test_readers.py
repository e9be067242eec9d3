"""Files into raw rows: lines are physical, texts stay, what is broken is named."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.transforms.errors import SourceError
from include.transforms.readers import read_delimited, read_json_array, read_jsonl, read_parquet
from include.transforms.rows import Quarantined, RawRow


def _write(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    return str(path)


def _values(rows: object) -> list[object]:
    return [row.value for row in rows if isinstance(row, RawRow)]  # type: ignore[attr-defined]


def test_a_byte_order_mark_and_crlf_are_tolerated(tmp_path: Path) -> None:
    path = _write(tmp_path, b'\xef\xbb\xbf{"n":1}\r\n{"n":2}\r\n')
    assert _values(read_jsonl(path)) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    text = f"before{separator}after"
    quoted = json.dumps({"t": text}, ensure_ascii=False)
    path = _write(tmp_path, f'{quoted}\n{{"t":"next"}}\n'.encode())
    assert _values(read_jsonl(path)) == [{"t": text}, {"t": "next"}]
    assert [row.line for row in read_jsonl(path)] == [1, 2]


def test_a_broken_line_is_set_aside_with_its_physical_line_and_the_others_survive(tmp_path: Path) -> None:
    path = _write(tmp_path, b'{"n":1}\n\n{"n":2,}\n{"n":3}')
    rows = list(read_jsonl(path))
    assert _values(rows) == [{"n": 1}, {"n": 3}]
    assert [row.line for row in rows] == [1, 3, 4]
    bad = rows[1]
    assert isinstance(bad, Quarantined)
    assert bad.raw == '{"n":2,}'
    assert bad.reason == "not JSON: Expecting property name enclosed in double quotes at column 8"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":1,"a":2}', "key 'a' stands twice"),
        (b'{"a":NaN}', "NaN is not a JSON value"),
        (b'"text"', "a JSON str where an object is expected"),
        (b'{"a":["\\ud83d end"]}', r"lone surrogate in $.a[0]"),
        (b'{"a":' * 100_000, "not JSON: maximum recursion depth exceeded"),
    ],
)
def test_what_is_no_usable_object_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    path = _write(tmp_path, b'{"n":1}\n' + line + b"\n")
    rows = list(read_jsonl(path))
    assert isinstance(rows[1], Quarantined)
    assert reason in rows[1].reason


def test_surrogates_that_belong_together_are_a_character(tmp_path: Path) -> None:
    path = _write(tmp_path, b'{"t":"\\ud83d\\ude42"}\n')
    assert _values(read_jsonl(path)) == [{"t": "\U0001f642"}]


def test_a_latin_1_file_is_refused_with_file_line_and_offset(tmp_path: Path) -> None:
    data = '{"t":"plain"}\n{"t":"café"}\n'.encode("latin-1")
    with pytest.raises(SourceError) as caught:
        list(read_jsonl(_write(tmp_path, data)))
    assert f"rows.jsonl is not UTF-8: byte 0xe9 at offset {data.index(0xE9)} (line 2)" in str(caught.value)


def test_the_offset_counts_the_byte_order_mark(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"t":"\xe9"}\n'
    with pytest.raises(SourceError, match=f"offset {data.index(0xE9)} "):
        list(read_jsonl(_write(tmp_path, data)))


def test_utf_16_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is UTF-16"):
        list(read_jsonl(_write(tmp_path, '{"t":1}'.encode("utf-16"))))


def test_an_array_where_lines_are_expected_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="line 1: a JSON array where one object a line is expected"):
        list(read_jsonl(_write(tmp_path, b'[\n {"n":1},\n {"n":2}\n]\n')))


def test_an_array_is_read_with_the_line_of_each_object(tmp_path: Path) -> None:
    path = _write(tmp_path, b'\xef\xbb\xbf[\n {"n":1},\n\n {"n":\n 2}, 3\n]\n')
    rows = list(read_json_array(path))
    assert [row.line for row in rows] == [2, 4, 5]
    assert _values(rows) == [{"n": 1}, {"n": 2}]
    assert isinstance(rows[2], Quarantined)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"n":1}', "expected a JSON array"),
        (b'[{"n":1}\n,\n{"n":]', "line 3: broken JSON"),
        (b'[{"n":1}] x', "follows the end"),
        (b'[{"n":1} {', "expected ',' or ']'"),
    ],
)
def test_a_broken_array_is_refused_as_a_whole(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        list(read_json_array(_write(tmp_path, data)))


def test_csv_keeps_line_feeds_in_quotes_and_names_the_line_a_row_begins_on(tmp_path: Path) -> None:
    path = _write(tmp_path, b'id,t\r\n1,"a\nb, c"\r\n2,d\r\n3\r\n')
    rows = list(read_delimited(path))
    assert _values(rows) == [{"id": "1", "t": "a\nb, c"}, {"id": "2", "t": "d"}]
    assert [row.line for row in rows] == [2, 4, 5]
    assert isinstance(rows[2], Quarantined)
    assert rows[2].reason == "1 fields where 2 are expected"


def test_tsv_has_no_quoting_and_takes_names_from_outside(tmp_path: Path) -> None:
    path = _write(tmp_path, b'say "hi"\t1\n"open\t2\n')
    rows = list(read_delimited(path, delimiter="\t", columns=("q", "a")))
    assert _values(rows) == [{"q": 'say "hi"', "a": "1"}, {"q": '"open', "a": "2"}]


def test_a_header_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="stands twice"):
        list(read_delimited(_write(tmp_path, b"a,a\n1,2\n")))


def test_parquet_rows_keep_lists_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"t": ["a\u2028b", None], "m": [[{"role": "user", "content": "x"}], []]}), path)
    assert _values(read_parquet(str(path))) == [{"t": "a\u2028b", "m": [{"role": "user", "content": "x"}]}, {"t": None, "m": []}]


def test_a_parquet_value_without_a_json_form_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"b": [b"\xff"]}), path)
    (row,) = read_parquet(str(path))
    assert isinstance(row, Quarantined)
    assert row.line == 1


def test_what_is_not_parquet_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a Parquet file"):
        list(read_parquet(_write(tmp_path, b"text, not Parquet at all, long enough to look at")))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SourceError, match=r"/nowhere/rows\.jsonl cannot be opened"):
        list(read_jsonl("/nowhere/rows.jsonl"))


def test_a_file_is_read_through_a_filesystem_that_is_handed_in() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/rows.jsonl", b'{"n":1}\n')
    assert _values(read_jsonl("/bucket/rows.jsonl", memory)) == [{"n": 1}]
