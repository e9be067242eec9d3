"""Files into raw rows, each with its physical line; what is not a row is set aside with line and reason, never lost.

Files are UTF-8. A byte order mark and CRLF are tolerated; only a line feed ends a line, so U+2028, U+2029 and U+0085
inside a string stay what they are. A file that as a whole is something else (another encoding, a JSON array where
lines are expected) is refused by name.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from include.domain.canonical import sha256_bytes, sha256_file
from include.transforms.errors import SourceError
from include.transforms.rows import Quarantined, RawRow

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CSV_FIELD_LIMIT = 1 << 24


def open_file(path: str, filesystem: Any = None) -> BinaryIO:
    """Opens a file for reading bytes, from disk or through a ready fsspec filesystem (S3, SFTP …)."""
    try:
        return open(path, "rb") if filesystem is None else filesystem.open(path, "rb")  # type: ignore[no-any-return]
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error}") from error


def file_digest(path: str, filesystem: Any = None) -> str:
    """sha256 of the file's bytes."""
    if filesystem is None:
        return sha256_file(Path(path))
    with open_file(path, filesystem) as stream:
        return sha256_bytes(stream.read())


def read_jsonl(path: str, filesystem: Any = None) -> Iterator[RawRow | Quarantined]:
    """One JSON object a line. Blank lines are skipped but counted.

    Raises:
        SourceError: the file is not UTF-8 (with line and byte offset), or is a JSON array.
    """
    offset = 0
    with open_file(path, filesystem) as stream:
        for number, line in enumerate(stream, start=1):
            start, offset = offset, offset + len(line)
            if number == 1:
                _refuse_utf16(path, line)
                if line.startswith(_BOM):
                    start, line = start + len(_BOM), line[len(_BOM) :]
            text = _decode(path, line, number, start).removesuffix("\n").removesuffix("\r")
            if text.strip():
                if text.lstrip().startswith("["):
                    _refuse_array(path, number)
                yield _parse_line(path, number, text)


def _refuse_utf16(path: str, line: bytes) -> None:
    if line.startswith(_UTF16):
        raise SourceError(f"{path} is UTF-16 (byte order mark {line[:2].hex()} at offset 0): convert it to UTF-8")


def _refuse_array(path: str, number: int) -> None:
    raise SourceError(f"{path}, line {number}: a JSON array where one object a line is expected; name its format 'json', or write lines")


def _decode(path: str, data: bytes, line: int, offset: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise SourceError(
            f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at offset {at} (line {line}); "
            "it may be Latin-1 or Windows-1252: convert it to UTF-8"
        ) from error


def _parse_line(path: str, line: int, text: str) -> RawRow | Quarantined:
    try:
        return _checked(path, line, text, _loads(text))
    except json.JSONDecodeError as error:
        return Quarantined(path, line, f"not JSON: {error.msg} at column {error.colno}", text)
    except (ValueError, RecursionError) as error:
        return Quarantined(path, line, f"not JSON: {error}", text)


def _checked(path: str, line: int, raw: str, value: Any) -> RawRow | Quarantined:
    if not isinstance(value, dict):
        return Quarantined(path, line, f"a JSON {type(value).__name__} where an object is expected", raw)
    if place := _lone_surrogate(value):
        return Quarantined(path, line, f"lone surrogate in {place}: the text has no UTF-8 form", raw)
    return RawRow(line, raw, value)


def _loads(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_no_twice, parse_constant=_no_constant)


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} stands twice")
    return out


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _lone_surrogate(value: Any, where: str = "$") -> str | None:
    """The place of the first lone surrogate, if there is one (`json` joins the pairs that belong together)."""
    if isinstance(value, str):
        return where if _SURROGATE.search(value) else None
    if isinstance(value, dict):
        for key, item in value.items():
            if found := _lone_surrogate(key, f"{where} (key)") or _lone_surrogate(item, f"{where}.{key}"):
                return found
    if isinstance(value, list):
        for i, item in enumerate(value):
            if found := _lone_surrogate(item, f"{where}[{i}]"):
                return found
    return None


