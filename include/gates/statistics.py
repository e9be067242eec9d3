"""Intervals for gates: paired by item, clustered by prompt group, the same numbers on every run.

Means and differences: a closed form. The variance is cluster-robust, G/(G-1) · Σ_g (Σ_{i in g} (x_i - x̄))² / n², with
Student's t on G - 1 degrees of freedom (Cameron and Miller, "A Practitioner's Guide to Cluster-Robust Inference", Journal
of Human Resources 50, 2015). Binary values get the pseudo-observations of Agresti and Coull (two of each, The American Statistician
52, 1998) and of Agresti and Min for paired differences (half an observation in each cell, Statistics in Medicine 24,
2005): without them, 20 items without one difference would count as certainty.

Ratios: a bootstrap over groups, both sides of a pair drawn together, percentile bounds (Davison and Hinkley, "Bootstrap
Methods and their Application", 1997), from a generator whose stream NumPy keeps for ever.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

BOOTSTRAP_RESAMPLES = 2000
BOOTSTRAP_SEED = 20240229
_PAIRED_PSEUDO = ((1.0, 0.5), (-1.0, 0.5), (0.0, 1.0))
_SINGLE_PSEUDO = ((1.0, 2.0), (0.0, 2.0))


@dataclass(frozen=True)
class Interval:
    """An estimate between two one-sided bounds, each of level 1 - alpha; n items in so many groups."""

    estimate: float
    lower: float
    upper: float
    n: int
    groups: int

    def negated(self) -> "Interval":
        """The interval of minus the quantity."""
        return Interval(-self.estimate, -self.upper, -self.lower, self.n, self.groups)


def mean_interval(values: Sequence[float], groups: Sequence[str], alpha: float, *, binary: bool) -> Interval:
    """The mean of one column; binary: values within [0, 1]."""
    return _clustered(np.asarray(values, float), groups, alpha, _SINGLE_PSEUDO if binary else ())


def difference_interval(ours: Sequence[float], theirs: Sequence[float], groups: Sequence[str], alpha: float, *, binary: bool) -> Interval:
    """The mean of ours - theirs, item by item."""
    return _clustered(np.asarray(ours, float) - np.asarray(theirs, float), groups, alpha, _PAIRED_PSEUDO if binary else ())


def _clustered(values: np.ndarray, groups: Sequence[str], alpha: float, pseudo: Sequence[tuple[float, float]]) -> Interval:
    n, (codes, count) = len(values), _codes(groups)
    estimate = float(values.mean()) if n else math.nan
    if count < 2:
        return Interval(estimate, -math.inf, math.inf, n, count)
    weight = n + sum(w for _, w in pseudo)
    centre = (values.sum() + sum(x * w for x, w in pseudo)) / weight
    residuals = np.bincount(codes, weights=values - centre, minlength=count)
    squares = float(residuals @ residuals) + sum(w * (x - centre) ** 2 for x, w in pseudo)
    spread = math.sqrt(squares * count / (count - 1)) / weight * float(stats.t.ppf(1 - alpha, count - 1))
    return Interval(estimate, float(centre) - spread, float(centre) + spread, n, count)


def _codes(groups: Sequence[str]) -> tuple[np.ndarray, int]:
    names, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    return codes, len(names)


def ratio_interval(ours: Sequence[float], theirs: Sequence[float], groups: Sequence[str], alpha: float, statistic: str) -> Interval:
    """Mean or median of ours over that of theirs. The baseline must be above 0 throughout: see `ratio_is_defined`."""
    top, bottom = np.asarray(ours, float), np.asarray(theirs, float)
    middle = np.median if statistic == "median" else np.mean
    codes, count = _codes(groups)
    estimate = float(middle(top) / middle(bottom))
    if count < 2:
        return Interval(estimate, 0.0, math.inf, len(top), count)
    source = np.random.RandomState(BOOTSTRAP_SEED)  # its stream is frozen (NEP 19), default_rng's is not
    draws = source.randint(0, count, (BOOTSTRAP_RESAMPLES, count))
    drawn = _ratios_of_medians(top, bottom, codes, draws) if statistic == "median" else _ratios_of_means(top, bottom, codes, draws)
    lower, upper = np.quantile(drawn, [alpha, 1 - alpha])
    return Interval(estimate, float(lower), float(upper), len(top), count)


def _ratios_of_means(top: np.ndarray, bottom: np.ndarray, codes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Of each resample of groups; both means are over the same items, so their ratio is that of the sums."""
    sums = [np.bincount(codes, weights=column, minlength=draws.shape[1])[draws].sum(axis=1) for column in (top, bottom)]
    return np.asarray(sums[0] / sums[1])


def _ratios_of_medians(top: np.ndarray, bottom: np.ndarray, codes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    members = [np.flatnonzero(codes == g) for g in range(draws.shape[1])]
    if len(members) == len(top):
        alone = np.concatenate(members)[draws]
        return np.asarray(np.median(top[alone], axis=1) / np.median(bottom[alone], axis=1))
    rows = (np.concatenate([members[g] for g in drawn]) for drawn in draws)
    return np.array([np.median(top[r]) / np.median(bottom[r]) for r in rows])


def ratio_is_defined(theirs: Sequence[float]) -> bool:
    """Whether every baseline value is above 0, so that no resample divides by nothing."""
    return len(theirs) > 0 and min(theirs) > 0
