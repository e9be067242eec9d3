"""Our side of a turn: with a folder alone it makes base and rows (with `base` the base alone); with OUT and a number it runs the
stage program on them once.

On several ranks each is such a process; the first one prepares the attempt and writes what was measured.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.training.rows import OPTIMISER, REWARD_SEED, VALIDATION, prepare, prepare_base
from benchmarks.training.workload import BETA, KL, PPO_LEARNING_RATE, Workload, means_of
from include.domain.layout import RunDir
from include.domain.spec import InputPlace, RunSpec
from include.runtime.job import Job
from include.runtime.ranks import ranks_of_environment
from include.training import dpo, loop, ppo, reward_model, sft
from tests.training.harness import Store

INPUTS = {
    "sft": {"base": "base", "demonstrations": "data"},
    "reward_model": {"base": "base", "preferences": "data"},
    "dpo": {"policy": "base", "reference": "base", "preferences": "data"},
    "ppo": {"policy": "base", "reference": "base", "reward_model": "reward_model", "prompts": "data"},
}
PROGRAMS = {"sft": sft.main, "reward_model": reward_model.main, "dpo": dpo.main, "ppo": ppo.main}
PLACED_S = 60.0


def config(load: Workload) -> dict[str, Any]:
    """The identity settings of the run."""
    common = {"precision": "fp32" if load.precision == "fp32" else "bf16_autocast", "max_length": load.max_length}
    if load.program == "ppo":
        return {**common, **_ppo(load)}
    own: dict[str, Any] = {
        "sft": {"packing": True} if load.packing else {},
        "reward": {"early_stop": {"every_steps": load.steps}, "eval_pairs": VALIDATION},
        "dpo": {"beta": BETA},
    }[load.program]
    return {**common, **OPTIMISER, "learning_rate": load.learning_rate, "steps": load.steps, "global_batch": load.batch, **own}


def _ppo(load: Workload) -> dict[str, Any]:
    """The guard of the value loss looks, but lets pass: the values of a reward model of four updates mean nothing."""
    return {
        "iterations": load.steps,
        "prompts_per_iteration": load.batch,
        "minibatch": load.batch,
        "max_length": load.max_length + load.new_tokens,
        "epochs": load.epochs,
        "max_new_tokens": load.new_tokens,
        "temperature": 1.0,
        "learning_rate": PPO_LEARNING_RATE,
        "critic_learning_rate": PPO_LEARNING_RATE,
        "kl": {"controller": "fixed", "initial": KL},
        "reward": {"model_weight": 1.0, "verifier_weight": 0.0},
        "guards": {"value_loss_max": 1e9, "value_loss_factor": 1e9},
    }


def _attempt(store: Store, spec: RunSpec, load: Workload, rank: int) -> list[str]:
    """The program's arguments; ranks after the first wait until that one has written them down."""
    settings = {
        "micro_batch": load.micro_batch or load.batch // load.ranks,
        "generation_batch": 256,
        "save_every_steps": load.save_every or 10**6,
    }
    if load.program == "ppo":
        settings["reuse_first_pass"] = load.reuse
    if rank == 0:
        return store.prepare(spec, save_in_background=True, keep_checkpoints=1, **settings)
    run = store.root / RunDir(spec.key).root
    attempt = run / "attempts" / "1-100.0"
    until = time.monotonic() + PLACED_S
    while not (attempt / "placement.json").exists() or not (attempt / "placement.json").read_text().endswith("}"):
        if time.monotonic() > until:
            raise SystemExit(f"rank {rank}: {attempt} was not prepared in {PLACED_S} s")
        time.sleep(0.05)
    return ["--spec", str(run / "spec.json"), "--placement", str(attempt / "placement.json"), "--out", str(attempt)]


def timed_updates() -> list[float]:
    """CPU seconds of this process, all its threads, at the end of each update to come."""
    spent, record = [], Job.record

    def timed(self: Job, *arguments: Any, **options: Any) -> None:
        spent.append(time.process_time())
        record(self, *arguments, **options)

    Job.record = timed  # type: ignore[method-assign]
    return spent


def timed_saves() -> list[float]:
    """Seconds for which each save to come stops the loop."""
    stalls, save = [], loop._save

    def timed(*arguments: Any, **options: Any) -> None:
        started = time.monotonic()
        save(*arguments, **options)
        stalls.append(time.monotonic() - started)

    loop._save = timed
    return stalls


def measure(folder: Path, out: Path, number: int) -> None:
    """One run; the ends of its updates, last losses and the seconds of each save but the last go into `out`."""
    load, rank = Workload.read(folder), ranks_of_environment().rank
    told = json.loads((folder / "rows.json").read_text("utf-8"))
    store = Store(folder / "store", threads=load.threads)
    store.places = {name: InputPlace(**place) for name, place in told["places"].items()}
    stage = "reward_model" if load.program == "reward" else load.program
    salt = f"{number}/{load.to_json()}"
    arguments = _attempt(store, store.spec(stage, INPUTS[stage], config(load), REWARD_SEED, salt), load, rank)
    spent, stalls = timed_updates(), timed_saves()
    if PROGRAMS[stage](arguments):
        raise SystemExit(1)
    if rank:
        return
    lines = [json.loads(line) for line in (Path(arguments[-1]) / "metrics.jsonl").read_text("utf-8").splitlines()]
    loss = "value_loss" if load.program == "ppo" else "loss"
    losses = [line[loss] for line in lines]
    found = {
        "ends": [line["time"] for line in lines],
        "loss": means_of(losses)[-1],
        "losses": means_of(losses),
        "cpu": spent[-len(lines) :],
        "stalls": stalls[:-1],
        "answer_tokens": sum(line.get("answer_tokens", 0.0) for line in lines) / len(lines),
    }
    out.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        prepare(Path(sys.argv[1]))
    elif sys.argv[2:] == ["base"]:
        prepare_base(Path(sys.argv[1]))
    else:
        measure(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
