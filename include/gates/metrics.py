"""What can be gated: each metric, what its values are, which way is better, and the scorer that measures it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """values: ``binary`` (0, 1, or 0.5 for a tie) or ``number``; direction: higher or lower is better.

    scorer: the name under which a run records the digest of the scorer's code (several metrics may share one).
    pairwise: a value is of the candidate's answer beside another deployment's: 1 it was preferred, 0 the other, 0.5 neither.
    """

    values: str
    direction: str
    scorer: str
    pairwise: bool = False


HUMAN_WIN_RATE = "human_win_rate"
JUDGE_WIN_RATE = "judge_win_rate"
"""A model's opinion: never the only thing that must get better."""

METRICS: Mapping[str, Metric] = {
    "exact_match": Metric("binary", "higher", "exact_match"),
    "asked_form": Metric("binary", "higher", "asked_form"),
    "likelihood_choice": Metric("binary", "higher", "likelihood_choice"),
    "bbq_accuracy": Metric("binary", "higher", "bbq_accuracy"),
    "bbq_ambiguous_named": Metric("binary", "lower", "bbq_accuracy"),
    "over_refusal": Metric("binary", "lower", "refusal"),
    "unsafe_refusal": Metric("binary", "higher", "refusal"),
    "length_tokens": Metric("number", "lower", "length_tokens"),
    "latency_s": Metric("number", "lower", "latency_s"),
    "tokens_per_s": Metric("number", "higher", "latency_s"),
    "device_s_per_1k_tokens": Metric("number", "lower", "latency_s"),
    "reward_score": Metric("number", "higher", "reward_score"),
    HUMAN_WIN_RATE: Metric("binary", "higher", HUMAN_WIN_RATE, pairwise=True),
    JUDGE_WIN_RATE: Metric("binary", "higher", JUDGE_WIN_RATE, pairwise=True),
    "pair_accuracy": Metric("binary", "higher", "pair_accuracy"),
    "chosen_tokens": Metric("number", "lower", "pair_accuracy"),
    "rejected_tokens": Metric("number", "lower", "pair_accuracy"),
}
"""The last three are a reward model's own, the others a policy's."""

TIMED = ("latency_s", "tokens_per_s", "device_s_per_1k_tokens")
"""Measured request by request, side by side: of one suite, which a gate need not name. The last is what an answer costs: seconds of all
devices that the deployment runs on, for a thousand tokens written."""

DIMENSION_SCORE = "dimension_score."
"""Before a dimension's name: the points from 1 to 5 that a reward model which has learnt it gives an answer."""


def is_metric(name: str) -> bool:
    """Whether a gate can name it."""
    return name in METRICS or (name.startswith(DIMENSION_SCORE) and name != DIMENSION_SCORE)


def metric_of(name: str) -> Metric:
    """The metric of this name (see `is_metric`)."""
    return Metric("number", "higher", "reward_score") if name.startswith(DIMENSION_SCORE) else METRICS[name]
