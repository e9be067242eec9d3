"""DeepSpeed as the engine of a trainer.

Float32 parameters, with bfloat16 as autocast where asked for: DeepSpeed's own bf16 mode would build its float32 master
from weights rounded to bf16. The optimiser is torch's AdamW. The state is saved as named tensors, not as DeepSpeed's
pickles, so it can be read by any engine.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import GuardTripped
from include.training.engine import EngineSettings
from include.training.errors import TrainingError
from include.training.optimizer_state import capture_state, restore_state

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.accelerator import get_accelerator

_NEVER = 10**9


@contextmanager
def engines() -> Iterator[None]:
    """Around everything that uses an engine: joins the process group, and leaves it in order (else some runs abort at exit)."""
    _map_slurm()
    started = not torch.distributed.is_initialized()
    if started:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if int(os.environ["WORLD_SIZE"]) == 1:
            torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
        else:
            torch.distributed.init_process_group(backend)
        _skip_shared_memory_op()
        deepspeed.init_distributed(dist_init_required=False)
    try:
        yield
    finally:
        if started:
            torch.distributed.destroy_process_group()


def _map_slurm() -> None:
    """Slurm's names for rank and size, as torch and DeepSpeed read them (with only Slurm's, DeepSpeed looks for MPI)."""
    pairs = {"RANK": ("SLURM_PROCID", "0"), "LOCAL_RANK": ("SLURM_LOCALID", "0"), "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "1")}
    for name, (source, default) in pairs.items():
        os.environ.setdefault(name, os.environ.get(source, default))
    if int(os.environ["WORLD_SIZE"]) > 1:
        raise TrainingError(f"{os.environ['WORLD_SIZE']} processes were started: this version trains in one; ask for one task")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")


def _skip_shared_memory_op() -> None:
    """Keeps DeepSpeed 0.19 from compiling its shared-memory all-reduce on the CPU: 30 s and a C++ compiler, unused by one process."""
    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None:
        deepspeed.ops.__compatible_ops__[builder.NAME] = False


class DeepSpeedEngine:
    """One module, its optimiser and its precision. Several may live in one process."""

    def __init__(self, module: torch.nn.Module, settings: EngineSettings) -> None:
        if settings.zero_stage != 0:
            raise TrainingError(f"zero_stage {settings.zero_stage}: one process has nothing to share out; set 0")
        self.settings = settings
        self.module = module
        trainable = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if not trainable:
            raise TrainingError("no parameter of the model can be trained")
        self._names = trainable
        self.optimizer = torch.optim.AdamW(
            list(trainable.values()),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=self.optimizer, config=_config(settings), dist_init_required=False)
        # One process has nothing to reduce, but DeepSpeed 0.19 would copy all gradients into one buffer and back (a fifth of a step).
        self._engine.enable_backward_allreduce = False

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine(*args, **kwargs)

    def train(self) -> None:
        self._engine.train()

    def eval(self) -> None:
        self._engine.eval()

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of `loss` as they are: nothing is divided by a number of micro-batches."""
        if not torch.isfinite(loss.detach()):
            raise GuardTripped("non_finite_loss", f"the loss is {float(loss.detach())}")
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clips and updates; gives the norm of the gradients before clipping, and refuses one that is not finite."""
        limit = self.settings.max_grad_norm if self.settings.max_grad_norm > 0 else float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(self._names.values(), limit))
        if not norm < float("inf"):
            raise GuardTripped("non_finite_gradient", f"the norm of the gradients is {norm}; no update was made")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        return norm

    def capture(self, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]:
        """Weights and moments by parameter name, as the groups ``<prefix>.model`` and ``<prefix>.optimizer``."""
        return capture_state(self.module, self.optimizer, prefix)

    def restore(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        """Puts weights and moments back, exactly those that were saved."""
        restore_state(checkpoint, self.module, self.optimizer, prefix)


def _config(settings: EngineSettings) -> dict[str, Any]:
    """DeepSpeed's configuration. Accumulation is ours: backward as often as needed, then one step."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0,
        "steps_per_print": _NEVER,
        "zero_optimization": {"stage": settings.zero_stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "torch_autocast": {"enabled": settings.precision == "bf16_autocast", "dtype": "bfloat16"},
    }
