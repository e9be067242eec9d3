"""How far Cohen's kappa would move with other prompts: percentile bounds over resamples of groups of items."""

from collections.abc import Hashable, Sequence

import numpy as np

from include.gates.statistics import BOOTSTRAP_RESAMPLES, BOOTSTRAP_SEED


def kappa_bounds(said: Sequence[tuple[Hashable, Hashable]], groups: Sequence[str], alpha: float) -> tuple[float, float] | None:
    """The quantiles `alpha` and 1 - `alpha` of kappa over resamples of groups; what is not defined in one (all said one thing) counts as no
    agreement at all.

    Args:
        said: what two raters said of each item.
        groups: the group of each item; items of one group are one piece of evidence.

    Returns:
        None with fewer than two groups: one tells nothing.
    """
    names, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    if len(names) < 2:
        return None
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(kind for pair in said for kind in pair))}
    cells = np.array([kinds[one] * len(kinds) + kinds[other] for one, other in said])
    source = np.random.RandomState(BOOTSTRAP_SEED)  # its stream is frozen (NEP 19), default_rng's is not
    counts = np.empty((BOOTSTRAP_RESAMPLES, len(kinds) ** 2))
    for resample in counts:
        drawn = np.bincount(source.randint(0, len(names), len(names)), minlength=len(names))
        resample[:] = np.bincount(cells, weights=drawn[codes], minlength=len(kinds) ** 2)
    kappas = _kappas(counts.reshape(BOOTSTRAP_RESAMPLES, len(kinds), len(kinds)))
    lower, upper = np.quantile(kappas, [alpha, 1 - alpha])
    return float(lower), float(upper)


def _kappas(counts: np.ndarray) -> np.ndarray:
    """Kappa of each table (resamples, kinds, kinds)."""
    total = counts.sum(axis=(1, 2))
    observed = np.trace(counts, axis1=1, axis2=2) / total
    chance = (counts.sum(axis=2) * counts.sum(axis=1)).sum(axis=1) / total**2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(chance < 1, (observed - chance) / (1 - chance), 0.0)
