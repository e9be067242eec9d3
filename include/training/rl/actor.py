"""The actor as the one that draws: with whole weights on every rank, so that each draws alone, answers of any length."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from include.training.engines.engine import Engine, EngineSettings
from include.training.lora import LoraSettings
from include.training.rl.adapters import load_actor
from include.training.rl.checks import freeze
from include.training.scoring import AnswerScorer


class ActorEngine(Engine, Protocol):
    """What PPO asks of an engine besides."""

    @property
    def cut_up(self) -> bool:
        """Whether each rank holds but a part of every weight."""
        ...

    def weights_everywhere(self) -> Mapping[str, torch.Tensor]:
        """Whole trainable weights by name, on every rank. Every rank calls it."""
        ...


MakeActorEngine = Callable[[torch.nn.Module, EngineSettings], ActorEngine]


class DrawingActor:
    """Gives the model to draw with: the one that is trained, or, where that is cut up, a whole copy filled anew after each change."""

    def __init__(self, engine: ActorEngine, policy: Path, attention: str, lora: LoraSettings | None = None) -> None:
        self._engine = engine
        self._copy = freeze(AnswerScorer(load_actor(policy, attention, lora)).to(engine.device)) if engine.cut_up else None
        self._filled = False

    def changed(self) -> None:
        """The actor has learnt, or was restored."""
        self._filled = False

    def model(self) -> Any:
        """The plain causal model. Every rank calls it; in eval mode unless the actor's engine trains."""
        if self._copy is None:
            return self._engine.module.model
        if not self._filled:
            own = dict(self._copy.named_parameters())
            with torch.no_grad():
                for name, value in self._engine.weights_everywhere().items():
                    own[name].copy_(value)
            self._filled = True
        return self._copy.model
