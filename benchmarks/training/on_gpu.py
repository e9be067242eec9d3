"""On a CUDA machine: SFT, reward model, DPO and PPO beside TRL, what a checkpoint costs, and generation beside plain `generate`; 0.56 billion
parameters, bf16, with MFU.

    PYTHONPATH=. .local/venv/bin/python -m benchmarks.training.on_gpu                       # under five minutes
    PYTHONPATH=. .local/venv/bin/python -m benchmarks.training.on_gpu --device cpu --tiny   # the same code, as a trial

The model has random weights, made from a configuration: nothing is fetched. Tokens are those of whole sequences, however they are
computed (our pairs compute a common prefix once, so theirs can exceed what the hardware did); of PPO they are those of the answers drawn,
which random weights do not end, so that all have the same length. What no longer fits into --budget-s is left out by name. Without
TRL: --ours-alone; PPO also where TRL 1.9.2 is not there (docs/benchmarks.md).
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.training.flops import peak_of, per_token, utilisation
from benchmarks.training.ppo_iteration import check_equal_answers
from benchmarks.training.scaling import stall_share
from benchmarks.training.turns import OURS, PPO_TRL, SIDES, compare, environment, random_base
from benchmarks.training.workload import PROGRAMS, PROJECT, Workload

LARGE = Workload(
    "sft", batch=16, steps=14, length=96, hidden=1536, layers=18, heads=12, vocabulary=32768, threads=4, precision="bf16", device="cuda"
)
TINY = Workload("sft", batch=4, steps=7, length=8, hidden=64, layers=2, heads=2, vocabulary=512, threads=1, precision="bf16")
PPO, CHECKPOINTS, GENERATION = "ppo", "checkpoints", "generation"
ALL = (*PROGRAMS, PPO, CHECKPOINTS, GENERATION)
ITERATIONS, SAVE_EVERY = 7, 4
MOST_SHARE = 0.75
"""A measurement begins only while less than this of the time budget is used up."""


def device_name() -> str:
    """The GPU's name as torch tells it."""
    done = subprocess.run(
        [str(OURS), "-c", "import torch; print(torch.cuda.get_device_name())"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit("no CUDA device that torch can use; to try the code: --device cpu --tiny")
    return done.stdout.strip().splitlines()[-1]


def trained(load: Workload, sides: Sequence[str], peak: float | None) -> None:
    """Compares one program and prints its rows of the table."""
    measured = compare(load, 1, sides)
    length = measured.tokens_per_step / load.batch / (1 if load.program == "sft" else 2)
    operations = per_token(measured.parameters, load.layers, load.hidden, length)
    for side in sides:
        speed = measured.tokens_per_s(side)
        share = utilisation(speed, operations, peak)
        mfu = "–" if share is None else f"{share:.1%}"
        ratio = f"{measured.ratio:.2f}" if side == "ours" and len(sides) > 1 else ""
        print(
            f"| {load.program} | {side} | {measured.parameters:,} | {measured.median(side):.3f} | {speed:,.0f} | {mfu} | {ratio} |",
            flush=True,
        )


def iterated(load: Workload, sides: Sequence[str]) -> None:
    """Compares iterations of PPO and prints their rows of the table."""
    if not PPO_TRL.exists() and len(sides) > 1:
        print(f"ppo: {PPO_TRL} is missing, ours alone")
        sides = SIDES[:1]
    measured = compare(replace(load, program=PPO, steps=ITERATIONS, epochs=1), 1, sides)
    for side in sides:
        seconds = measured.median(side)
        speed = measured.answer_tokens(side) * load.batch / seconds
        ratio = f"{measured.ratio:.2f}" if side == "ours" and len(sides) > 1 else ""
        print(f"| ppo, an iteration | {side} | {measured.parameters:,} | {seconds:.3f} | {speed:,.0f} | – | {ratio} |", flush=True)
    if len(sides) > 1:
        check_equal_answers(measured)


def saved(load: Workload, sides: Sequence[str]) -> None:
    """Prints for what share of SFT's time checkpoints stop the updates."""
    measured = compare(replace(load, program="sft", save_every=SAVE_EVERY), 1, sides)
    for side in sides:
        each = statistics.median(measured.turns[side][0]["stalls"])
        print(
            f"checkpoint every {SAVE_EVERY} updates of {measured.median(side):.3f} s, {side}: the updates stood still for "
            f"{stall_share(measured, side):.2%} of the time, {each:.3f} s a save",
            flush=True,
        )


def generated(load: Workload, base: Path) -> None:
    """Runs the comparison of generation on the same model."""
    argv = [str(OURS), "-W", "ignore", "-m", "benchmarks.training.generation", str(base), "--device", load.device, "--rounds", "1"]
    argv += ["--dtype", "bfloat16", "--threads", str(load.threads), "--prompts", "128" if load.device == "cuda" else "8"]
    done = subprocess.run(argv, cwd=PROJECT, env=environment(load, "ours"), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"generation ended with {done.returncode}:\n{done.stderr[-2000:]}")
    print(done.stdout, flush=True)


def _measured(load: Workload, program: str, sides: Sequence[str], peak: float | None) -> None:
    """One of `ALL`, on the base of `load`."""
    if program == GENERATION:
        print()
        generated(load, Path(load.base))
    elif program == PPO:
        iterated(load, sides)
    elif program == CHECKPOINTS:
        print()
        saved(load, sides)
    else:
        trained(replace(load, program=program), sides, peak)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--programs", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--ours-alone", action="store_true")
    parser.add_argument("--peak-tflops", type=float, help="dense bf16 peak of a device whose name is not known")
    parser.add_argument("--budget-s", type=float, default=285.0)
    asked = parser.parse_args(argv)
    load = replace(TINY if asked.tiny else LARGE, device=asked.device)
    name = device_name() if asked.device == "cuda" else "CPU"
    peak = asked.peak_tflops * 1e12 if asked.peak_tflops else peak_of(name)
    sides = SIDES[:1] if asked.ours_alone else SIDES
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        base = random_base(Path(folder), load)
        print(f"{name}, {load.precision}, batch {load.batch}; peak {'not known' if peak is None else f'{peak / 1e12:g} TFLOP/s'}\n")
        print("| program | side | parameters | s an update | tokens/s | MFU | ratio |\n| --- | --- | --- | --- | --- | --- | --- |")
        for program in asked.programs:
            if time.monotonic() - started > MOST_SHARE * asked.budget_s:
                print(f"{program}: left out, {time.monotonic() - started:.0f} of {asked.budget_s:.0f} s are used up")
            else:
                _measured(replace(load, base=str(base)), program, sides, peak)
    print(f"{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
