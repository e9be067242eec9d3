"""Where PPO's answers come from: what a source is, and the trainer that draws its own (lag 0).

With generators beside the trainer: `apart` (each iteration by a version that is known beforehand) and `free_running` (by the newest).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from include.domain.errors import IntegrityError
from include.runtime.checkpoint import Checkpoint
from include.runtime.ranks import Ranks
from include.training.rl.actor import Drawing
from include.training.rl.batch import Sampled
from include.training.rl.draw import Drawn, DrawSettings, draw_together


class AnswerSource(Protocol):
    """Gives an iteration's answers; is told when the actor has changed."""

    def draw(self, step: int, actor: Drawing, updates: int) -> Drawn:
        """All answers of iteration `step`, the same on every rank; every rank calls it."""
        ...

    def published(self, version: int, actor: Drawing, updates: int) -> None:
        """Every rank calls it."""
        ...

    def load(self, version: int, model: Any) -> None:
        """Puts an earlier version of the actor into `model`."""
        ...

    def capture(self) -> tuple[dict[str, Mapping[str, torch.Tensor]], dict[str, Any]]:
        """Groups and plain state that a checkpoint must have, so that the next answers are drawn as they would have been."""
        ...

    def restore(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
        """Takes back what `capture` gave. Every rank calls it."""
        ...


class OwnSource:
    """The trainer draws with the very weights it trains: lag 0. Each rank draws its part."""

    def __init__(self, encoded: Sequence[Sequence[int]], settings: DrawSettings, ranks: Ranks | None = None) -> None:
        self.encoded = encoded
        self.settings = settings
        self.ranks = ranks or Ranks()

    def draw(self, step: int, actor: Drawing, updates: int) -> Drawn:
        wanted = [item for portion in self.settings.portions(step, len(self.encoded)) for item in portion]
        digests = {step: actor.digest(self.ranks)} if updates else {}
        rows, answers = [row for row, _ in wanted], self.again(actor, wanted)
        return Drawn(rows, answers, [step] * len(wanted), [updates] * len(wanted), digests=digests)

    def again(self, actor: Drawing, wanted: Sequence[tuple[int, int]]) -> list[Sampled]:
        """The present actor's answers to `wanted` (row, seed); every rank calls it."""
        return draw_together(self.ranks, actor.model(), self.encoded, wanted, self.settings)

    def published(self, version: int, actor: Drawing, updates: int) -> None:
        """Nobody else reads it."""

    def load(self, version: int, model: Any) -> None:
        raise IntegrityError(f"version {version} was never published: the trainer draws its own answers")

    def capture(self) -> tuple[dict[str, Mapping[str, torch.Tensor]], dict[str, Any]]:
        """Nothing: the next answers are the present actor's."""
        return {}, {}

    def restore(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
        """Nothing was kept."""
