"""Scores by rubric dimension: from the labels of a decision, or brought along by pairs of another dataset.

An annotator scores the better answer alone. So only labels that agree with the decision speak of the chosen answer; what the
others scored is the rejected one, of which nothing is kept.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from include.data.aggregate import Decision
from include.transforms.dimension_scores import DimensionScore, read_scores


def scores_of(pair_id: str, decision: Decision) -> list[DimensionScore]:
    """A mean for each dimension that at least one agreeing label scored."""
    given: dict[str, list[int]] = defaultdict(list)
    for label in decision.labels:
        if label.chosen_candidate_id == decision.chosen_id:
            for dimension, score in label.dimension_scores.items():
                given[dimension].append(score)
    return [DimensionScore(pair_id, dimension, sum(of) / len(of), len(of)) for dimension, of in sorted(given.items())]


def brought_scores(folders: Sequence[Path], kept: Collection[str]) -> list[DimensionScore]:
    """Those of the pairs in `kept`, each once, out of other pair datasets."""
    found = {(score.pair_id, score.dimension): score for folder in folders for score in read_scores(folder) if score.pair_id in kept}
    return list(found.values())


def scored_pairs(scores: Iterable[DimensionScore]) -> dict[str, int]:
    """dimension → pairs that have a score for it."""
    counts: dict[str, int] = defaultdict(int)
    for score in scores:
        counts[score.dimension] += 1
    return dict(sorted(counts.items()))
