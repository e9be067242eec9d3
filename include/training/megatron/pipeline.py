"""The stages of a pipeline at work: Megatron's schedule over the micro-batches of a step, or one pass without gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from include.runtime.ranks import Ranks
from include.training.engines.engine import MicroBatch, added_up
from include.training.errors import TrainingError
from include.training.megatron.llama import MegatronLlama

_ANY = 1
"""Where the schedule asks for a length or a number of rows: it learns them with each tensor (variable_seq_lengths)."""


class Pipeline:
    """One forward and one backward pass in turn (1F1B), as `megatron.core.pipeline_parallel` orders them."""

    def __init__(self, module: MegatronLlama, ranks: Ranks, see: Callable[[Tensor], None]) -> None:
        """`see`: is shown each loss before its backward pass."""
        self._module, self._ranks, self._see = module, ranks, see

    def learn(self, parts: Sequence[MicroBatch]) -> dict[str, float]:
        """Forward and backward of all parts; their figures, added up, on every stage."""

        def loss_of(part: MicroBatch, answer: Tensor) -> tuple[Tensor, Tensor, Mapping[str, float]]:
            loss, figures = part.measure(answer)
            self._see(loss)
            return loss, torch.zeros((), dtype=torch.int), figures

        found: dict[str, float] = {}
        for figures in self._run(parts, loss_of, learning=True):
            added_up(found, figures)
        whole: dict[str, float] = self._ranks.gather(found)[-1]
        return whole

    def answer(self, inputs: Mapping[str, Any]) -> Tensor:
        """What the last stage gives for `inputs`, on every stage.

        Raises:
            TrainingError: gradients were asked for; they go back through the stages in `learn` alone.
        """
        if torch.is_grad_enabled():
            raise TrainingError("several stages: a forward pass that is to have gradients goes through the engine's `learn`")
        part = MicroBatch(inputs, _never)
        found = self._run([part], lambda _, answer: answer, learning=False)
        rows: Tensor = inputs["rows"]
        answer = found[0] if found else torch.empty(len(rows), *self._module.answers, device=rows.device)
        dist.broadcast(answer, dist.get_global_rank(self._ranks.group, self._ranks.count - 1), group=self._ranks.group)
        return answer

    def _run(self, parts: Sequence[MicroBatch], of_answer: Callable[[MicroBatch, Tensor], Any], *, learning: bool) -> list[Any]:
        """What `of_answer` made of each part's answer; [] but on the last stage."""

        def forward(waiting: Iterator[MicroBatch], _: Any) -> tuple[Tensor, Callable[..., Any]]:
            part = next(waiting)
            return self._module.stage(**part.inputs), lambda answer, non_loss_data=False: of_answer(part, answer)

        found: list[Any] = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(parts),
            model=[self._module.gpt],
            num_microbatches=len(parts),
            seq_length=_ANY,
            micro_batch_size=_ANY,
            forward_only=not learning,
            collect_non_loss_data=not learning,
        )
        return found


def _never(_: Tensor) -> tuple[Tensor, Mapping[str, float]]:
    raise TrainingError("nothing is learned from this micro-batch")
