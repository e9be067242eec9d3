"""How the speed of both sides grows with sequence length, batch and ranks, and what their checkpoints cost; see docs/benchmarks.md.

    PYTHONPATH=. .local/venv/bin/python -m benchmarks.training.scaling [sft|reward|dpo] --rounds 1 --plot docs/images/training-growth
    PYTHONPATH=. .local/venv/bin/python -m benchmarks.training.scaling ppo|generation [--axes length] [--values 16 48] [--ours-alone]

Ranks have one thread each, so one rank uses one core. PPO: iterations a minute, by longest answer, answers an iteration and ranks (TRL has one). Generation: useful
tokens a second of `generate_batch` and of a plain `generate`, by longest answer, prompts, and processes that share them as shards do. Checkpoints: the share of the time for which updates stood still (ours copies and
writes behind the work, TRL writes first), and, as writing behind the work takes CPU too, how much longer the same updates took.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.training.turns import OURS, SIDES, Measured, compare, environment, random_base
from benchmarks.training.workload import PROGRAMS, PROJECT, Workload, seconds_of

LENGTH, BATCH, RANKS = "length", "batch", "ranks"
PPO, GENERATION = "ppo", "generation"
TRAINED = {LENGTH: (16, 64, 160), BATCH: (4, 16, 48), RANKS: (1, 2)}
AXES: Mapping[str, Mapping[str, Sequence[int]]] = {
    **dict.fromkeys(PROGRAMS, TRAINED),
    PPO: {LENGTH: (16, 48, 96), BATCH: (8, 32, 64), RANKS: (1, 2)},
    GENERATION: {LENGTH: (16, 48, 96), BATCH: (32, 128, 256), RANKS: (1, 2)},
}
LABELS: Mapping[str, Mapping[str, str]] = {
    **{program: {LENGTH: "longest answer, words", BATCH: "examples an update", RANKS: "ranks, a thread each"} for program in PROGRAMS},
    PPO: {LENGTH: "longest answer, tokens", BATCH: "answers an iteration", RANKS: "ranks, a thread each"},
    GENERATION: {LENGTH: "longest answer, tokens", BATCH: "prompts", RANKS: "processes, a thread each"},
}
SIZES = ("vocabulary", "hidden", "layers", "heads")
PLOTTED = {PPO: ("TRL 1.9.2", "iterations a minute"), GENERATION: ("plain generate", "useful tokens a second")}
Found = dict[str, list[tuple[float, float, float]]]
"""Axis → (value, speed of ours, of the other side; not a number where it had no turn)."""
SAVED = Workload("sft", batch=8, steps=34, hidden=256, layers=6, vocabulary=4096, save_every=10)
"""A model of 5.9 million parameters, whose state is 71 MB, saved every ten updates."""


def cell(start: Workload, axis: str, value: int) -> Workload:
    """The workload with one size changed."""
    changed = {"new_tokens" if (start.program, axis) == (PPO, LENGTH) else axis: value}
    return replace(start, **changed, threads=1 if axis == RANKS else start.threads)  # type: ignore[arg-type]


def growth(start: Workload, rounds: int, axes: Mapping[str, Sequence[int]], sides: Sequence[str] = SIDES) -> Found:
    """Tokens a second, of PPO iterations a minute, of both sides; printed as a table on the way."""
    unit = "iterations/min" if start.program == PPO else "tokens/s"
    print(
        f"{start.program}: {start.hidden} wide, {start.layers} layers, {start.vocabulary or 'few hundred'} rows of embeddings, batch {start.batch}, "
        f"texts of up to {start.length} words, {start.precision}"
    )
    print(
        f"\n| varied | value | tokens an update | ours, {unit} | TRL, {unit} | ratio by the clock | by CPU |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    found: Found = {}
    for axis, value in ((axis, value) for axis, values in axes.items() for value in values):
        load = cell(start, axis, value)
        measured = compare(load, rounds, sides if start.program != PPO or load.ranks == 1 else SIDES[:1])
        ours, theirs = (60 / measured.median(side) if start.program == PPO else measured.tokens_per_s(side) for side in SIDES)
        label = LABELS[start.program][axis]
        found.setdefault(label, []).append((value, ours, theirs))
        tokens = _answer_tokens(measured) if start.program == PPO else measured.tokens_per_step
        shown = [f"{tokens:.0f}", *map(_shown, (ours, theirs)), *(f"{ratio:.2f}" for ratio in (measured.ratio, measured.cpu_ratio()))]
        print(f"| {label} | {value} | {' | '.join(shown)} |".replace("nan", "–"), flush=True)
    return found


def _shown(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.2f}"


def _answer_tokens(measured: Measured) -> float:
    """Of an iteration, as ours told them."""
    return statistics.median(found["answer_tokens"] for found in measured.turns["ours"]) * measured.load.batch


def generation_growth(threads: int, rounds: int, axes: Mapping[str, Sequence[int]]) -> Found:
    """Useful tokens a second of both; processes share the prompts out, and their speeds are added up."""
    print("generation: a random Llama of 0.95 million parameters, or 128 prompts and answers of up to 48 tokens where these are not varied")
    print(
        "\n| varied | value | generate_batch, tokens/s | plain generate at its best batch, tokens/s | ratio |\n| --- | --- | --- | --- | --- |"
    )
    found: Found = {}
    for axis, value in ((axis, value) for axis, values in axes.items() for value in values):
        sizes = {LENGTH: 48, BATCH: 128, RANKS: 1} | {axis: value}
        ours, plain = _generated(sizes, 1 if axis == RANKS else threads, rounds)
        label = LABELS[GENERATION][axis]
        found.setdefault(label, []).append((value, ours, plain))
        print(f"| {label} | {value} | {ours:.0f} | {plain:.0f} | {ours / plain:.2f} |", flush=True)
    return found


def _generated(sizes: Mapping[str, int], threads: int, rounds: int) -> tuple[float, float]:
    """The sums over so many processes at once, each of its share of the prompts."""
    argv = [str(OURS), "-W", "ignore", "-m", "benchmarks.training.generation", "--json", "--rounds", str(rounds), "--threads", str(threads)]
    argv += ["--prompts", str(sizes[BATCH] // sizes[RANKS]), "--new-tokens", str(sizes[LENGTH])]
    given = environment(Workload("sft", threads=threads), "ours")
    started = [
        subprocess.Popen(argv, env=given, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(sizes[RANKS])
    ]
    said = [process.communicate() for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"generation ended with {[process.returncode for process in started]}:\n{said[0][1][-3000:]}")
    told = [json.loads(out.splitlines()[-1]) for out, _ in said]
    return sum(one["ours"] for one in told), sum(one["plain"] for one in told)


def stall_share(measured: Measured, side: str) -> float:
    """Of the measured time, the share in which updates stood still for a save that is not the last; the median of the turns."""
    return statistics.median(sum(found["stalls"]) / seconds_of(found["ends"]) for found in measured.turns[side])


def checkpoints(load: Workload, rounds: int) -> None:
    """Prints what a checkpoint every so many updates costs each side."""
    saved, unsaved = compare(load, rounds), compare(replace(load, save_every=0), rounds)
    print(
        f"\nA checkpoint every {load.save_every} updates of {unsaved.median('ours'):.2f} s (TRL {unsaved.median('trl'):.2f} s), {saved.parameters} parameters\n"
    )
    print("| side | stood still, share of the time | a save, s | the same updates took longer by |\n| --- | --- | --- | --- |")
    for side in SIDES:
        each = statistics.median(stall for found in saved.turns[side] for stall in found["stalls"])
        longer = saved.median(side) / unsaved.median(side) - 1
        print(f"| {side} | {stall_share(saved, side):.2%} | {each:.3f} | {longer:.1%} |", flush=True)


def _asked(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=tuple(AXES), nargs="?", default="sft")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=14, help="updates of a turn, of PPO iterations")
    parser.add_argument("--threads", type=int, default=Workload.threads, help="of every turn but those over ranks, which have one each")
    for size in SIZES:
        parser.add_argument(f"--{size}", type=int, default=getattr(Workload, size), help="of the trained model; not for generation")
    parser.add_argument("--axes", nargs="*", choices=tuple(TRAINED), default=list(TRAINED))
    parser.add_argument("--values", nargs="+", type=int, help="in place of the values of the one axis that is named")
    parser.add_argument("--ours-alone", action="store_true", help="without TRL's turns")
    parser.add_argument("--no-checkpoints", action="store_true")
    parser.add_argument("--plot", type=Path, help="path without ending; .svg and .png are written")
    asked = parser.parse_args(argv)
    if asked.values and len(asked.axes) != 1:
        parser.error("--values belongs to one axis: name it with --axes")
    return asked


def main(argv: Sequence[str] | None = None) -> None:
    asked = _asked(argv)
    axes = {axis: asked.values or AXES[asked.program][axis] for axis in asked.axes}
    sides = SIDES[:1] if asked.ours_alone else SIDES
    found: Found = {}
    if asked.program == GENERATION:
        found = generation_growth(asked.threads, asked.rounds, axes)
    elif axes:
        sizes = {"batch": 32, "length": 40} if asked.program == PPO else {}
        sizes |= {size: getattr(asked, size) for size in SIZES}
        start = Workload(asked.program, steps=asked.steps, threads=asked.threads, **sizes)
        with tempfile.TemporaryDirectory() as folder:
            if asked.program == PPO:  # Its policy is trained until it ends its answers: once for all rows.
                start = replace(start, base=str(random_base(Path(folder), start)))
            found = growth(start, asked.rounds, axes, sides)
    if found and asked.plot is not None:
        from benchmarks.training.plots import growth_plot

        growth_plot(found, asked.plot, *PLOTTED.get(asked.program, ("TRL 1.16", "tokens a second")))
    if asked.program in PROGRAMS and not asked.no_checkpoints and not asked.ours_alone:
        checkpoints(replace(SAVED, program=asked.program, threads=asked.threads), asked.rounds)
    print(f"\nload average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
