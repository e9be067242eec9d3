"""Answers that turn odd while the reward model looks too good: the symptom of a reward model that fits its pairs too well.

About 70 % of held-out pairs right is usually enough. Above 75 % one looks at what the policy writes: do answers become
alike, much longer, cut off, or less often right than at first?
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from include.runtime.reward_stats import REWARD_JSON

SUSPICIOUS_ACCURACY = 0.75
WATCHED = ("distinct_share", "answer_tokens", "cut_share", "verified_share")


class Oddness:
    """Remembers the first batch's figures and the last one's; part of a checkpoint."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def see(self, figures: Mapping[str, float]) -> None:
        self.last = {name: figures[name] for name in WATCHED if name in figures}
        self.first = self.first or self.last

    def signs(self) -> list[str]:
        """What has turned odd, in words."""
        if not self.first:
            return []
        found = []
        for name, odd, words in (
            ("distinct_share", lambda a, b: b < a / 2, "answers become alike (distinct share {:.2f} → {:.2f})"),
            ("answer_tokens", lambda a, b: b > 2 * a, "answers become long ({:.1f} → {:.1f} tokens)"),
            ("cut_share", lambda a, b: b > a + 0.3, "answers no longer end (cut share {:.2f} → {:.2f})"),
            ("verified_share", lambda a, b: b < a - 0.1, "answers are less often right (verified share {:.2f} → {:.2f})"),
        ):
            if name in self.first and name in self.last and odd(self.first[name], self.last[name]):
                found.append(words.format(self.first[name], self.last[name]))
        return found

    def warning(self, accuracies: Sequence[float]) -> str | None:
        """`accuracies`: of the reward models on their validation pairs, as far as they are known."""
        highest, signs = max(accuracies, default=0.0), self.signs()
        if highest <= SUSPICIOUS_ACCURACY or not signs:
            return None
        return f"the reward model is right on {highest:.2f} of its validation pairs and the policy turns odd: {'; '.join(signs)}. It may be over-fitted"

    def state(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.first, self.last = dict(state["first"]), dict(state["last"])


def known_accuracies(folders: Sequence[Path]) -> list[float]:
    """The validation accuracy that each reward model's folder states; older folders state none."""
    stated = [json.loads((folder / REWARD_JSON).read_text("utf-8")).get("validation_accuracy") for folder in folders]
    return [float(value) for value in stated if value is not None]
