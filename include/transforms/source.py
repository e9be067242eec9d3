"""Where rows come from: one description for files, hub sets and buckets, and the one function that opens it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from include.domain.canonical import digest, digest_rows
from include.transforms.errors import SourceError
from include.transforms.hub import read_hub
from include.transforms.readers import Quarantined, RawRow, file_digest, read_delimited, read_json_array, read_jsonl, read_parquet

FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "hub", "generated")


@dataclass(frozen=True)
class Source:
    """One source.

    name: what it is called in records (`source` of each row that names none itself).
    uri: a path (of the filesystem handed in, if one is), a hub id, or a local folder laid out like a hub repository.
    licence, usage_basis: of each row that names none itself.
    fields: what we call it → the column that holds it, where a file has names of its own.
    columns: names of the columns, for a CSV or TSV without a header.
    subset, split, revision: for a hub set.
    """

    name: str
    uri: str
    format: str
    licence: str
    usage_basis: str = "licence"
    fields: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    subset: str | None = None
    split: str = "train"
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise SourceError(f"source {self.name}: format {self.format!r} is none of {', '.join(FORMATS)}")


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
