"""Which examples a step learns from: one data set or a mixture of several, as they come or grouped by length.

All of it is a function of settings, seeds and the step alone: a resumed run, or one on another number of processes, sees
the same examples at the same step.
"""

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.errors import SpecError
from include.runtime.settings import Settings
from include.training.examples.batching import epoch_order, position, rows_at

OWN = "demonstrations"
"""The run's own data set, the one every run has."""


@dataclass(frozen=True)
class Part:
    """One data set of a mixture. `max_epochs`: how often its rows may be seen at most; None: without limit."""

    name: str
    rows: int
    weight: float = 1.0
    max_epochs: float | None = None

    @property
    def cap(self) -> float:
        """Examples it may give to the whole run."""
        return float("inf") if self.max_epochs is None else int(self.max_epochs * self.rows)


class ExampleOrder:
    """Examples are numbered over all parts, in the order of the parts; `of_step` gives the numbers of one update."""

    def __init__(self, parts: Sequence[Part], steps: int, global_batch: int, seed: int, mixture_seed: int | None = None) -> None:
        self.parts = tuple(parts)
        self.steps = steps
        self.global_batch = global_batch
        self.seed = seed
        self._first = [sum(part.rows for part in self.parts[:i]) for i in range(len(self.parts))]
        self._mixture_seed = mixture_seed
        self._turns = None if mixture_seed is None else mixture_turns(self.parts, steps * global_batch)
        self._window: tuple[int, list[list[int]]] = (-1, [])

    def of_step(self, step: int) -> list[int]:
        """The examples of update `step` (from 0), in the order in which they are drawn."""
        if self._turns is None:
            return rows_at(step, self.global_batch, self.parts[0].rows, self.seed)
        chosen = []
        for at in range(step * self.global_batch, (step + 1) * self.global_batch):
            part, use = self._turns[0][at], self._turns[1][at]
            epoch, offset = position(use, self.parts[part].rows)
            name = f"{self._mixture_seed}/{self.parts[part].name}"
            chosen.append(self._first[part] + epoch_order(name, epoch, self.parts[part].rows)[offset])
        return chosen

    def of_step_by_length(self, step: int, window: int, length_of: Callable[[int], int]) -> list[int]:
        """The same with the examples of `window` updates sorted by length and dealt out anew, in a shuffled order of updates."""
        number = step // window
        if self._window[0] != number:
            first, end = number * window, min((number + 1) * window, self.steps)
            drawn = [example for at in range(first, end) for example in self.of_step(at)]
            drawn.sort(key=lambda example: (length_of(example), example))
            batches = [drawn[at : at + self.global_batch] for at in range(0, len(drawn), self.global_batch)]
            random.Random(f"{self.seed}/window/{number}").shuffle(batches)  # noqa: S311 - an order, not a secret
            self._window = (number, batches)
        return self._window[1][step - number * window]

    def shares(self) -> dict[str, float]:
        """Share of each part in the whole run and how often its rows are seen; {} without a mixture."""
        if self._turns is None:
            return {}
        taken = [self._turns[0].count(i) for i in range(len(self.parts))]
        total = sum(taken)
        shares = {f"share_{part.name}": count / total for part, count in zip(self.parts, taken, strict=True)}
        epochs = {f"epochs_{part.name}": count / part.rows for part, count in zip(self.parts, taken, strict=True)}
        return shares | epochs


def mixture_turns(parts: Sequence[Part], total: int) -> "tuple[array[int], array[int]]":
    """(part of each of `total` examples, how many of that part came before it).

    The part that lags most behind its weight comes next, so every stretch has the wanted shares; one that has given all
    it may is left out, and the others share its weight.

    Raises:
        SpecError: all parts together may not give so many examples.
    """
    if sum(part.cap for part in parts) < total:
        listed = ", ".join(f"{part.name} {part.cap:g}" for part in parts)
        raise SpecError(f"config.mixture: {total} examples are needed, its caps allow {listed}. Raise max_epochs or ask for fewer steps")
    which, use = array("B"), array("Q")
    taken, credit = [0] * len(parts), [0.0] * len(parts)
    for _ in range(total):
        open_parts = [i for i, part in enumerate(parts) if taken[i] < part.cap]
        whole = sum(parts[i].weight for i in open_parts)
        for i in open_parts:
            credit[i] += parts[i].weight / whole
        chosen = max(open_parts, key=lambda i: (credit[i], -i))
        credit[chosen] -= 1.0
        which.append(chosen)
        use.append(taken[chosen])
        taken[chosen] += 1
    return which, use


def mixture_parts(config: Settings, rows: Mapping[str, int]) -> tuple[list[Part], int]:
    """Parts and seed of config.mixture.

    Args:
        rows: input → number of its rows.

    Raises:
        SpecError: an input that the mixture does not name, one that the run has not, or a weight that is no weight.
    """
    mixture = config.section("mixture")
    mixture.only("parts", "seed")
    listed = mixture.values.get("parts")
    if not isinstance(listed, (list, tuple)) or not listed or len(listed) > 255:
        raise SpecError(f"config.mixture.parts: expected 1 to 255 parts, each with input, weight and max_epochs, got {listed!r}")
    parts = [_part(item, f"config.mixture.parts[{i}]", rows) for i, item in enumerate(listed)]
    names = [part.name for part in parts]
    if sorted(names) != sorted(rows):
        raise SpecError(f"config.mixture names {', '.join(names)}; the run's data sets are {', '.join(sorted(rows))}, each wanted once")
    return parts, mixture.integer("seed", 0)


def _part(item: Any, where: str, rows: Mapping[str, int]) -> Part:
    if not isinstance(item, Mapping):
        raise SpecError(f"{where}: expected input, weight and max_epochs, got {item!r}")
    given = Settings(item, where)
    given.only("input", "weight", "max_epochs")
    name, weight = given.text("input", sorted(rows)), given.number("weight", 1.0)
    cap = given.number("max_epochs") if "max_epochs" in given else None
    if weight <= 0 or (cap is not None and cap <= 0):
        raise SpecError(f"{where}: weight and max_epochs must be above 0, got {weight:g} and {cap}")
    if rows[name] == 0:
        raise SpecError(f"{where}: {name} has no row to learn from")
    return Part(name, rows[name], weight, cap)
