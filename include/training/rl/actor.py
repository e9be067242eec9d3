"""The actor as the one that draws: with whole weights on every rank, so that each draws alone, answers of any length."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from include.runtime.ranks import Ranks
from include.training.engines.engine import Engine, EngineSettings
from include.training.lora import learnt_weights
from include.training.rl.adapters import load_actor
from include.training.rl.checks import freeze
from include.training.rl.placing import Slots
from include.training.rl.settings import PpoSettings
from include.training.rl.weights_digest import WeightsSeen, weights_digest
from include.training.scoring import AnswerScorer


class ActorEngine(Engine, Protocol):
    """What PPO asks of an engine besides."""

    @property
    def cut_up(self) -> bool:
        """Whether each rank holds but a part of every weight."""
        ...

    def each_weight(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole trainable weights by name, one after the other, on every rank; each holds until the next. Every rank goes through all."""
        ...


MakeActorEngine = Callable[[torch.nn.Module, EngineSettings], ActorEngine]


class Drawing(Protocol):
    """Whoever gives the actor that draws."""

    def model(self) -> Any:
        """The plain causal model with the actor's present weights. Every rank calls it; in eval mode unless the actor's engine trains."""
        ...

    def weights(self) -> Mapping[str, torch.Tensor]:
        """What the plain causal model learns (`learnt_weights`), exact, by name, at least on the first rank. Every rank calls it."""
        ...

    def digest(self, ranks: Ranks) -> str:
        """Names the present weights of what is learnt by their content (`weights_digest`). Every rank calls it."""
        ...

    def release(self) -> None:
        """Lets a copy's weights go: nobody draws for a while, or the actor has learnt or was restored."""
        ...


_INNER = "model."
"""What the causal model is called inside of what the engine trains."""


class DrawingActor:
    """Gives the model to draw with: the one that is trained, or, where that is cut up, a whole copy, filled when it is asked for.

    In bf16_autocast the copy's linear layers hold the rounded weights that autocast would make of the actor's at every pass. Under adapters
    their base lies there all the time, and the adapters alone are filled in.
    """

    def __init__(self, engine: ActorEngine, policy: Path, settings: PpoSettings) -> None:
        self._engine = engine
        self._copy: AnswerScorer | None = None
        self._slots: Slots | None = None
        self._stays = settings.lora is not None
        self._filled = False
        if engine.cut_up:
            self._copy = freeze(AnswerScorer(load_actor(policy, settings.attention, settings.lora)))
            base = dict(self._copy.named_parameters())
            self._slots = Slots(self._copy, settings.precision, engine.device)
            if self._stays:
                self._slots.fill(base.items(), copied=False)

    def model(self) -> Any:
        if self._copy is None or self._slots is None:
            return self._engine.module.model
        if not self._filled:
            self._slots.fill(self._engine.each_weight(), copied=True)
            self._filled = True
        return self._copy.model

    def weights(self) -> Mapping[str, torch.Tensor]:
        if self._copy is None:
            return learnt_weights(self._engine.module.model)
        return {name.removeprefix(_INNER): value for name, value in self._engine.weights().items()}

    def digest(self, ranks: Ranks) -> str:
        if self._copy is None or self._slots is None:
            return weights_digest(learnt_weights(self._engine.module.model), ranks)
        seen = WeightsSeen(ranks)
        named = ((name.removeprefix(_INNER), value) for name, value in self._engine.each_weight())
        passing = seen.passing(named, copied=True)
        self._slots.fill(((_INNER + name, value) for name, value in passing), copied=True)
        self._filled = True
        return seen.digest()

    def release(self) -> None:
        if self._slots is not None and self._filled and not self._stays:
            self._slots.empty()
        self._filled = False
