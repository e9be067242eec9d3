"""Scores by rubric dimension: those of labels that agree with the decision, beside the pairs, the same bytes every time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from include.data.dimension_scores import scores_of
from include.data.preferences import PreferenceResult, PreferenceSettings, PreferenceSource, build_preferences
from include.domain.errors import IntegrityError
from include.domain.manifest import MANIFEST, Manifest, verify_files
from include.domain.records import Label, PreferencePair
from include.runtime.files import read_json
from include.transforms.datasets_io import DatasetHeader, SidedRow, read_rows, verify_dataset, write_dataset
from include.transforms.dimension_scores import SCORES, DimensionScore, read_scores
from include.transforms.errors import DatasetError

from .labels import RUBRIC, SPLIT, candidate, label, prompts_on

PROMPTS = [*prompts_on("train", 5)[:4], *prompts_on("holdout", 2), prompts_on("train", 5)[4]]
BOTH = [(candidate(p, f"first {p.prompt_id}"), candidate(p, f"second {p.prompt_id}")) for p in PROMPTS]


def _label(at: int, verdict: str, name: str, **scores: int) -> Label:
    return label(*BOTH[at], verdict, label_id=f"{at}-{name}", annotator_id=name, dimension_scores=scores)


SCORED = [
    *(_label(0, "A", "one", clarity=4, factuality=2), _label(0, "A", "two", clarity=5), _label(0, "B", "three", clarity=1, safety=1)),
    *(_label(1, "B", "one", clarity=3), _label(2, "A", "one"), _label(3, "tie", "one", clarity=5)),
    *(_label(4, "A", "one", factuality=5), _label(5, "B", "one")),
]
"""Prompt 0 has three opinions, 3 is a tie, 4 and 5 are held out; 2 and 5 have no scores."""
UNSCORED = [replace(each, dimension_scores={}) for each in SCORED]


def _build(root: Path, labels: Sequence[Label], imported: Sequence[Path] = (), **changed: Any) -> PreferenceResult:
    candidates = [each for both in BOTH for each in both]
    prompts = {p.prompt_id: p for p in PROMPTS}
    source = PreferenceSource("sha256:" + "5" * 64, labels, candidates, prompts, {"batch-1": "train"})
    settings: dict[str, Any] = {"dataset_id": "preferences", "rubric_versions": (RUBRIC,), "split": SPLIT, **changed}
    return build_preferences(root, source, PreferenceSettings(**settings), imported)


def _pairs(result: PreferenceResult) -> dict[str, int]:
    """pair id → number of its prompt."""
    numbers = {p.prompt_id: at for at, p in enumerate(PROMPTS)}
    rows = [row for side in ("train", "holdout") for row in read_rows(result.info.folder, side)]
    return {row.id: numbers[PreferencePair.from_json(row.record).prompt.prompt_id] for row in rows}


def _manifest(folder: Path) -> Manifest:
    return Manifest.from_json(read_json(folder / MANIFEST))


def test_the_mean_of_labels_that_agree_with_the_decision_is_kept_and_what_the_others_scored_is_not(tmp_path: Path) -> None:
    result = _build(tmp_path, SCORED)
    pairs = _pairs(result)
    found = {(pairs[each.pair_id], each.dimension): (each.score, each.labels) for each in read_scores(result.info.folder)}
    assert found == {(0, "clarity"): (4.5, 2), (0, "factuality"): (2.0, 1), (1, "clarity"): (3.0, 1), (4, "factuality"): (5.0, 1)}
    assert sorted(pairs.values()) == [0, 1, 2, 4, 5]
    assert dict(result.scored) == {"clarity": 2, "factuality": 2}
    assert result.info.notes["scored_pairs"] == {"clarity": 2, "factuality": 2}
    assert "pairs with scores: clarity 2, factuality 2" in result.text


def test_it_is_sorted_and_the_same_bytes_whatever_the_order_of_labels(tmp_path: Path) -> None:
    first, second = _build(tmp_path / "a", SCORED), _build(tmp_path / "b", SCORED[::-1])
    assert (first.info.content_hash, first.info.artifact_digest) == (second.info.content_hash, second.info.artifact_digest)
    assert (first.info.folder / SCORES).read_bytes() == (second.info.folder / SCORES).read_bytes()
    keys = [(row["pair_id"], row["dimension"]) for row in pq.read_table(first.info.folder / SCORES).to_pylist()]
    assert keys == sorted(keys)


def test_a_label_that_scores_otherwise_is_another_dataset(tmp_path: Path) -> None:
    changed = [_label(0, "A", "one", clarity=3, factuality=2), *SCORED[1:]]
    assert _build(tmp_path / "a", SCORED).info.content_hash != _build(tmp_path / "b", changed).info.content_hash


def test_without_scores_a_dataset_is_what_it_was(tmp_path: Path) -> None:
    result = _build(tmp_path, UNSCORED)
    files = {path.name for path in result.info.folder.iterdir()}
    assert files == {"dataset.json", "manifest.json", "members.parquet", "train.parquet", "holdout.parquet"}
    assert set(result.info.notes) == {"snapshot", "policy", "not_in_it"}
    assert read_scores(result.info.folder) == []
    assert "scores" not in result.text


def test_the_manifest_guards_the_scores(tmp_path: Path) -> None:
    folder = _build(tmp_path, SCORED).info.folder
    verify_files(_manifest(folder), folder)
    (folder / SCORES).write_bytes((folder / SCORES).read_bytes() + b"x")
    with pytest.raises(IntegrityError, match=SCORES):
        verify_files(_manifest(folder), folder)
    (folder / SCORES).unlink()
    with pytest.raises(IntegrityError, match=f"{SCORES} is missing"):
        verify_files(_manifest(folder), folder)


def test_pairs_of_another_dataset_bring_their_scores_along(tmp_path: Path) -> None:
    other = _build(tmp_path / "other", SCORED)
    own = [_label(6, "A", "one")]
    result = _build(tmp_path / "both", own, [other.info.folder], max_imported_share=1.0)
    assert result.info.total == 6
    assert read_scores(result.info.folder) == read_scores(other.info.folder)
    train = {row.id for row in read_rows(other.info.folder, "train")}
    held = _build(tmp_path / "held", own, [other.info.folder], max_imported_share=0.0)
    assert read_scores(held.info.folder) == [each for each in read_scores(other.info.folder) if each.pair_id not in train]


def test_scores_that_are_none_are_refused(tmp_path: Path) -> None:
    row = SidedRow("a", "train", "g", "preference", {"licence": "CC0-1.0", "source": "made"})

    def written(*scores: DimensionScore) -> None:
        write_dataset(tmp_path / "x", DatasetHeader("d", "pair", "f@1", dimension_scores=scores), [row])

    with pytest.raises(DatasetError, match="of pair b, which is not in the dataset"):
        written(DimensionScore("b", "clarity", 3, 1))
    with pytest.raises(DatasetError, match="pair a has two scores for clarity"):
        written(DimensionScore("a", "clarity", 3, 1), DimensionScore("a", "clarity", 4, 1))
    for body in (
        ("a", "clarity", 5.5, 1),
        ("a", "clarity", 0.5, 1),
        ("a", "clarity", 3, 0),
        ("a", "", 3, 1),
        ("a", "clarity", float("nan"), 1),
    ):
        with pytest.raises(DatasetError, match="a score from 1 to 5"):
            DimensionScore(*body)
    assert not (tmp_path / "x").exists()


def test_a_file_that_is_no_table_of_scores_is_named(tmp_path: Path) -> None:
    folder = _build(tmp_path, SCORED).info.folder
    assert verify_dataset(folder)
    (folder / SCORES).write_bytes(b"nothing")
    with pytest.raises(DatasetError, match=f"{SCORES} cannot be read"):
        read_scores(folder)


def test_a_decision_whose_labels_have_no_scores_has_none() -> None:
    from include.data.aggregate import aggregate

    (decision,) = aggregate([_label(2, "A", "one")]).decisions
    assert scores_of("pair", decision) == []
