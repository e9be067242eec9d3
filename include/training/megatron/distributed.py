"""Megatron's distributed optimiser: float32 weights and moments are shared out over data-parallel ranks.

Never tried where TransformerEngine is present. Without it Megatron falls back to torch's AdamW, whose count of updates its
distributed optimiser neither keeps nor gives back as that needs it: a resumed run would go on otherwise. So it is refused.
Saved as the other updates are: whole tensors by name, whatever the number of ranks that share them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, distrib_optimizer, get_megatron_optimizer
from torch import Tensor

from include.training.engines.engine import EngineSettings, check_norm
from include.training.engines.optimizer_state import Named
from include.training.errors import TrainingError
from include.training.megatron.stage import Stage
from include.training.megatron.updates import FLAT


def check_resumable() -> None:
    """Refuses where the distributed optimiser would not go on exactly from a checkpoint.

    Raises:
        TrainingError: what is missing, and what to do.
    """
    if not getattr(distrib_optimizer, "USING_TE_OPTIMIZER", False):
        raise TrainingError(
            "distributed_optimizer: Megatron's needs TransformerEngine's Adam, which is not installed here. With torch's in its place a "
            "checkpoint does not hold what it goes on from, so a resumed run would learn otherwise. Install transformer_engine, or set it false"
        )


class DistributedUpdates:
    """The updates of a stage's parameters by Megatron's own optimiser; see `megatron.updates.Updates`."""

    def __init__(self, gpt: Any, settings: EngineSettings, stage: Stage) -> None:
        check_resumable()
        self._settings, self._stage, self._count = settings, stage, 0
        self._live = dict(gpt.named_parameters())
        if tied := stage.tied:
            # A bucket of its own: both stages then share it out alike, and their parts can be added.
            self._live[tied].shared_embedding = True
            self._live[tied].shared = not stage.place.pipeline.main  # counts once in the norm
        how = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        self._ddp = DistributedDataParallel(gpt.config, how, gpt)
        made = get_megatron_optimizer(_config(settings, gpt.config.params_dtype), [self._ddp], config_overrides={})
        (self._optimizer,) = getattr(made, "chained_optimizers", [made])
        self._clear()

    def step(self, learning_rate: float) -> float:
        self._ddp.finish_grad_sync()
        if tied := self._stage.tied:
            dist.all_reduce(self._live[tied].main_grad, group=self._stage.place.ends)
        self._optimizer.prepare_grads()
        norm = float(self._optimizer.get_grad_norm())
        check_norm(norm)
        if self._settings.max_grad_norm > 0:
            self._optimizer.clip_grad_norm(self._settings.max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step_with_ready_grads()
        self._count += 1
        self._clear()
        return norm

    def _clear(self) -> None:
        self._ddp.zero_grad_buffer()
        self._optimizer.zero_grad()

    def weights(self) -> Named:
        return self._gathered("param")

    def moments(self) -> tuple[Mapping[str, Named], Tensor | None]:
        if not self._count:
            return {key: {} for key in FLAT}, None
        return {key: self._gathered(key) for key in FLAT}, torch.tensor(float(self._count))

    @torch.no_grad()
    def fill(self, parts: Iterable[tuple[str, Tensor]]) -> None:
        for name, part in parts:
            live = self._live[name]
            live.copy_(part)
            if (own := self._own_range(live)) is not None:
                self._state(live)["param"].copy_(part.flatten()[own])

    @torch.no_grad()
    def fill_moments(self, whole: Named, count: Tensor) -> None:
        self._count = int(count)
        for key in FLAT:
            for name, part in self._stage.parts(whole, f".{key}"):
                live = self._live[name]
                if (own := self._own_range(live)) is not None:
                    main = self._state(live)["param"]
                    self._optimizer.optimizer.state[main][key] = part.flatten()[own].to(main.device, torch.float32, copy=True)
        for group in self._optimizer.optimizer.param_groups:
            group["step"] = self._count  # where TransformerEngine's Adam keeps it

    def _own_range(self, live: Tensor) -> slice | None:
        """Which of a parameter's elements this rank updates; None where none."""
        if live not in self._optimizer.model_param_gbuf_map:
            return None
        found = self._optimizer._get_model_param_range_map(live)["param"]
        return slice(found.start, found.end)

    def _state(self, live: Tensor) -> Mapping[str, Tensor]:
        """Of this rank's elements of a parameter: `param`, and the moments once there are any."""
        found: Mapping[str, Tensor] = self._optimizer._get_main_param_and_optimizer_states(live)
        return found

    def _gathered(self, key: str) -> dict[str, Tensor]:
        """All elements of each parameter on every data-parallel rank: each gives its own, and zeros beside them."""
        found = {}
        for name, live in self._live.items():
            flat = torch.zeros(live.numel(), device=live.device)
            if (own := self._own_range(live)) is not None:
                flat[own] = self._state(live)[key].detach().flatten().float()
            if self._stage.place.data.count > 1:
                dist.all_reduce(flat, group=self._stage.place.data_group)
            found[name] = flat.view(live.shape)
        return found


def _config(settings: EngineSettings, dtype: torch.dtype) -> OptimizerConfig:
    """AdamW with the decay on every weight, as of the other updates (`config_overrides` {}: Megatron would spare some)."""
    return OptimizerConfig(
        optimizer="adam",
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_eps=1e-8,
        clip_grad=settings.max_grad_norm,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=True,
    )
