"""Program × engine × ranks × ZeRO stage, or tensor × pipeline parallel and precision × moment of death: killed with SIGKILL, resumed, and
compared bit by bit with a run in one go.

    make resume-matrix
    PYTHONPATH=.:plugins python -m tests.training.resume_matrix ppo generate    # these programs alone

Prints a line for each moment of each cell as it goes, then a table; exits 1 when one is not exact, or did not die or end
as it should. Cells that were exact with the same code are not run again (`matrix_results`).
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from include.domain.spec import RunSpec
from tests.training.harness import PROJECT, SFT, Started, Store, demonstrations, prompts, tiny_base
from tests.training.matrix_results import Results, code_digest, line, table

KILL = str(Path(__file__).with_name("kill_at.py"))
MOMENTS = {
    "update": (5, -1),
    "generating": (5, -1),
    "half-saved": (1, 0),
    "before-rename": (2, 0),
    "after-rename": (1, 0),
    "export": (1, 0),
}
"""Moment of `kill_at` → (at which time, on which rank; -1: the last one)."""
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
KEPT = PROJECT / ".local" / "resume-matrix.json"
DIED = "died"
"""What `kill_at` leaves in the attempt's folder."""
_COST = ("time", "tokens")


@dataclass(frozen=True)
class Cell:
    """One run: which program, on how many ranks, at which ZeRO stage, with what in the CPU's memory; on Megatron, how the
    model is cut, and what its layers compute in."""

    program: str
    ranks: int
    zero_stage: int = 0
    engine: str = "deepspeed"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    precision: str = "fp32"
    offload: str = "none"

    @property
    def cut(self) -> str:
        return f"{self.tensor_parallel}×{self.pipeline_parallel}"

    @property
    def name(self) -> str:
        return f"{self.program} {self.engine} {self.ranks} {self.zero_stage} {self.cut} {self.precision} {self.offload}"

    @property
    def columns(self) -> dict[str, str]:
        named = {"program": self.program, "engine": self.engine, "ranks": self.ranks, "ZeRO": self.zero_stage}
        named |= {"TP×PP": self.cut, "precision": self.precision, "offload": self.offload}
        return {name: str(value) for name, value in named.items()}

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(moment for moment in MOMENTS if moment != "generating" or self.program in DRAWING)

    def spec(self, store: Store, config: dict[str, Any], salt: str) -> RunSpec:
        """Of STEPS steps."""
        changed = dict(config)
        if self.program != "generate":
            steps = "iterations" if self.program == "ppo" else "steps"
            changed |= {steps: STEPS, "zero_stage": self.zero_stage, "engine": self.engine, "precision": self.precision}
        spec = store.spec(self.program, INPUTS[self.program], changed, salt=salt)
        return spec if self.engine == "deepspeed" else replace(spec, program=f"{spec.program}_{self.engine}")

    def run(self, store: Store, spec: RunSpec, n: int = 1, moment: str | None = None) -> Started:
        settings: dict[str, Any] = {"save_every_steps": EVERY, "save_in_background": True, "micro_batch": 4}
        settings |= {"tensor_parallel": self.tensor_parallel, "pipeline_parallel": self.pipeline_parallel, "offload": self.offload}
        if moment is None:
            return store.run_ranks(spec, self.ranks, n, **settings)
        number, rank = MOMENTS[moment]
        # What a writer of answers saves has no tensors.
        hook = "half-saved-state" if (self.program, moment) == ("generate", "half-saved") else moment
        wrapper = [KILL, spec.program, hook, str(number)]
        return store.run_ranks(spec, self.ranks, n, {rank % self.ranks: wrapper}, **settings)


@dataclass(frozen=True)
class Outcome:
    """exact: the same losses after the resumption, and the same bytes of all outputs."""

    moment: str
    resumed_at: int
    exact: bool


def figures(started: Started, after: int = 0) -> list[dict[str, Any]]:
    """What was recorded after step `after`, without the clock."""
    path = started.folder / "metrics.jsonl"
    lines = started.lines if path.exists() else []
    return [{k: v for k, v in line.items() if k not in _COST} for line in lines if line["step"] > after]


def results(cell: Cell, started: Started) -> Any:
    """What came out: the digests of all outputs; of rollouts, which name their attempt, all else that is in them."""
    outputs = dict(started.report.outputs)
    if cell.program == "ppo":
        from tests.training.align_store import rollouts_of

        outputs["rollouts"] = rollouts_of(started)  # type: ignore[assignment]
    return outputs


