"""What a reward model says of pairs it never learnt from: item by item, with slices and the baselines beside it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from include.domain.canonical import digest
from include.runtime.job import Job
from include.runtime.reward_stats import RewardNormaliser
from include.training.losses import bradley_terry, pair_credit
from include.training.token_pairs import TokenPair

MEASUREMENTS = "measurements.json"
SUITE = "preference_holdout"


@dataclass(frozen=True)
class PairScores:
    """Raw scores of chosen and rejected answers, pair by pair."""

    chosen: Sequence[float]
    rejected: Sequence[float]

    @property
    def credit(self) -> list[float]:
        """1 where the chosen answer has the greater score, 0 where the rejected has, ½ at a draw."""
        return credit(self.chosen, self.rejected)


def credit(chosen: Sequence[float], rejected: Sequence[float]) -> list[float]:
    return pair_credit(torch.tensor(chosen, dtype=torch.float64), torch.tensor(rejected, dtype=torch.float64)).tolist()


def validation_accuracy(scores: PairScores) -> dict[str, float]:
    """Accuracy, Bradley-Terry loss and margin of pairs, each a mean over them."""
    chosen, rejected = (torch.tensor(side, dtype=torch.float64) for side in (scores.chosen, scores.rejected))
    return {
        "accuracy": math.fsum(scores.credit) / len(scores.chosen),
        "loss": float(bradley_terry(chosen, rejected).mean()),
        "margin": float((chosen - rejected).mean()),
    }


def write_measurements(
    job: Job, folder: Path, pairs: Sequence[TokenPair], scores: PairScores, normaliser: RewardNormaliser
) -> dict[str, float]:
    """Writes measurements.json of the hold-out pairs; gives flat figures for the report ({} without any pair)."""
    lengths = [float(p.chosen_tokens) for p in pairs], [float(p.rejected_tokens) for p in pairs]
    margins = [normaliser.normalise(a) - normaliser.normalise(b) for a, b in zip(scores.chosen, scores.rejected, strict=True)]
    values: Mapping[str, Sequence[float]] = {
        "pair_accuracy": scores.credit,
        "longer_wins": credit(*lengths),
        "shorter_wins": credit(lengths[1], lengths[0]),
        "chosen_tokens": lengths[0],
        "rejected_tokens": lengths[1],
        "margin": margins,
    }
    identity = _identity(job)
    rows = [{**identity, "metric": metric, "items": _items(pairs, of_metric)} for metric, of_metric in values.items()]
    body = {"schema": "align/measurements/v1", "rows": rows, "latency": []}
    (folder / MEASUREMENTS).write_text(json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    return _figures(pairs, values) if pairs else {}


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


def _figures(pairs: Sequence[TokenPair], values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Means over all pairs, and accuracy by length and by origin."""
    means = {name: math.fsum(of_metric) / len(pairs) for name, of_metric in values.items()}
    figures = {"accuracy": means["pair_accuracy"], **{name: means[name] for name in ("longer_wins", "shorter_wins", "margin")}}
    by_length = _by(pairs, values["pair_accuracy"], lambda pair: pair.all_slices["length"])
    by_origin = _by(pairs, values["pair_accuracy"], lambda pair: pair.slices["origin"].split(":")[0])
    return figures | {f"accuracy_{name}": value for name, value in {**by_length, **by_origin}.items()}


def _by(pairs: Sequence[TokenPair], values: Sequence[float], name: Callable[[TokenPair], str]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for pair, value in zip(pairs, values, strict=True):
        found.setdefault(name(pair), []).append(value)
    return {key: math.fsum(of_slice) / len(of_slice) for key, of_slice in sorted(found.items())}
