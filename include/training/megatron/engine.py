"""Megatron-core as the engine of a trainer: tensor, pipeline and data parallel, float32 or bfloat16, a Llama trained whole.

The layers, their cutting, the loss over a cut vocabulary and the schedule of a pipeline are Megatron's; the optimiser is
torch's AdamW on each rank's part, as gradients are summed over ranks and clipped by the norm of all of them. In bfloat16
the layers compute with rounded weights; AdamW moves exact ones, and those are saved and handed on. Each rank saves its
pieces of the state under their Hugging Face names, with their places in the whole: another number of ranks, and another cutting, goes on from it.

With `distributed_optimizer` Megatron's own takes AdamW's place, and shares its state out over data-parallel ranks: refused
where TransformerEngine is missing (`megatron.distributed`), and never tried where it is there.

Not supported, and refused: sequence, context and expert parallel; zero_stage above 0; bf16_autocast, as Megatron's layers
would take the gradients of rounded tensors for those of their float32 weights; adapters and frozen weights; models other
than Llama, or with biases, dropout or RoPE that changes with the length. PPO has no such program. Tried on CPUs over gloo alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import RankDone
from include.runtime.pieces import Owned, Pieces
from include.runtime.ranks import Ranks
from include.training.engines.engine import EngineSettings, FiniteLosses, MicroBatch, learn_in_turn
from include.training.engines.optimizer_state import groups_of, saved_state, trainable
from include.training.engines.precision import precision_context
from include.training.engines.whole import FromFirst, fill_in, home_of
from include.training.errors import TrainingError
from include.training.megatron.distributed import DistributedUpdates
from include.training.megatron.llama import MegatronLlama, MegatronScorer, MegatronScores
from include.training.megatron.pieces import LlamaPieces, check_supported
from include.training.megatron.pipeline import Pipeline
from include.training.megatron.place import Place, place
from include.training.megatron.stage import WRAPPED, Stage
from include.training.megatron.updates import LocalUpdates, Updates
from include.training.reward.head import SequenceScores
from include.training.scoring import AnswerScorer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class MegatronEngine:
    """One scorer of answers or sequences, its optimiser, and this rank's part of both."""

    def __init__(self, module: torch.nn.Module, settings: EngineSettings) -> None:
        self.settings, self._place = settings, place()
        self.data = self._place.data
        self._own = module
        self._shapes = {name: value.shape for name, value in trainable(module).items()}
        self._losses = FiniteLosses(self._place.all)
        self._stage = Stage(_checked(module, settings, self._place), self._place, _device())
        self._inner = self._cut(module, self._stage)
        live = dict(self._inner.gpt.named_parameters())
        self._stage.check(live)
        self._updates: Updates = (
            DistributedUpdates(self._inner.gpt, settings, self._stage)
            if settings.distributed_optimizer
            else LocalUpdates(live, settings, self._stage)
        )
        self._updates.fill(self._stage.parts(dict(module.named_parameters())))
        self._published, self._device = False, _device()

    def _cut(self, module: Any, stage: Stage) -> MegatronLlama:
        """This rank's part of a scorer, without its weights."""
        make = MegatronScores if stage.all.output == "score" else MegatronScorer
        inner = make(module.model, stage.all, self._place, DTYPES[self.settings.precision]).to(_device())
        if self._place.pipeline.count > 1:
            inner.pipeline = Pipeline(inner, self._place.pipeline, self._losses.see)
        return inner

    @property
    def module(self) -> torch.nn.Module:
        return self._own if self._published else self._inner

    @property
    def device(self) -> torch.device:
        return self._device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._published:
            near = "bf16_autocast" if self.settings.precision == "bf16" else self.settings.precision
            with precision_context(near, self._device.type):
                return self._own(*args, **kwargs)
        return self._inner(*args, **kwargs)

    def frozen(self, scorer: Any) -> Any:
        stage = Stage(_pieces(scorer, self._place), self._place, _device())
        twin = self._cut(scorer, stage)
        parameters = dict(twin.gpt.named_parameters())
        stage.check(parameters)
        with torch.no_grad():
            for name, part in stage.parts(dict(scorer.named_parameters())):
                parameters[name].copy_(part)
        return twin.eval().requires_grad_(False)

    def train(self) -> None:
        self._inner.train()

    def eval(self) -> None:
        self._inner.eval()
        self._own.eval()

    def learn(self, parts: Iterable[MicroBatch]) -> dict[str, float]:
        """One micro-batch after the other; where there are several stages, as Megatron's schedule orders them."""
        pipeline = self._inner.pipeline
        return learn_in_turn(self, parts) if pipeline is None else pipeline.learn(list(parts))

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of `loss` as they are; ranks are summed in `step`."""
        self._losses.see(loss)
        loss.backward()

    def step(self, learning_rate: float) -> float:
        """Sums over data-parallel ranks, clips and updates; gives the norm before clipping, and refuses one that is not finite."""
        self._losses.settle()
        return self._updates.step(learning_rate)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Whole weights under the trainer's names, on the CPU of the first rank."""
        if self._published:
            own = trainable(self._own)
            return Owned((name, value.detach().to("cpu", copy=True)) for name, value in own.items())
        return self._stage.whole(self._updates.weights(), self._shapes)

    def capture(self, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]:
        """This rank's pieces of weights and moments by Hugging Face name, as the groups ``<prefix>.model`` and ``<prefix>.optimizer``."""
        kinds, count = self._updates.moments()
        moments = Pieces()
        for key, held in kinds.items():
            moments.take(self._stage.own(held, f".{key}"))
        for name, value in self._stage.of_all(count).items() if count is not None else ():
            moments.add(f"{name}.step", value)
        return groups_of(self._stage.own(self._updates.weights()), moments, prefix)

    def restore(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        """Puts this rank's part of weights and moments back, whatever cutting saved them."""
        weights, moments = saved_state(checkpoint, set(trainable(self._own)), prefix)
        self._updates.fill(self._stage.parts(weights))
        if (count := next((name for name in moments if name.endswith(".step")), None)) is not None:
            self._updates.fill_moments(moments, moments[count])

    def use(self, weights: Mapping[str, torch.Tensor]) -> None:
        if self._published:
            fill_in(trainable(self._own), FromFirst(weights, self._shapes, Ranks()))
        else:
            self._updates.fill(self._stage.parts(FromFirst(weights, self._shapes, self._place.all), together=True))

    def publish(self) -> None:
        """Whole weights in the trainer's own module on the first rank, one after the other; the other ranks are done."""
        own = trainable(self._own)
        with torch.no_grad():
            for name, value in self._stage.each_whole(self._updates.weights(), self._shapes):
                own[name].copy_(value)
        if not self._place.main:
            raise RankDone("this rank has done its last step")
        self._device = home_of(self._own, self._device)
        self._own.to(self._device).eval()
        self._published = True


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _checked(module: torch.nn.Module, settings: EngineSettings, at: Place) -> LlamaPieces:
    """How the model is cut; refuses what the engine would do otherwise than it was asked to."""
    if settings.zero_stage:
        raise TrainingError(f"engine megatron: zero_stage {settings.zero_stage} is DeepSpeed's, set 0 (and distributed_optimizer)")
    if settings.precision not in DTYPES:
        raise TrainingError(f"engine megatron: precision {settings.precision} is not supported, set {' or '.join(DTYPES)}")
    pieces = _pieces(module, at)
    known = {WRAPPED + name for piece in pieces for name in piece.sources}
    if odd := sorted(known ^ set(trainable(module))):
        raise TrainingError(f"engine megatron trains a Llama whole, without adapters: {odd[0]} is frozen, or not a Llama's")
    return pieces


def _pieces(module: torch.nn.Module, at: Place) -> LlamaPieces:
    if not isinstance(module, AnswerScorer | SequenceScores):
        raise TrainingError(f"engine megatron: {type(module).__name__} is not supported, it trains policies and reward models")
    check_supported(module.model, at.tensor.count, at.pipeline.count)
    return LlamaPieces.of(module.model, at.tensor.count, at.pipeline.count)