def outcomes(store: Store, cell: Cell, config: dict[str, Any], moments: tuple[str, ...] = ()) -> Iterator[Outcome]:
    """Each moment of one cell (all that it can have, unless told) against a run in one go.

    Raises:
        AssertionError: a run that should have died did not, or one that should have ended well did not.
    """
    name = cell.name
    whole = cell.run(store, cell.spec(store, config, f"{name} in one go"))
    assert whole.code == 0, whole.stderr
    for moment in moments or cell.moments:
        spec = cell.spec(store, config, f"{name} {moment}")
        first = cell.run(store, spec, 1, moment)
        assert first.code != 0, f"{name}: nothing died at {moment}"
        assert (first.folder / DIED).exists(), f"{name}: it did not die at {moment}: {first.stderr}"
        second = cell.run(store, spec, 2)
        assert second.code == 0, second.stderr
        at = second.report.first_step
        same = figures(second) == figures(whole, at) and results(cell, second) == results(cell, whole)
        yield Outcome(moment, at, same)


def prepared() -> tuple[Store, dict[str, dict[str, Any]]]:
    """A store with small inputs for all programs, and each program's configuration."""
    import tests.conftest  # noqa: F401 - makes the cluster's packages importable here, as pytest does
    from tests.training import align_store

    store = Store(Path(tempfile.mkdtemp(prefix="resume-matrix-")))
    tiny_base(store)
    demonstrations(store)
    store.artifact("policy", Path(store.places["base"].path))
    align_store.preferences(store, "preferences")
    align_store.rl_prompts(store)
    prompts(store, "asked")
    rewarded = store.run(align_store.reward_spec(store, steps=2, eval_pairs=4))
    assert rewarded.code == 0, rewarded.stderr
    store.artifact("reward_model", rewarded.output("reward_model"))
    small = {"prompts_per_iteration": 8, "minibatch": 4, "epochs": 1, "max_new_tokens": 12, "reward": {"model_weight": 1.0}}
    ppo = {**align_store.PPO, **small}
    return store, {
        "sft": {**SFT, "eval_rows": 0},
        "reward_model": align_store.REWARD,
        "dpo": align_store.DPO,
        "ppo": ppo,
        "generate": GENERATE,
    }


def cells() -> Iterator[Cell]:
    """All of them: four trainers on one and two ranks at every ZeRO stage, three of them on Megatron and with offload too, and the writer of candidates."""
    for place in product(("sft", "reward_model", "dpo", "ppo"), (1, 2), (0, 1, 2, 3)):
        yield Cell(*place)
    for program, place in product(("sft", "reward_model", "dpo"), MEGATRON):
        ranks, tensor, pipeline, precision = place
        yield Cell(program, ranks, 0, "megatron", tensor, pipeline, precision)
    for program, (stage, offload) in product(("sft", "reward_model", "dpo"), OFFLOAD):
        yield Cell(program, 2, stage, offload=offload)
    yield Cell("generate", 1)


def main(programs: Sequence[str] = ()) -> int:
    """`programs`: those to run; all without any."""
    if unknown := set(programs) - set(INPUTS):
        print(f"{sorted(unknown)[0]} is none of {', '.join(INPUTS)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    chosen = [cell for cell in cells() if not programs or cell.program in programs]
    results = Results(KEPT, code_digest(PROJECT))
    store, configs = prepared()
    for number, cell in enumerate(chosen, 1):
        if results.exact(cell.name, cell.moments):
            print(f"{number}/{len(chosen)} {cell.name}: exact already with this code", flush=True)
            continue
        _run_cell(store, cell, configs[cell.program], results, f"{number}/{len(chosen)}", started)
    print(table([(cell.columns, cell.moments, results.of(cell.name)) for cell in chosen], tuple(MOMENTS)))
    bad = [cell.name for cell in chosen if not results.exact(cell.name, cell.moments)]
    moments = sum(len(cell.moments) for cell in chosen)
    end = f"not exact: {len(bad)} of {len(chosen)} cells" if bad else f"all {moments} moments of {len(chosen)} cells exact"
    print(f"{end}; {time.monotonic() - started:.0f} s, and {results.seconds([cell.name for cell in chosen]):.0f} s over all parts")
    return int(bool(bad))


def _run_cell(store: Store, cell: Cell, config: Mapping[str, Any], results: Results, number: str, started: float) -> None:
    """Runs all moments of one cell; what came out is kept, whatever it is."""
    began, seen, error = time.monotonic(), [], ""
    try:
        for outcome in outcomes(store, cell, dict(config)):
            seen.append(outcome)
            print(line(number, time.monotonic() - started, cell.columns, asdict(outcome)), flush=True)
    except AssertionError as raised:
        error = str(raised)
        print(f"{number} {cell.name}: NO: {error}", flush=True)
    results.keep(cell.name, [asdict(outcome) for outcome in seen], error, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
