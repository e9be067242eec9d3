"""Megatron-core as the engine of a trainer: tensor and data parallel, float32, a Llama trained whole.

The layers, their cutting and the loss over a cut vocabulary are Megatron's; the optimiser is torch's AdamW on each rank's
part, as gradients are summed over ranks and clipped by the norm of all of them. The state is saved as whole tensors under
their Hugging Face names, so another number of ranks, and another cutting, goes on from it.

Not supported, and refused: pipeline, sequence, context and expert parallel; the distributed optimiser (zero_stage above 0),
whose checkpoints do not resume rightly without TransformerEngine; bf16; adapters and frozen weights; models other than
Llama, or with biases, dropout or RoPE that changes with the length. PPO has no such program.
Tried on CPUs over gloo alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import RankDone
from include.runtime.ranks import WAIT, Ranks, ranks_of_environment
from include.training.engine import EngineSettings, FiniteLosses, adamw, check_norm
from include.training.errors import TrainingError
from include.training.megatron_cpu import layers_can_run
from include.training.megatron_llama import LlamaPieces, MegatronScorer, MegatronScores, Piece, check_supported
from include.training.optimizer_state import MOMENTS, Named, groups_of, saved_state, trainable
from include.training.reward_head import SequenceScores
from include.training.scoring import AnswerScorer

_WRAPPED = "model."
"""What the scorer's parameters are called before their Hugging Face names."""


@dataclass(frozen=True)
class _Place:
    """This process among all: `data` share out the rows, `tensor` the weights."""

    main: bool
    data: Ranks
    data_group: Any
    tensor: Ranks


_place: _Place | None = None


