"""Scores by rubric dimension, beside the rows of a preference dataset.

    dimension_scores.parquet     columns pair_id, dimension, score, labels; sorted by the first two

A pair's id is made of its labels' digests, so the scores follow from the content hash; the manifest guards their bytes.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from include.transforms.errors import DatasetError

SCORES = "dimension_scores.parquet"
POOR, EXCELLENT = 1, 5


@dataclass(frozen=True, order=True)
class DimensionScore:
    """How good the chosen answer of a pair is, from 1 (poor) to 5 (excellent): the mean over `labels` labels."""

    pair_id: str
    dimension: str
    score: float
    labels: int

    def __post_init__(self) -> None:
        if not self.dimension or self.labels < 1 or not POOR <= self.score <= EXCELLENT:
            raise DatasetError(
                f"pair {self.pair_id}: {self.labels} labels with a mean score of {self.score} for {self.dimension!r}; a dimension "
                f"has a name, a score from {POOR} to {EXCELLENT} and at least one label"
            )


def in_order(scores: Iterable[DimensionScore], pair_ids: Collection[str]) -> list[DimensionScore]:
    """The scores as they are stored; raises DatasetError when one is of no pair of the dataset, or a pair has two for a dimension."""
    ordered = sorted(scores)
    for score in ordered:
        if score.pair_id not in pair_ids:
            raise DatasetError(f"a score for {score.dimension} is of pair {score.pair_id}, which is not in the dataset")
    for before, score in pairwise(ordered):
        if (before.pair_id, before.dimension) == (score.pair_id, score.dimension):
            raise DatasetError(f"pair {score.pair_id} has two scores for {score.dimension}")
    return ordered


def write_scores(folder: Path, ordered: list[DimensionScore]) -> None:
    """Writes the file; none where there is no score."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not ordered:
        return
    kinds = {"pair_id": pa.string(), "dimension": pa.string(), "score": pa.float64(), "labels": pa.int32()}
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])
    columns = {name: [getattr(score, name) for score in ordered] for name in kinds}
    pq.write_table(pa.table(columns, schema=schema), folder / SCORES, compression="zstd")


def read_scores(folder: Path) -> list[DimensionScore]:
    """All scores of a preference dataset, in their order; [] where its labels gave none.

    Raises:
        DatasetError: the file cannot be read, or holds what is no score.
    """
    import pyarrow.parquet as pq

    path = folder / SCORES
    if not path.is_file():
        return []
    try:
        return [DimensionScore(**row) for row in pq.read_table(path).to_pylist()]
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
