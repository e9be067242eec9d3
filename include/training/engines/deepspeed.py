"""DeepSpeed as the engine of a trainer, on one rank or many, ZeRO 0 to 3, with optimiser or parameters in the CPU's memory.

Float32 parameters, with bfloat16 as autocast where asked for: DeepSpeed's own bf16 mode would build its float32 master
from weights rounded to bf16. The optimiser is torch's AdamW. The state is saved as named tensors, of
which each rank writes its part, not as DeepSpeed's pickles: it can be read at another stage, on another number of ranks, and by any engine.
"""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from include.runtime.checkpoint import Checkpoint
from include.runtime.errors import RankDone
from include.runtime.job import Job
from include.runtime.pieces import Owned
from include.runtime.ranks import Ranks, ranks_of_environment
from include.training.engines import zero_state
from include.training.engines.engine import EngineSettings, FiniteLosses, MicroBatch, adamw, check_norm, learn_in_turn
from include.training.engines.optimizer_state import capture_state, groups_of, restore_state, saved_state, trainable
from include.training.engines.precision import precision_context
from include.training.engines.whole import FromFirst, fill_in, home_of, put_back, split
from include.training.errors import TrainingError

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.torch_autocast import PARAM_COMM_DTYPE_ATTR_NAME
from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

OFFLOADS = {"none": 0, "optimizer": 1, "parameters": 3}
"""What lies in the CPU's memory between its uses → the lowest ZeRO stage that can do it. `parameters` takes the optimiser along."""
_NEVER = 10**9
_BUCKET = 500_000_000
"""Elements a gradient all-reduce takes at once, as DeepSpeed's own default."""


_ranks = Ranks()


@contextmanager
def engines(ranks: Ranks | None = None) -> Iterator[None]:
    """Around everything that uses an engine; a single process joins a group of its own, and leaves it in order (else some
    runs abort at exit).

    Args:
        ranks: those of the job; None: a single process.
    """
    global _ranks
    _ranks = ranks or Ranks()
    started = not torch.distributed.is_initialized()
    if started:
        if ranks_of_environment().count > 1:
            raise TrainingError("several processes were started, and they have not met: run them through run_program with many_ranks")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    _skip_shared_memory_op()
    deepspeed.init_distributed(dist_init_required=False)
    try:
        yield
    finally:
        _ranks = Ranks()
        if started:
            deepspeed.comm.destroy_process_group()  # torch's alone would leave DeepSpeed a group that is no more


def engine_maker(job: Job) -> Callable[[torch.nn.Module, EngineSettings], "DeepSpeedEngine"]:
    """The engine as the job's placement asks for it (`offload`)."""
    offload = job.settings.text("offload", tuple(OFFLOADS), "none")
    if offload != "none" and not torch.cuda.is_available():
        job.warn(f"offload: {offload} moves nothing out of the way here: there is no GPU, all memory is the CPU's")
    return partial(DeepSpeedEngine, offload=offload)


def _skip_shared_memory_op() -> None:
    """Keeps DeepSpeed 0.19 from compiling its shared-memory all-reduce on the CPU (30 s and a C++ compiler); gloo does it."""
    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None:
        deepspeed.ops.__compatible_ops__[builder.NAME] = False


def _drop_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


