"""What a collection of preferences was like, in MLflow beside the runs that learn from it: agreement, ties, freshness."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from include.domain.errors import AlignmentError
from include.flows import services

if TYPE_CHECKING:
    from include.data.agreement import Agreement

log = logging.getLogger(__name__)


def collection_figures(found: "Agreement", progress: Mapping[str, Any], now: datetime) -> dict[str, float]:
    """Flat figures of a snapshot; what is not defined is left out. Ages in hours."""
    ages = {
        f"{name}_label_hours": (now - datetime.fromisoformat(progress[f"{name}_label_at"])).total_seconds() / 3600
        for name in ("freshest", "oldest")
        if progress.get(f"{name}_label_at")
    }
    told = {
        "labels": progress["labels"]["current"],
        "annotators": found.annotators,
        "agreement_raw": found.raw,
        "kappa": found.kappa,
        "alpha": found.alpha,
        "left_win_share": found.left_win_share,
        **{name: progress.get(name) for name in ("decided_share", "tie_share", "both_bad_share", "cannot_judge_share")},
        **ages,
    }
    return {name: float(value) for name, value in told.items() if value is not None}


def show_collection(batch_id: str, digest: str, found: "Agreement", progress: Mapping[str, Any]) -> None:
    """One run a snapshot, whoever collects it and however often. A tracker that is away is said, and stops no collection."""
    figures = collection_figures(found, progress, datetime.now(UTC))
    tags = {"align.stage": "collect", "align.batch": batch_id, "align.snapshot": digest}
    try:
        services.registry().show(f"collection:{digest}", f"preferences {batch_id}", figures, tags)
    except (AlignmentError, OSError) as error:
        log.warning("MLflow does not show the figures of batch %s: %s", batch_id, error)
