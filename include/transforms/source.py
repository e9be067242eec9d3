"""Where rows come from: one description for files, hub sets and buckets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from include.transforms.errors import SourceError

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