class DeepSpeedEngine:
    """One module, its optimiser and its precision. Several may live in one process.

    Args:
        offload: one of `OFFLOADS`. Where the optimiser's arithmetic happens; results differ by its rounding alone.
    """

    def __init__(self, module: torch.nn.Module, settings: EngineSettings, offload: str = "none") -> None:
        if settings.zero_stage < OFFLOADS[offload]:
            raise TrainingError(f"offload: {offload} needs zero_stage {OFFLOADS[offload]} at least, this run has {settings.zero_stage}")
        self.settings = settings
        self.data = _ranks
        self._own = module
        if not trainable(module):
            raise TrainingError("no parameter of the model can be trained")
        if settings.precision == "bf16" or settings.distributed_optimizer:
            raise TrainingError(
                "engine deepspeed: precision bf16 and distributed_optimizer are Megatron's; set bf16_autocast, and zero_stage"
            )
        self._inner = split(module) if settings.zero_stage == 3 else module
        self._names = trainable(self._inner)
        self._shapes = {name: value.shape for name, value in trainable(module).items()}
        self._losses = FiniteLosses(self.data)
        self._published = False
        self.optimizer = adamw(self._names.values(), settings)
        config = _config(settings, offload)
        self._engine, *_ = deepspeed.initialize(model=self._inner, optimizer=self.optimizer, config=config, dist_init_required=False)
        self._device = torch.device(self._engine.device)
        self._zero: Any = self._engine.optimizer if settings.zero_stage else None
        if settings.zero_stage == 3 and settings.precision == "bf16_autocast":
            _gather_shared_as_they_are(self._inner, self._zero)
        if settings.zero_stage == 0:
            # Reduced in `step`, before clipping. One process has nothing to reduce, but DeepSpeed 0.19 would copy all gradients into one
            # buffer and back (a fifth of a step).
            self._engine.enable_backward_allreduce = False
            # DeepSpeed would look up every parameter's name to drop its gradient; those that have one are known.
            self._engine.zero_grad = partial(_drop_gradients, tuple(self._names.values()))

    @property
    def module(self) -> torch.nn.Module:
        return self._own if self._published else self._inner

    @property
    def device(self) -> torch.device:
        return self._device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._published:
            with precision_context(self.settings.precision, self.device.type):
                return self._own(*args, **kwargs)
        return self._engine(*args, **kwargs)

    def frozen(self, scorer: Any) -> Any:
        return scorer.eval().to(self.device).requires_grad_(False)

    def train(self) -> None:
        """Asked for before every step: where every module is in train mode already nothing is set."""
        if not all(part.training for part in self._engine.module.modules()):
            self._engine.train()

    def eval(self) -> None:
        if not self._published:
            self._engine.eval()
        self._own.eval()

    def learn(self, parts: Iterable[MicroBatch]) -> dict[str, float]:
        return learn_in_turn(self, parts)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of `loss` as they are: nothing is divided by a number of micro-batches or of ranks."""
        self._losses.see(loss)
        # DeepSpeed gives the mean over ranks; the sum is meant.
        self._engine.backward(loss * self.data.count if self.data.count > 1 else loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clips and updates; gives the norm of the gradients before clipping, and refuses one that is not finite."""
        self._losses.settle()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._zero is not None:
            self._engine.step()
            norm = float("inf") if self._zero.overflow else float(self._engine.get_global_grad_norm())
            check_norm(norm if norm >= 0 else float("inf"))  # DeepSpeed says -1 for one that is not finite
            return norm
        if self.data.count > 1:
            self._engine.buffered_allreduce_fallback(elements_per_buffer=_BUCKET)
        limit = self.settings.max_grad_norm if self.settings.max_grad_norm > 0 else float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(self._names.values(), limit))
        check_norm(norm)
        self._engine.step()
        return norm

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Whole trainable weights by name, on the CPU of the first rank."""
        if self._zero is not None and not self._published:
            return zero_state.gather_weights(self._zero, self._names, main=self.data.main)
        own = trainable(self.module)
        return Owned((name, value.detach().to("cpu", copy=True)) for name, value in own.items() if self.data.main)

    @property
    def cut_up(self) -> bool:
        """Whether each rank holds a part of every weight, so that `module` computes only when all ranks compute (stage 3)."""
        return self.settings.zero_stage == 3 and not self._published

    def each_weight(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole trainable weights by name, one after the other, on every rank; each holds until the next. Every rank goes through all."""
        if self.cut_up:
            yield from zero_state.each_weight(self._zero, self._names)
        else:
            yield from ((name, value.detach()) for name, value in trainable(self.module).items())

    def capture(self, prefix: str = "") -> dict[str, Mapping[str, torch.Tensor]]:
        """Weights and moments by parameter name, as the groups ``<prefix>.model`` and ``<prefix>.optimizer``; from stage 1 on in pieces."""
        if self._zero is not None:
            return groups_of(*zero_state.own_pieces(self._zero, self._names, self.data), prefix)
        return capture_state(self._inner, self.optimizer, prefix) if self.data.main else groups_of({}, {}, prefix)

    def restore(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        """Puts weights and moments back, exactly those that were saved."""
        if self._zero is None:
            restore_state(checkpoint, self._inner, self.optimizer, prefix)
        else:
            zero_state.scatter(self._zero, self._names, *saved_state(checkpoint, set(self._names), prefix))

    def use(self, weights: Mapping[str, torch.Tensor]) -> None:
        given = FromFirst(weights, self._shapes, Ranks() if self._published else self.data)
        if self._zero is not None and not self._published:
            zero_state.scatter(self._zero, self._names, given, {})
        else:
            fill_in(trainable(self.module), given)

    def publish(self) -> None:
        """Whole weights in the trainer's own module on the first rank; the other ranks are done."""
        if self.settings.zero_stage == 0 and self.data.count == 1:
            return
        whole = dict(self.weights())
        if self.settings.zero_stage == 3:
            whole |= zero_state.gather_frozen(self._inner, main=self.data.main)
        if not self.data.main:
            raise RankDone(f"rank {self.data.rank} has done its last step")
        if self.settings.zero_stage == 3:
            self.close()
            put_back(self._own, whole)
        else:
            for parameter in self._names.values():
                parameter.data = parameter.data.clone()  # out of DeepSpeed's flat buffer
        self._device = home_of(self._own, self.device)
        self._own.to(self._device).eval()
        self._published = True

    def close(self) -> None:
        """Gives up what it holds, gradients and moments too; it cannot learn or compute any more."""
        self._engine.destroy()
        FWD_MODULE_STACK[:] = [module for module in FWD_MODULE_STACK if module is not self._inner]  # DeepSpeed 0.19 keeps it there
        self._engine = self._zero = None
        self._inner, self._names = self._own, {}
        del self.optimizer
        gc.collect()  # engine, hooks and parameters point at each other


def _gather_shared_as_they_are(module: torch.nn.Module, zero: Any) -> None:
    """Keeps a weight that an embedding shares with a linear layer in float32 wherever it is gathered.

    DeepSpeed 0.19 gathers linear layers' weights in bfloat16, but the small ones, which it leaves gathered, in float32 after an update. To a linear layer under autocast
    both are the same; an embedding would look up rounded rows before a run's first update and after a resumption, exact ones else.
    """
    shared = (value for layer in module.modules() if isinstance(layer, torch.nn.Embedding) for value in layer.parameters(recurse=False))
    for value in shared:
        if hasattr(value, PARAM_COMM_DTYPE_ATTR_NAME) and (not value.requires_grad or value.dtype in zero.ipg_buckets):
            delattr(value, PARAM_COMM_DTYPE_ATTR_NAME)


def _config(settings: EngineSettings, offload: str) -> dict[str, Any]:
    """DeepSpeed's configuration. Accumulation is ours: backward as often as needed, then one step. Stage 0 is clipped by torch.

    memory_efficient_linear off: DeepSpeed would put its own `torch.nn.functional.linear` in place for the whole process, which rounds otherwise.
    """
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": settings.max_grad_norm if settings.zero_stage else 0.0,
        "steps_per_print": _NEVER,
        "zero_optimization": {"stage": settings.zero_stage, "memory_efficient_linear": False, **_offload_config(offload)},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "torch_autocast": {"enabled": settings.precision == "bf16_autocast", "dtype": "bfloat16"},
    }


def _offload_config(offload: str) -> dict[str, Any]:
    """Pinned memory where there is a GPU to copy to. The optimiser stays torch's AdamW: DeepSpeed's own would round otherwise, and be compiled."""
    there = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    names = {"none": (), "optimizer": ("offload_optimizer",), "parameters": ("offload_optimizer", "offload_param")}[offload]
    return dict.fromkeys(names, there)
