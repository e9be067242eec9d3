"""The cells of the resume matrix: which runs are killed, and when."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from include.domain.spec import RunSpec
from tests.training.harness import Started, Store

KILL = str(Path(__file__).with_name("kill_at.py"))
MOMENTS = {
    "update": (5, -1),
    "generating": (5, -1),
    "backward": (5, -1),
    "between-steps": (5, -1),
    "half-saved": (1, 0),
    "before-rename": (2, 0),
    "after-rename": (1, 0),
    "export": (1, 0),
}
"""Moment of `kill_at` → (at which time, on which rank; -1: the last one)."""
WITHIN = ("backward", "between-steps")
"""Moments within an update, which cells of small micro-batches alone can have: between two of them, and between the actor's and the critic's step."""
DRAWING = ("ppo", "generate")
"""Programs that write answers, and so may die in the middle of one."""
INPUTS = {
    "sft": {"base": "base", "demonstrations": "demonstrations"},
    "reward_model": {"base": "policy", "preferences": "preferences"},
    "dpo": {"policy": "policy", "reference": "policy", "preferences": "preferences"},
    "ppo": {"policy": "policy", "reference": "policy", "reward_model": "reward_model", "prompts": "prompts"},
    "generate": {"policy": "policy", "prompts": "asked"},
}
GENERATE = {
    "sampling": {"temperature": 1.0, "top_p": 0.95, "top_k": None, "max_new_tokens": 12},
    "candidates_per_prompt": 2,
    "prompt_limit": 8,
    "side": "train",
    "use": "preference",
    "dtype": "float32",
    "safety_filter_version": "none@1",
    "portion_prompts": 1,
}
OFFLOAD = ((1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "parameters"))
MEGATRON = ((1, 1, 1, "fp32"), (2, 1, 1, "fp32"), (2, 2, 1, "fp32"), (2, 1, 2, "fp32"), (4, 2, 2, "fp32"))
MEGATRON += ((2, 1, 1, "bf16"), (2, 2, 1, "bf16"), (2, 1, 2, "bf16"))
"""Ranks, how many of them are tensor and pipeline parallel, and what the layers compute in."""
STEPS = 8
EVERY = 3
SEEDS = [11, 12, 13]


@dataclass(frozen=True)
class Variant:
    """What a run has beyond its program's plain configuration, and when it dies where that is not as in MOMENTS."""

    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    deaths: Mapping[str, tuple[int, int]] = field(default_factory=dict)