@contextmanager
def engines(ranks: Ranks, tensor_parallel: int) -> Iterator[None]:
    """Around everything that uses an engine: Megatron's groups, left in order.

    Args:
        ranks: those of the job.
        tensor_parallel: so many neighbouring ranks hold one copy of the weights.

    Raises:
        TrainingError: the ranks cannot be dealt out so.
    """
    global _place
    if ranks.count % tensor_parallel:
        raise TrainingError(f"tensor_parallel {tensor_parallel} does not divide {ranks.count} ranks: ask for a multiple of it (job.tasks)")
    started = not dist.is_initialized()
    if started:
        if ranks_of_environment().count > 1:
            raise TrainingError("several processes were started, and they have not met: run them through run_program with many_ranks")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    minutes = int(WAIT.total_seconds() // 60)
    parallel_state.initialize_model_parallel(tensor_parallel, distributed_timeout_minutes=minutes)
    try:
        with layers_can_run(seed=1 + parallel_state.get_tensor_model_parallel_rank()):
            _place = _here(ranks)
            yield
    finally:
        _place = None
        parallel_state.destroy_model_parallel()
        if started:
            dist.destroy_process_group()


def _here(ranks: Ranks) -> _Place:
    state = parallel_state
    data_group = state.get_data_parallel_group()
    data = Ranks(state.get_data_parallel_rank(), state.get_data_parallel_world_size(), state.get_data_parallel_group_gloo())
    tensor_group = state.get_tensor_model_parallel_group()
    tensor = Ranks(state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size(), tensor_group)
    return _Place(ranks.main, data, data_group, tensor)


class MegatronEngine:
    """One scorer of answers or sequences, its optimiser, and this rank's part of both."""

    def __init__(self, module: torch.nn.Module, settings: EngineSettings) -> None:
        if _place is None:
            raise TrainingError("an engine was made outside `engines`")
        self.settings, self._place, self.data = settings, _place, _place.data
        self._own = module
        self._pieces = _checked(module, settings, _place.tensor.count)
        make = MegatronScores if self._pieces.output == "score" else MegatronScorer
        self._inner = make(module.model, self._pieces, _place.tensor.rank).to(_device())
        self._parameters: dict[str, torch.nn.Parameter] = dict(self._inner.gpt.named_parameters())
        if odd := sorted(set(self._parameters) ^ {piece.name for piece in self._pieces}):
            raise TrainingError(f"engine megatron: nothing is known of the parameter {odd[0]}")
        self.optimizer = adamw(self._parameters.values(), settings)
        self._losses = FiniteLosses(self.data)
        self._published = False

    @property
    def module(self) -> torch.nn.Module:
        return self._own if self._published else self._inner

    @property
    def device(self) -> torch.device:
        return _device()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def train(self) -> None:
        self._inner.train()

    def eval(self) -> None:
        self._inner.eval()
        self._own.eval()

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of `loss` as they are; ranks are summed in `step`."""
        self._losses.see(loss)
        loss.backward()

    def step(self, learning_rate: float) -> float:
        """Sums over data-parallel ranks, clips and updates; gives the norm before clipping, and refuses one that is not finite."""
        self._losses.settle()
        gradients = {name: value.grad for name, value in self._parameters.items() if value.grad is not None}
        if self.data.count > 1:
            waiting = [dist.all_reduce(value, group=self._place.data_group, async_op=True) for value in gradients.values()]
            for handle in waiting:
                handle.wait()
        norm = self._norm(gradients)
        check_norm(norm)
        if 0 < self.settings.max_grad_norm < norm + 1e-6:
            for value in gradients.values():
                value.mul_(self.settings.max_grad_norm / (norm + 1e-6))  # as torch's clip_grad_norm_
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _norm(self, gradients: Mapping[str, torch.Tensor]) -> float:
        """Of the whole model: what is cut is summed over its ranks, what each rank holds whole counts once."""
        kinds = {piece.name: piece.how for piece in self._pieces}
        squares = torch.zeros(2, dtype=torch.float64, device=_device())
        for name, value in gradients.items():
            squares[int(kinds[name] == "whole")] += torch.linalg.vector_norm(value).double().square()
        if self._place.tensor.count > 1:
            dist.all_reduce(squares[:1], group=self._place.tensor.group)
        return float(squares.sum().sqrt())

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Whole weights under the trainer's names, on the CPU of the first rank."""
        if self._published:
            own = trainable(self._own)
            return {name: value.detach().to("cpu", copy=True) for name, value in own.items()}
        return self._whole({piece.name: self._parameters[piece.name].detach() for piece in self._pieces})

    def capture(self, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]:
        """Weights and moments by Hugging Face name, as the groups ``<prefix>.model`` and ``<prefix>.optimizer``."""
        states = {name: self.optimizer.state.get(value, {}) for name, value in self._parameters.items()}
        moments: dict[str, torch.Tensor] = {}
        for key in MOMENTS:
            held = {name: torch.as_tensor(state[key]) for name, state in states.items() if key in state}
            found = self._steps(held) if key == "step" else self._whole(held)
            moments |= {f"{name}.{key}": value for name, value in found.items()}
        return groups_of(self.weights(), moments, prefix)

    def restore(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        """Puts this rank's part of weights and moments back, whatever cutting saved them."""
        weights, moments = saved_state(checkpoint, set(trainable(self._own)), prefix)
        rank = self._place.tensor.rank
        self._inner.fill({name.removeprefix(_WRAPPED): value for name, value in weights.items()}, self._pieces, rank)
        for piece in self._pieces:
            sources = [_WRAPPED + name for name in piece.sources]
            if f"{sources[0]}.step" not in moments:
                continue
            state = {"step": moments[f"{sources[0]}.step"].to(_device(), copy=True)}
            for key in ("exp_avg", "exp_avg_sq"):
                part = self._pieces.cut(piece, [moments[f"{name}.{key}"] for name in sources])[rank]
                state[key] = part.to(_device()).clone(memory_format=torch.contiguous_format)
            self.optimizer.state[self._parameters[piece.name]] = state

    def publish(self) -> None:
        """Whole weights in the trainer's own module on the first rank; the other ranks are done."""
        whole = self.weights()
        if not self._place.main:
            raise RankDone("this rank has done its last step")
        own = trainable(self._own)
        with torch.no_grad():
            for name, value in whole.items():
                own[name].copy_(value)
        self._own.to(_device()).eval()
        self._published = True

    def _whole(self, held: Named) -> dict[str, torch.Tensor]:
        """Tensors by Megatron's names, joined over ranks, by the trainer's names; {} but on the first rank."""
        found: dict[str, torch.Tensor] = {}
        for piece in self._pieces:
            if piece.name in held:
                joined = self._pieces.join(piece, self._parts(piece, held[piece.name]))
                found |= {_WRAPPED + name: value.cpu() for name, value in zip(piece.sources, joined, strict=True) if self._place.main}
        return found

    def _parts(self, piece: Piece, own: torch.Tensor) -> list[torch.Tensor]:
        tensor = self._place.tensor
        if tensor.count == 1 or piece.how == "whole":
            return [own]
        parts = [torch.empty_like(own) for _ in range(tensor.count)]
        dist.all_gather(parts, own.contiguous(), group=tensor.group)
        return parts

    def _steps(self, held: Named) -> dict[str, torch.Tensor]:
        if not self._place.main:
            return {}
        return {_WRAPPED + name: held[p.name].cpu().clone() for p in self._pieces if p.name in held for name in p.sources}


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _checked(module: torch.nn.Module, settings: EngineSettings, tensor_parallel: int) -> LlamaPieces:
    """How the model is cut; refuses what the engine would do otherwise than it was asked to."""
    if settings.zero_stage:
        raise TrainingError(f"engine megatron: zero_stage {settings.zero_stage}: its distributed optimiser is not supported, set 0")
    if settings.precision != "fp32":
        raise TrainingError(f"engine megatron: precision {settings.precision} is not supported, set fp32")
    if not isinstance(module, AnswerScorer | SequenceScores):
        raise TrainingError(f"engine megatron: {type(module).__name__} is not supported, it trains policies and reward models")
    check_supported(module.model, tensor_parallel)
    pieces = LlamaPieces.of(module.model, tensor_parallel)
    known = {_WRAPPED + name for piece in pieces for name in piece.sources}
    if odd := sorted(known ^ set(trainable(module))):
        raise TrainingError(f"engine megatron trains a Llama whole, without adapters: {odd[0]} is frozen, or not a Llama's")
    return pieces
