"""Near-duplicates: exact search for texts whose word pairs overlap by a threshold (Jaccard), without comparing all with all.

Two texts with Jaccard J >= t share at least ceil(t |A|) of A's elements. So of A's elements, ordered alike everywhere, one of the
first |A| - ceil(t |A|) + 1 must be among the same number of B's first ones ("prefix filter", Chaudhuri et al. 2006, Bayardo et
al. 2007). Candidates found through these prefixes are then compared exactly: nothing is missed, nothing is guessed.
"""

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from include.domain.split import normalise_prompt

METHOD = "word-pair-jaccard@1"
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[぀-ヿ㐀-鿿가-힯]|\w+")
_NUMBER = re.compile(r"\d")


@dataclass(frozen=True)
class NearSettings:
    """When two texts count as near-duplicates.

    threshold: least Jaccard similarity of the sets of neighbouring words.
    numbers_exact_below_words: in texts with fewer words, the sequence of numbers must be equal too: "3 + 4" and "3 + 5", or the
        same word problem with other figures, are different questions. 0 turns this off.
    """

    threshold: float = 0.8
    numbers_exact_below_words: int = 100


@dataclass(frozen=True)
class _Shape:
    """numbers: the sequence that must be equal, or None for a long text. pairs: ordered by a hash, the same everywhere."""

    numbers: tuple[str, ...] | None
    pairs: tuple[tuple[str, str], ...]


def _shape(text: str, settings: NearSettings) -> _Shape:
    words = _TOKEN.findall(normalise_prompt(text))
    numbers = tuple(word for word in words if _NUMBER.match(word))
    pairs = {*zip(["", *words], [*words, ""], strict=True)}
    ordered = tuple(sorted(pairs, key=lambda pair: (zlib.crc32("\0".join(pair).encode()), pair)))
    return _Shape(numbers if len(words) < settings.numbers_exact_below_words else None, ordered)


def similarity(first: str, second: str, settings: NearSettings) -> float:
    """Jaccard similarity of two texts' word pairs; 0 where their numbers make them different questions."""
    return _jaccard(_shape(first, settings), _shape(second, settings))


def _jaccard(first: _Shape, second: _Shape) -> float:
    if first.numbers is not None and second.numbers is not None and first.numbers != second.numbers:
        return 0.0
    a, b = set(first.pairs), set(second.pairs)
    return len(a & b) / len(a | b)


class NearIndex:
    """Texts that others are compared with."""

    def __init__(self, settings: NearSettings, texts: Iterable[tuple[str, str]] = ()) -> None:
        """`texts`: (name, text)."""
        if not 0 < settings.threshold <= 1:
            raise ValueError(f"near-duplicate threshold {settings.threshold} is not above 0 and at most 1")
        self._settings = settings
        self._shapes: list[tuple[str, _Shape]] = []
        self._by_pair: dict[tuple[str, str], list[int]] = defaultdict(list)
        for name, text in texts:
            self.add(name, text)

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, name: str, text: str) -> None:
        shape = _shape(text, self._settings)
        for pair in self._prefix(shape.pairs):
            self._by_pair[pair].append(len(self._shapes))
        self._shapes.append((name, shape))

    def _prefix(self, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        return pairs[: len(pairs) - math.ceil(self._settings.threshold * len(pairs) - 1e-9) + 1]

    def match(self, text: str) -> str | None:
        """The name of the most similar text at or above the threshold (of equals the first added); None where there is none."""
        shape = _shape(text, self._settings)
        near = {index for pair in self._prefix(shape.pairs) for index in self._by_pair.get(pair, ())}
        scored = [(_jaccard(shape, self._shapes[index][1]), -index) for index in near]
        best = max(scored, default=(0.0, 0))
        return self._shapes[-best[1]][0] if scored and best[0] >= self._settings.threshold else None
