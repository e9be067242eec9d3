"""The dataset folder: how rows are stored, and how every program reads them.

    dataset.json                                 what it is: see `DatasetInfo`
    train|validation|holdout|safety_holdout.parquet   columns id, split_group, use, record; sorted by id
    members.parquet                              preference datasets: label_id, label_digest
    dimension_scores.parquet                     those whose labels have scores: see transforms.dimension_scores
    manifest.json                                guards transport; written last

Identity is the content hash over canonical rows, never over Parquet bytes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.canonical import canonical_bytes, digest_rows
from include.domain.manifest import MANIFEST, build_manifest
from include.domain.split import SIDES
from include.transforms.dimension_scores import DimensionScore, in_order, read_scores, write_scores
from include.transforms.errors import DatasetError

if TYPE_CHECKING:
    import datasets

SCHEMA = "align/dataset/v1"
SCHEMA_VERSION = "rows@1"
ROW_KINDS = ("demonstration", "prompt", "pair", "suite")
INFO, MEMBERS = "dataset.json", "members.parquet"
_COLUMNS = ("id", "split_group", "use", "record")
_ROW_GROUP = 10_000


@dataclass(frozen=True)
class Row:
    """One stored row: `record` is the JSON form of a Demonstration, Prompt, PreferencePair or SuiteItem."""

    id: str
    split_group: str
    use: str
    record: Mapping[str, Any]


@dataclass(frozen=True)
class SidedRow:
    """A row and the side it is on, as `write_dataset` takes it."""

    id: str
    side: str
    split_group: str
    use: str
    record: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise DatasetError(f"row {self.id}: side {self.side!r} is none of {', '.join(SIDES)}")


@dataclass(frozen=True)
class DatasetHeader:
    """What the rows alone do not say.

    rows: which record they are, one of ROW_KINDS.
    derived_from: digests of what this was made of (source files, label snapshots, other datasets).
    notes: anything else worth keeping (counts of dropped rows …); outside the content hash.
    members: label_id → label_digest, for preference datasets.
    dimension_scores: of pairs among the rows, in any order.
    """

    dataset_id: str
    rows: str
    filter_policy_version: str
    derived_from: tuple[str, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    members: Mapping[str, str] | None = None
    dimension_scores: tuple[DimensionScore, ...] = ()

    def __post_init__(self) -> None:
        if self.rows not in ROW_KINDS:
            raise DatasetError(f"dataset {self.dataset_id}: rows {self.rows!r} is none of {', '.join(ROW_KINDS)}")


@dataclass(frozen=True)
class DatasetInfo:
    """dataset.json, and where the folder lies."""

    folder: Path
    dataset_id: str
    rows: str
    content_hash: str
    artifact_digest: str
    filter_policy_version: str
    counts: Mapping[str, int]
    licences: Mapping[str, int]
    origins: Mapping[str, int]
    uses: Mapping[str, int]
    derived_from: tuple[str, ...]
    schema_version: str = SCHEMA_VERSION
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def content_hash(rows: Iterable[SidedRow]) -> str:
    """The identity of a dataset: its rows sorted by id, in canonical form, with side and use."""
    body = ({"id": r.id, "side": r.side, "use": r.use, "record": r.record} for r in sorted(rows, key=lambda r: r.id))
    return digest_rows("dataset", body)


def write_dataset(folder: Path, header: DatasetHeader, rows: Iterable[SidedRow]) -> DatasetInfo:
    """Writes a new dataset folder; `manifest.json` last.

    Raises:
        DatasetError: no rows at all, an id that stands twice, a score of no row, or a folder that already holds something.
        RecordError: a record without a canonical form.
    """
    ordered = sorted(rows, key=lambda row: row.id)
    _check(header, ordered, folder)
    scores = in_order(header.dimension_scores, {row.id for row in ordered})
    folder.mkdir(parents=True, exist_ok=True)
    counts = Counter(row.side for row in ordered)
    body = {
        "schema": SCHEMA,
        "dataset_id": header.dataset_id,
        "rows": header.rows,
        "content_hash": content_hash(ordered),
        "schema_version": SCHEMA_VERSION,
        "filter_policy_version": header.filter_policy_version,
        "counts": {side: counts[side] for side in SIDES if counts[side]},
        "licences": _tally(_licence(row.record) for row in ordered),
        "origins": _tally(_origin(row.record) for row in ordered),
        "uses": _tally(row.use for row in ordered),
        "derived_from": sorted(set(header.derived_from)),
        "notes": dict(header.notes),
    }
    for side in body["counts"]:
        _write_side(folder / f"{side}.parquet", [row for row in ordered if row.side == side])
    if header.members is not None:
        _write_members(folder / MEMBERS, header.members)
    write_scores(folder, scores)
    (folder / INFO).write_bytes(canonical_bytes(body) + b"\n")
    kind = "prompt_set" if header.rows == "prompt" else "dataset"
    manifest = build_manifest(kind, folder, {"dataset_id": header.dataset_id, "content_hash": body["content_hash"]})
    (folder / MANIFEST).write_bytes(canonical_bytes(manifest.to_json()) + b"\n")
    return load_info(folder)


def _check(header: DatasetHeader, ordered: list[SidedRow], folder: Path) -> None:
    if not ordered:
        raise DatasetError(f"dataset {header.dataset_id}: 0 rows; an empty dataset is never written")
    for before, row in pairwise(ordered):
        if before.id == row.id:
            raise DatasetError(f"dataset {header.dataset_id}: id {row.id} stands twice")
    if folder.exists() and any(folder.iterdir()):
        raise DatasetError(f"{folder} is not empty: a dataset is written once, into a new folder")


def _tally(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _licence(record: Mapping[str, Any]) -> str:
    return str(record["licence"] if "licence" in record else record["prompt"]["licence"])


def _origin(record: Mapping[str, Any]) -> str:
    """Where the learned-from text comes from: a pair's candidates, else the source."""
    if "chosen" in record:
        both = [record["chosen"]["origin"], record["rejected"]["origin"]]
        return next((str(origin) for origin in both if origin != "policy"), "policy")
    return str(record["source"] if "source" in record else record["prompt"]["source"])


