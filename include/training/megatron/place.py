"""Which part of a model and of a batch a process has: Megatron's groups of ranks, joined and left in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from include.runtime.job import Job
from include.runtime.ranks import WAIT, Ranks, ranks_of_environment
from include.training.errors import TrainingError
from include.training.megatron.cpu import layers_can_run


@dataclass(frozen=True)
class Place:
    """This process among all: `data` share out the rows, `tensor` the weights of a layer, `pipeline` the layers.

    ends: the group of the first and the last stage; None where there is one stage.
    """

    all: Ranks
    data: Ranks
    data_group: Any
    tensor: Ranks
    pipeline: Ranks
    ends: Any = None

    @property
    def main(self) -> bool:
        return self.all.main

    @property
    def first_copy(self) -> bool:
        """Whether it speaks for its stage: one of the ranks that hold the same, or parts of the same, weights."""
        return self.data.main and self.tensor.main

    @property
    def last_stage(self) -> bool:
        return self.pipeline.rank == self.pipeline.count - 1


_place: Place | None = None


def place() -> Place:
    """That of this process.

    Raises:
        TrainingError: outside `engines`.
    """
    if _place is None:
        raise TrainingError("an engine was made outside `engines`")
    return _place


@contextmanager
def engines_of(job: Job) -> Iterator[None]:
    """`engines`, as the placement of a job asks for them."""
    job.config.text("engine", ("megatron",))
    with engines(job.ranks, job.settings.positive("tensor_parallel", 1), job.settings.positive("pipeline_parallel", 1)):
        yield


@contextmanager
def engines(ranks: Ranks, tensor_parallel: int = 1, pipeline_parallel: int = 1) -> Iterator[None]:
    """Around everything that uses an engine: Megatron's groups, left in order.

    Args:
        ranks: those of the job.
        tensor_parallel: so many neighbouring ranks share the weights of each layer.
        pipeline_parallel: so many stages share the layers; ranks of different stages lie furthest apart.

    Raises:
        TrainingError: the ranks cannot be dealt out so.
    """
    global _place
    copies, odd = divmod(ranks.count, tensor_parallel * pipeline_parallel)
    if odd or not copies:
        asked = f"tensor_parallel {tensor_parallel} × pipeline_parallel {pipeline_parallel}"
        raise TrainingError(f"{asked} does not divide {ranks.count} ranks: ask for a multiple of it (job.tasks)")
    started = not dist.is_initialized()
    if started:
        if ranks_of_environment().count > 1:
            raise TrainingError("several processes were started, and they have not met: run them through run_program with many_ranks")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    minutes = int(WAIT.total_seconds() // 60)
    parallel_state.initialize_model_parallel(tensor_parallel, pipeline_parallel, distributed_timeout_minutes=minutes)
    try:
        with layers_can_run(seed=1 + parallel_state.get_tensor_model_parallel_rank()):
            _place = _here(ranks)
            yield
    finally:
        _place = None
        parallel_state.destroy_model_parallel()
        if started:
            dist.destroy_process_group()


def _here(ranks: Ranks) -> Place:
    state = parallel_state
    data = Ranks(state.get_data_parallel_rank(), state.get_data_parallel_world_size(), state.get_data_parallel_group_gloo())
    tensor = Ranks(
        state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size(), state.get_tensor_model_parallel_group()
    )
    stages = state.get_pipeline_model_parallel_world_size()
    pipeline = Ranks(state.get_pipeline_model_parallel_rank(), stages, state.get_pipeline_model_parallel_group())
    at_an_end = stages > 1 and pipeline.rank in (0, stages - 1)
    return Place(ranks, data, state.get_data_parallel_group(), tensor, pipeline, state.get_embedding_group() if at_an_end else None)
