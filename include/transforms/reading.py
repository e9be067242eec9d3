"""Opening a source, whatever its format."""

from collections.abc import Iterator, Mapping
from typing import Any

from include.domain.canonical import digest, digest_rows
from include.transforms.hub import read_hub
from include.transforms.readers import file_digest, read_delimited, read_json_array, read_jsonl, read_parquet
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source


def read_source(source: Source, filesystem: Any = None) -> Iterator[RawRow | Quarantined]:
    """Raw rows of a source; `filesystem` is a ready fsspec filesystem for the uri, None for this machine's disk.

    A generated source has none: its mapping makes them from a seed.
    """
    rows: Iterator[RawRow | Quarantined]
    if source.format == "generated":
        rows = iter(())
    elif source.format == "jsonl":
        rows = read_jsonl(source.uri, filesystem)
    elif source.format == "json":
        rows = read_json_array(source.uri, filesystem)
    elif source.format == "parquet":
        rows = read_parquet(source.uri, filesystem)
    elif source.format == "hub":
        rows = read_hub(source.uri, source.split, subset=source.subset, revision=source.revision)
    else:
        rows = read_delimited(source.uri, filesystem, delimiter="\t" if source.format == "tsv" else ",", columns=source.columns)
    for row in rows:
        yield row if isinstance(row, Quarantined) else RawRow(row.line, row.raw, _renamed(source, row.value))


def _renamed(source: Source, value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not source.fields:
        return value
    taken = set(source.fields.values())
    out = {name: item for name, item in value.items() if name not in taken}
    out.update({ours: value[theirs] for ours, theirs in source.fields.items() if theirs in value})
    return out


def source_digest(source: Source, rows: list[RawRow | Quarantined], filesystem: Any = None) -> str:
    """What the rows were derived from: the file's sha256; for a hub set its commit and the rows read."""
    if source.format == "generated":
        return digest("generated-source", {"uri": source.uri})
    if source.format != "hub":
        return file_digest(source.uri, filesystem)
    body = digest_rows("hub-rows", ({"line": row.line, "raw": row.raw} for row in rows))
    return digest("hub-source", {"revision": source.revision, "split": source.split, "subset": source.subset, "rows": body})
