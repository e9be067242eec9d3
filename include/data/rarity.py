"""Which items of suites belong to the long tail: how rare what they ask is among the prompts that are trained on.

Found when the data are built, from the training rows of that very build, and stored as the items' own slice `rarity` (`tail` or
`common`): part of the suite's content hash, so that two measurements of one suite always mean the same items.
"""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from include.data.errors import DataError
from include.data.filtering import Filtered, Placed
from include.domain.split import normalise_prompt
from include.settings.recipes import LongTail
from include.transforms.draft import Draft

KEY = "rarity"
TAIL, COMMON = "tail", "common"
_WORD = re.compile(r"[^\W\d_]+|\d+")


def mark_rarity(filtered: Sequence[Filtered], settings: LongTail) -> dict[str, dict[str, Any]]:
    """Gives every suite's items their slice `rarity`; returns by suite what was found, for its notes.

    Raises:
        DataError: nothing is trained on, or an item brings a slice of that name.
    """
    trained = {normalise_prompt(placed.draft.prompt_text): placed.draft for one in filtered for placed in _training(one)}
    if not trained:
        raise DataError("data.long_tail: this build has no training prompt to be rare among")
    kind: type[Words] | type[Topics] = Words if settings.by == "words" else Topics
    measure = kind.of(list(trained.values()), settings.share)
    found = {}
    for one in filtered:
        if one.source.rows != "suite":
            continue
        one.rows[:] = [_marked(placed, one, tail=measure.is_tail(placed.draft)) for placed in one.rows]
        counts = Counter((placed.draft.slices or {})[KEY] for placed in one.rows)
        found[one.source.dataset_id] = {
            "by": settings.by,
            "share": settings.share,
            "training_prompts": len(trained),
            **measure.told,
            **{name: counts[name] for name in (TAIL, COMMON)},
        }
    return found


def _training(one: Filtered) -> list[Placed]:
    return [placed for placed in one.rows if placed.side == "train"] if one.source.rows != "suite" else []


def _marked(placed: Placed, one: Filtered, *, tail: bool) -> Placed:
    own = placed.draft.slices or {}
    if KEY in own:
        where = f"{one.source.dataset_id}, {placed.draft.source} line {placed.draft.line}"
        raise DataError(f"{where}: the item brings a slice {KEY!r} of its own; rename it, or leave out data.long_tail")
    return replace(placed, draft=replace(placed.draft, slices={**own, KEY: TAIL if tail else COMMON}))


@dataclass(frozen=True)
class Words:
    """Rarity of a prompt: the mean, over its different words, of −log of the share of training prompts that hold the word.

    threshold: what the rarest share of the training prompts themselves is above, each measured against the others.
    """

    holding: Mapping[str, int]
    prompts: int
    threshold: float

    @classmethod
    def of(cls, trained: Sequence[Draft], share: float) -> "Words":
        words = [_words(draft) for draft in trained]
        holding = Counter(word for of_prompt in words for word in of_prompt)
        count = len(trained)
        own = sorted(_mean([math.log(count / holding[word]) for word in of_prompt]) for of_prompt in words)
        return cls(holding, count, own[min(math.ceil((1 - share) * count), count) - 1])

    def is_tail(self, draft: Draft) -> bool:
        scores = [math.log((self.prompts + 1) / (self.holding.get(word, 0) + 1)) for word in _words(draft)]
        return _mean(scores) > self.threshold

    @property
    def told(self) -> dict[str, Any]:
        """Without a number where the threshold is a prompt that has no word: nothing is rarer."""
        return {"threshold": self.threshold if math.isfinite(self.threshold) else None}


@dataclass(frozen=True)
class Topics:
    """The rarest topics that together hold at most the given share of the training prompts, and every topic that none of them has."""

    common: frozenset[str]

    @classmethod
    def of(cls, trained: Sequence[Draft], share: float) -> "Topics":
        counts = Counter(draft.topic for draft in trained)
        rarest = sorted(counts, key=lambda topic: (counts[topic], topic))
        sums = [sum(counts[topic] for topic in rarest[: at + 1]) for at in range(len(rarest))]
        return cls(frozenset(rarest[bisect_left(sums, math.floor(share * len(trained)) + 1) :]))

    def is_tail(self, draft: Draft) -> bool:
        return draft.topic not in self.common

    @property
    def told(self) -> dict[str, Any]:
        return {"common_topics": sorted(self.common)}


def _words(draft: Draft) -> set[str]:
    """Different words; every number is one and the same."""
    return {"0" if word.isdigit() else word for word in _WORD.findall(normalise_prompt(draft.prompt_text))}


def _mean(scores: Sequence[float]) -> float:
    """Rounded, so that no machine's last digit decides; without any word a prompt is as rare as can be."""
    return round(math.fsum(scores) / len(scores), 9) if scores else math.inf
