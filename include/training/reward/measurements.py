"""What a reward model says of pairs it never learnt from: item by item, with slices and the baselines beside it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from include.domain.canonical import digest
from include.runtime.job import Job
from include.training.pairs.rows import TokenPair
from include.training.reward.dimension_report import HeldDimension
from include.training.reward.pair_scores import MemberScores, credit, together

MEASUREMENTS = "measurements.json"
SUITE = "preference_holdout"


def write_measurements(
    job: Job, folder: Path, pairs: Sequence[TokenPair], members: Sequence[MemberScores], by_dimension: Sequence[HeldDimension] = ()
) -> None:
    """Writes measurements.json of the hold-out pairs: of the members' mean and, where there are several, of their minimum.

    Of each dimension the absolute error in points, and the baseline's, on the pairs that have a score: dimension_error.<name>,
    dimension_baseline_error.<name>.
    """
    lengths = [float(p.chosen_tokens) for p in pairs], [float(p.rejected_tokens) for p in pairs]
    mean = together(members, "held", "mean")
    values: dict[str, Sequence[float]] = {
        "pair_accuracy": mean.credit,
        "longer_wins": credit(*lengths),
        "shorter_wins": credit(lengths[1], lengths[0]),
        "chosen_tokens": lengths[0],
        "rejected_tokens": lengths[1],
        "margin": mean.margins,
    }
    if len(members) > 1:
        least = together(members, "held", "minimum")
        values |= {"pair_accuracy_minimum": least.credit, "margin_minimum": least.margins}
        values |= {"score_mean": mean.chosen, "score_minimum": least.chosen}
    identity = _identity(job)
    rows = [{**identity, "metric": metric, "items": _items(pairs, of_metric)} for metric, of_metric in values.items()]
    for held in by_dimension:
        for metric, errors in (("dimension_error", held.errors), ("dimension_baseline_error", held.usual_errors)):
            rows.append({**identity, "metric": f"{metric}.{held.name}", "items": _items(held.pairs, errors)})
    body = {"schema": "align/measurements/v1", "rows": rows, "latency": []}
    (folder / MEASUREMENTS).write_text(json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")


def _identity(job: Job) -> dict[str, Any]:
    """What the values were measured with; two are compared only where these are equal."""
    precision = job.config.text("precision", default="fp32")
    attention = job.config.text("attention", default="sdpa")
    return {
        "role": "reward_model",
        "model": job.outputs.manifests["reward_model"].digest,
        "deployment": None,
        "suite": SUITE,
        "suite_digest": job.input_digest("preferences"),
        "scorer": job.spec.code_revision,
        "generation": digest("generation", {"max_length": job.config.positive("max_length")}),
        "backend": digest("backend", {"engine": "transformers", "precision": precision, "attention": attention}),
    }


def _items(pairs: Sequence[TokenPair], values: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"id": pair.pair_id, "group": pair.group, "value": value, "slices": pair.all_slices}
        for pair, value in zip(pairs, values, strict=True)
    ]