def _whole_text(path: str, filesystem: Any) -> str:
    with open_file(path, filesystem) as stream:
        data = stream.read()
    _refuse_utf16(path, data[:4])
    start = len(_BOM) if data.startswith(_BOM) else 0
    try:
        return data[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, start + error.start) + 1
        _decode(path, data[start:], line, start)
        raise


def read_json_array(path: str, filesystem: Any = None) -> Iterator[RawRow | Quarantined]:
    """A JSON array of objects; each row's line is the one its object begins on.

    Raises:
        SourceError: not UTF-8, not an array, or broken JSON (what follows a break in an array cannot be trusted).
    """
    text = _whole_text(path, filesystem)
    decoder = json.JSONDecoder(object_pairs_hook=_no_twice, parse_constant=_no_constant)
    at = _skip_space(text, 0)
    if text[at : at + 1] != "[":
        raise SourceError(
            f"{path}: expected a JSON array, found {text[at : at + 20]!r}; name its format 'jsonl' if it holds one object a line"
        )
    at, line, counted = _skip_space(text, at + 1), 1, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path}, line {line}: broken JSON: {error}") from error
        yield _checked(path, line, text[at:end], value)
        at = _skip_space(text, end)
        if text[at : at + 1] == ",":
            at = _skip_space(text, at + 1)
        elif text[at : at + 1] != "]":
            raise SourceError(f"{path}, line {line + text.count(chr(10), counted, at)}: expected ',' or ']', found {text[at : at + 20]!r}")
    if rest := text[_skip_space(text, at + 1) :]:
        raise SourceError(f"{path}: {rest[:20]!r} follows the end of the array")


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def read_delimited(
    path: str, filesystem: Any = None, *, delimiter: str = ",", columns: tuple[str, ...] | None = None
) -> Iterator[RawRow | Quarantined]:
    """CSV (quotes as RFC 4180 has them) or TSV (no quoting: a tab or line feed cannot stand in a field).

    Args:
        columns: the names where the file has no header line.
    """
    text = _whole_text(path, filesystem)
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=delimiter != "\t")
    names, before = columns, 0
    try:
        for fields in reader:
            line, before = before + 1, reader.line_num
            if not fields:
                continue
            if names is None:
                names = _header(path, fields)
            elif len(fields) != len(names):
                yield Quarantined(path, line, f"{len(fields)} fields where {len(names)} are expected", delimiter.join(fields))
            else:
                yield RawRow(line, delimiter.join(fields), dict(zip(names, fields, strict=True)))
    except csv.Error as error:
        raise SourceError(f"{path}, line {reader.line_num}: {error}") from error


def _header(path: str, fields: list[str]) -> tuple[str, ...]:
    if len(set(fields)) != len(fields) or not all(field.strip() for field in fields):
        raise SourceError(f"{path}, line 1: the header {fields} has an empty name or one that stands twice")
    return tuple(fields)


def read_parquet(path: str, filesystem: Any = None) -> Iterator[RawRow | Quarantined]:
    """Rows of a Parquet file, numbered from 1; a value without a JSON form is set aside."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_file(path, filesystem) as stream:
        try:
            batches = pq.ParquetFile(stream).iter_batches()
            number = 0
            for batch in batches:
                for value in batch.to_pylist():
                    number += 1
                    yield plain_row(path, number, value)
        except pa.ArrowInvalid as error:
            raise SourceError(f"{path} is not a Parquet file: {error}") from error


def plain_row(path: str, number: int, value: Mapping[str, Any]) -> RawRow | Quarantined:
    """A row that came as Python values rather than as text."""
    try:
        raw = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        return Quarantined(path, number, f"a value has no JSON form: {error}", repr(value))
    return _checked(path, number, raw, dict(value))
