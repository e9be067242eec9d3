"""Two answers side by side: what people said of each pair becomes the candidate's share of wins, item by item."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from include.domain.canonical import digest

WON, HALF, LOST = 1.0, 0.5, 0.0
UNDECIDED = ("tie", "both_bad")
"""Neither answer won: half a win for each."""


def pairwise_scorer(scorer: str, opponent: str) -> str:
    """The scorer of a comparison with the deployment `opponent`: beside another one it is another measurement."""
    return digest("pairwise-scorer", {"scorer": scorer, "against": opponent})


def sides(seed: int, candidate: str, opponent: str, item_ids: Iterable[str]) -> dict[str, str]:
    """item → the side (A or B) of the candidate's answer: a coin of its own for each, the same for the same seed and deployments."""
    drawn = {item: int(digest("panel-side", [seed, candidate, opponent, item])[7:9], 16) for item in item_ids}
    return {item: "AB"[value % 2] for item, value in drawn.items()}


def share_of_wins(verdicts: Sequence[str], ours: str) -> float | None:
    """The candidate's share of an item's verdicts (A, B, tie, both_bad, cannot_judge); None where nobody could judge."""
    values = [HALF if verdict in UNDECIDED else WON if verdict == ours else LOST for verdict in verdicts if verdict != "cannot_judge"]
    return sum(values) / len(values) if values else None


def row(identity: Mapping[str, Any], against: Mapping[str, str], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of measurements.json for a pairwise metric.

    Args:
        identity: metric, model, deployment, suite, suite_digest, scorer, generation and backend of the candidate.
        against: role and deployment of the other answers.
        items: {id, group, value, slices} of each.
    """
    scorer = pairwise_scorer(str(identity["scorer"]), against["deployment"])
    return {**identity, "role": "candidate", "against": against["role"], "scorer": scorer, "items": [dict(item) for item in items]}
