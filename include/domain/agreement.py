"""How far raters agree, and whether a share is what chance would give: plain figures, of which the callers say what they mean."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

Z_95, Z_99 = 1.959963984540054, 2.5758293035489004
"""The normal quantiles of two-sided 95 % and 99 % intervals."""


def raw_agreement(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Share of items on which two raters say the same; None without items."""
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Agreement of two raters beyond chance, (p_o - p_e) / (1 - p_e) (Cohen 1960).

    None without items, and where both raters said one and the same throughout: chance alone would then agree on everything.
    """
    if not pairs:
        return None
    n = len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(first[category] * second[category] for category in first) / n**2
    observed = sum(a == b for a, b in pairs) / n
    return None if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(units: Iterable[Sequence[Hashable]]) -> float | None:
    """Agreement of any number of raters, nominal, with items that not all of them rated (Krippendorff 2011).

    Args:
        units: the ratings of each item; an item with fewer than two ratings tells nothing.

    Returns:
        None where no item has two ratings, or all ratings are of one category.
    """
    rated = [Counter(unit) for unit in units if len(unit) > 1]
    totals: Counter[Hashable] = Counter()
    disagreement = 0.0
    for counts in rated:
        size = counts.total()
        totals.update(counts)
        disagreement += (size**2 - sum(n**2 for n in counts.values())) / (size - 1)
    size = totals.total()
    chance = size**2 - sum(n**2 for n in totals.values())
    return 1 - (size - 1) * disagreement / chance if chance else None


def wilson(successes: int, trials: int, z: float = Z_99) -> tuple[float, float]:
    """Wilson's interval of a share (Wilson 1927), by default at 99 %.

    Raises:
        ValueError: no trial, or more successes than trials.
    """
    if not 0 <= successes <= trials or not trials:
        raise ValueError(f"{successes} of {trials} is no share")
    share, square = successes / trials, z * z / trials
    middle, half = share + square / 2, z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return (middle - half) / (1 + square), (middle + half) / (1 + square)


def strict_majority(votes: Sequence[str]) -> str | None:
    """What more than half of the votes say; None where nothing has so many, or nobody voted."""
    winner, most = max(Counter(votes).items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return winner if 2 * most > len(votes) else None


def falls_short(part: int, of: int, least_share: float, least_of: int) -> bool:
    """Whether a share lies below what is asked for, once there are enough to judge by."""
    return of >= least_of and part < least_share * of


def one_sided(interval: tuple[float, float] | None) -> bool:
    """Whether a half is outside of the interval; without one nothing is known, and nothing said."""
    return interval is not None and not interval[0] <= 0.5 <= interval[1]