VARIANTS = {
    "plain": Variant(),
    # Dropout, so that the state of chance is part of what must come back.
    "lora": Variant({"lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1}}),
    # Of PPO, where ratios must start at 1.
    "adapters": Variant({"lora": {"rank": 4, "alpha": 8.0}, "learning_rate": 2e-3}),
    "packed": Variant({"packing": True, "early_stop": {"every_steps": 2, "patience": 9}, "eval_rows": 4, "eval_max_new_tokens": 4}),
    # In its second member, and when the checkpoint that ends the first one has just been renamed.
    "ensemble": Variant({"seeds": SEEDS}, deaths={"update": (13, -1), "after-rename": (3, 0)}),
    "dimensions": Variant({"dimensions": ["clarity", "safety"]}),
    "kto": Variant({"loss": "kto", "desirable_weight": 1.2}),
    "reuse": Variant(settings={"reuse_first_pass": True}),
    "frozen": Variant(settings={"frozen": "host"}),
    "micro": Variant(settings={"micro_batch": 1}),
    # Answers two versions old at most, by two generators: a checkpoint has the versions that the next iterations are drawn by.
    "apart": Variant({"generation": "apart", "lag": {"limit": 2}}, {"generators": 2, "generation_batch": 4}),
    "adapters apart": Variant({"generation": "apart", "lora": {"rank": 4, "alpha": 8.0}, "learning_rate": 2e-3}),
}
"""What changes with the cell's name."""


@dataclass(frozen=True)
class Cell:
    """One run: which program, on how many ranks, at which ZeRO stage, with what in the CPU's memory; on Megatron, how the
    model is cut; what its layers compute in; and in which variant. `only`: the moments to try; all without any."""

    program: str
    ranks: int
    zero_stage: int = 0
    engine: str = "deepspeed"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    precision: str = "fp32"
    offload: str = "none"
    variant: str = "plain"
    only: tuple[str, ...] = ()

    @property
    def cut(self) -> str:
        return f"{self.tensor_parallel}×{self.pipeline_parallel}"

    @property
    def name(self) -> str:
        told = f"{self.program} {self.engine} {self.ranks} {self.zero_stage} {self.cut} {self.precision} {self.offload}"
        return told if self.variant == "plain" else f"{told} {self.variant}"

    @property
    def columns(self) -> dict[str, str]:
        named = {"program": self.program, "engine": self.engine, "ranks": self.ranks, "ZeRO": self.zero_stage}
        named |= {"TP×PP": self.cut, "precision": self.precision, "offload": self.offload, "variant": self.variant}
        return {name: str(value) for name, value in named.items()}

    @property
    def moments(self) -> tuple[str, ...]:
        usual = (moment for moment in MOMENTS if moment not in WITHIN)
        return self.only or tuple(moment for moment in usual if moment != "generating" or self.program in DRAWING)

    def spec(self, store: Store, config: Mapping[str, Any], salt: str) -> RunSpec:
        """Of STEPS steps."""
        changed = {**config, **VARIANTS[self.variant].config}
        if self.program == "generate":
            changed |= {"dtype": "bfloat16" if self.precision == "bf16" else "float32"}
        else:
            steps = "iterations" if self.program == "ppo" else "steps"
            changed |= {steps: STEPS, "zero_stage": self.zero_stage, "engine": self.engine, "precision": self.precision}
        spec = store.spec(self.program, INPUTS[self.program], changed, salt=salt)
        return spec if self.engine == "deepspeed" else replace(spec, program=f"{spec.program}_{self.engine}")

    def run(self, store: Store, spec: RunSpec, n: int = 1, moment: str | None = None) -> Started:
        variant = VARIANTS[self.variant]
        settings: dict[str, Any] = {"save_every_steps": EVERY, "save_in_background": True, "micro_batch": 4}
        settings |= {"tensor_parallel": self.tensor_parallel, "pipeline_parallel": self.pipeline_parallel, "offload": self.offload}
        settings |= variant.settings
        if moment is None:
            return store.run_ranks(spec, self.ranks, n, **settings)
        number, rank = variant.deaths.get(moment, MOMENTS[moment])
        # What a writer of answers saves has no tensors.
        hook = "half-saved-state" if (self.program, moment) == ("generate", "half-saved") else moment
        wrapper = [KILL, spec.program, hook, str(number)]
        return store.run_ranks(spec, self.ranks, n, {rank % self.ranks: wrapper}, **settings)


def cells() -> Iterator[Cell]:
    """All of them: four trainers on one and two ranks at every ZeRO stage, three of them on Megatron and with offload too, the writer of
    candidates, and at a few moments each what recipes change about these."""
    for place in product(("sft", "reward_model", "dpo", "ppo"), (1, 2), (0, 1, 2, 3)):
        yield Cell(*place)
    for program, place in product(("sft", "reward_model", "dpo"), MEGATRON):
        ranks, tensor, pipeline, precision = place
        yield Cell(program, ranks, 0, "megatron", tensor, pipeline, precision)
    for program, (stage, offload) in product(("sft", "reward_model", "dpo"), OFFLOAD):
        yield Cell(program, 2, stage, offload=offload)
    yield Cell("generate", 1)
    yield from changed_cells()
    yield from cells_within()


def changed_cells() -> Iterator[Cell]:
    """bfloat16 by autocast (of PPO's frozen models the linear weights are then kept rounded), adapters, packed rows with an early stop,
    ensembles, dimensions beside the preference, a loss with a reference point of its own (kto), first passes that are learnt from, frozen
    models that come from the CPU's memory, and answers by generators beside PPO's trainer."""
    autocast, saved = "bf16_autocast", ("update", "before-rename")
    for program, (ranks, stage) in product(("sft", "reward_model", "dpo"), ((1, 0), (2, 3))):
        yield Cell(program, ranks, stage, precision=autocast, only=saved)
    yield Cell("sft", 2, 3, precision=autocast, variant="packed", only=saved)
    for program in ("sft", "dpo"):
        yield Cell(program, 1, 0, variant="lora", only=saved)
        yield Cell(program, 2, 2, precision=autocast, variant="lora", only=("half-saved",))
        yield Cell(program, 2, 3, precision=autocast, variant="lora", only=("update",))
    yield Cell("reward_model", 1, 0, variant="ensemble", only=("update", "after-rename"))
    yield Cell("reward_model", 2, 3, precision=autocast, variant="ensemble", only=("update",))
    yield Cell("reward_model", 2, 2, variant="dimensions", only=("update", "before-rename", "export"))
    yield Cell("dpo", 1, 0, variant="kto", only=saved)
    yield Cell("dpo", 2, 3, precision=autocast, variant="kto", only=("update",))
    yield Cell("dpo", 2, 0, "megatron", 2, 1, variant="kto", only=("update",))
    yield Cell("dpo", 2, 0, "megatron", 1, 2, variant="kto", only=("before-rename",))
    yield Cell("ppo", 1, 0, precision=autocast, only=("update", "generating"))
    yield Cell("ppo", 2, 3, precision=autocast, only=("generating",))
    yield Cell("ppo", 1, 0, variant="reuse", only=("update",))
    yield Cell("ppo", 2, 2, precision=autocast, variant="reuse", only=("update", "before-rename"))
    for ranks, stage in ((1, 0), (2, 0), (2, 2), (2, 3)):
        yield Cell("ppo", ranks, stage, variant="adapters")
    yield Cell("ppo", 2, 3, precision=autocast, variant="adapters", only=saved)
    yield Cell("ppo", 1, 0, precision=autocast, variant="frozen", only=("generating", "export"))
    yield Cell("ppo", 2, 3, precision=autocast, variant="frozen", only=("generating", "export"))
    yield Cell("ppo", 2, 2, precision=autocast, offload="optimizer", variant="frozen", only=("update",))
    for ranks, stage in ((1, 0), (2, 0), (2, 2), (2, 3)):
        yield Cell("ppo", ranks, stage, variant="apart", only=("update", "half-saved", "before-rename", "after-rename", "export"))
    yield Cell("ppo", 2, 3, precision=autocast, variant="apart", only=saved)
    yield Cell("ppo", 2, 2, variant="adapters apart", only=("update", "after-rename"))
    yield Cell("generate", 1, precision="bf16", only=("generating", "half-saved"))


def cells_within() -> Iterator[Cell]:
    """Micro-batches of one row, and a death within an update."""
    for program, (ranks, stage) in product(("sft", "reward_model", "dpo"), ((1, 0), (2, 0), (2, 3))):
        yield Cell(program, ranks, stage, variant="micro", only=("backward",))
    for ranks, stage in ((1, 0), (2, 0), (2, 3)):
        yield Cell("ppo", ranks, stage, variant="micro", only=WITHIN)