def _write_side(path: Path, rows: list[SidedRow]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [getattr(row, name) for row in rows] for name in _COLUMNS[:3]}
    columns["record"] = [canonical_bytes(row.record).decode() for row in rows]
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in _COLUMNS])
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd", row_group_size=_ROW_GROUP)


def _write_members(path: Path, members: Mapping[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = sorted(members)
    table = pa.table({"label_id": pa.array(ids, pa.string()), "label_digest": pa.array([members[i] for i in ids], pa.string())})
    pq.write_table(table, path, compression="zstd")


def read_info(folder: Path) -> dict[str, Any]:
    """dataset.json of the folder, as it is."""
    path = folder / INFO
    try:
        info: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
    if info.get("schema") != SCHEMA:
        raise DatasetError(f"{path} has schema {info.get('schema')!r}, expected {SCHEMA!r}")
    return info


def load_info(folder: Path) -> DatasetInfo:
    """dataset.json and the artifact digest, typed."""
    body = read_info(folder)
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    names = {name: body[name] for name in DatasetInfo.__dataclass_fields__ if name in body}
    names["derived_from"] = tuple(names["derived_from"])
    return DatasetInfo(folder=folder, artifact_digest=manifest["digest"], **names)


def iter_rows(folder: Path, side: str) -> Iterator[Row]:
    """The rows of one side in order of id, without holding all of them; a side without rows gives none.

    Raises:
        DatasetError: an unknown side, or a file that is missing or holds another number of rows than dataset.json says.
    """
    import pyarrow.parquet as pq

    path, expected = _side_file(folder, side)
    seen = 0
    if expected:
        for batch in pq.ParquetFile(path).iter_batches(columns=list(_COLUMNS)):
            for item in batch.to_pylist():
                seen += 1
                yield Row(item["id"], item["split_group"], item["use"], json.loads(item["record"]))
    if seen != expected:
        raise DatasetError(f"{path} holds {seen} rows, {INFO} says {expected}")


def read_rows(folder: Path, side: str) -> list[Row]:
    """All rows of one side, in order of id (see `iter_rows`)."""
    return list(iter_rows(folder, side))


def read_suite(folder: Path) -> list[Row]:
    """All items of an evaluation suite: its hold-out and its safety hold-out, in order of id."""
    return sorted((row for side in ("holdout", "safety_holdout") for row in iter_rows(folder, side)), key=lambda row: row.id)


def read_members(folder: Path) -> dict[str, str]:
    """label_id → label_digest of a preference dataset; empty where the dataset has no labels."""
    import pyarrow.parquet as pq

    path = folder / MEMBERS
    if not path.is_file():
        return {}
    return {item["label_id"]: item["label_digest"] for item in pq.read_table(path).to_pylist()}


def open_side(folder: Path, side: str, cache: Path) -> "datasets.Dataset":
    """One side as a memory-mapped `datasets.Dataset` with columns id, split_group, use, record (JSON text).

    Args:
        cache: where `datasets` keeps its Arrow copy; whoever made the folder removes it.
    """
    from datasets import Dataset

    path, expected = _side_file(folder, side)
    if not expected:
        raise DatasetError(f"{folder} has no rows on side {side!r}; it has {read_info(folder)['counts']}")
    opened = Dataset.from_parquet(str(path), cache_dir=str(cache), keep_in_memory=False)
    if len(opened) != expected:
        raise DatasetError(f"{path} holds {len(opened)} rows, {INFO} says {expected}")
    return opened


def _side_file(folder: Path, side: str) -> tuple[Path, int]:
    if side not in SIDES:
        raise DatasetError(f"side {side!r} is none of {', '.join(SIDES)}")
    path, expected = folder / f"{side}.parquet", int(read_info(folder)["counts"].get(side, 0))
    if expected and not path.is_file():
        raise DatasetError(f"{path} is missing, {INFO} says {expected} rows")
    return path, expected


def verify_dataset(folder: Path) -> str:
    """Computes the content hash anew from what is stored and returns it; raises DatasetError when dataset.json says another,
    or a score is of no pair."""
    rows = [SidedRow(r.id, side, r.split_group, r.use, r.record) for side in SIDES for r in iter_rows(folder, side)]
    seen, stated = content_hash(rows), read_info(folder)["content_hash"]
    if seen != stated:
        raise DatasetError(f"{folder}: its rows give {seen}, {INFO} says {stated}")
    in_order(read_scores(folder), {row.id for row in rows})
    return seen
