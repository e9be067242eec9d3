"""How the speed of both sides grows with sequence length, batch and ranks, and what their checkpoints cost; see docs/benchmarks.md.

    PYTHONPATH=. .local/venv/bin/python -m benchmarks.training.scaling [sft] --rounds 1 --plot docs/images/training-growth

Ranks have one thread each, so one rank uses one core. Checkpoints: the share of the time for which updates stood still (ours copies and
writes behind the work, TRL writes first), and, as writing behind the work takes CPU too, how much longer the same updates took.
"""

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.training.turns import SIDES, Measured, compare
from benchmarks.training.workload import PROGRAMS, Workload, seconds_of

AXES: Mapping[str, Sequence[int]] = {"length": (16, 64, 160), "batch": (4, 16, 48), "ranks": (1, 2)}
LABELS = {"length": "longest answer, words", "batch": "examples an update", "ranks": "ranks, a thread each"}
SAVED = Workload("sft", batch=8, steps=34, hidden=256, layers=6, vocabulary=4096, save_every=10)
"""A model of 5.9 million parameters, whose state is 71 MB, saved every ten updates."""


def cell(start: Workload, axis: str, value: int) -> Workload:
    """The workload with one size changed."""
    threads = 1 if axis == "ranks" else start.threads
    return replace(start, **{axis: value}, threads=threads)  # type: ignore[arg-type]


def growth(start: Workload, rounds: int, axes: Mapping[str, Sequence[int]] = AXES) -> dict[str, list[tuple[float, float, float]]]:
    """Axis → (value, tokens a second of ours, of TRL); printed as a table on the way."""
    print(
        f"{start.program}: {start.hidden} wide, {start.layers} layers, batch {start.batch}, answers of up to {start.length} words, {start.precision}"
    )
    print(
        "\n| varied | value | tokens an update | ours, tokens/s | TRL, tokens/s | ratio by the clock | by CPU |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    found: dict[str, list[tuple[float, float, float]]] = {}
    for axis, values in axes.items():
        for value in values:
            measured = compare(cell(start, axis, value), rounds)
            ours, theirs = (measured.tokens_per_s(side) for side in SIDES)
            found.setdefault(LABELS[axis], []).append((value, ours, theirs))
            print(
                f"| {LABELS[axis]} | {value} | {measured.tokens_per_step:.0f} | {ours:.0f} | {theirs:.0f} | {measured.ratio:.2f} | {measured.cpu_ratio():.2f} |",
                flush=True,
            )
    return found


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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS, nargs="?", default="sft")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--threads", type=int, default=Workload.threads, help="of every turn but those over ranks, which have one each")
    parser.add_argument("--axes", nargs="*", choices=tuple(AXES), default=list(AXES))
    parser.add_argument("--no-checkpoints", action="store_true")
    parser.add_argument("--plot", type=Path, help="path without ending; .svg and .png are written")
    asked = parser.parse_args(argv)
    if asked.axes:
        found = growth(
            Workload(asked.program, steps=asked.steps, threads=asked.threads), asked.rounds, {axis: AXES[axis] for axis in asked.axes}
        )
        if asked.plot is not None:
            from benchmarks.training.plots import growth_plot

            growth_plot(found, asked.plot)
    if not asked.no_checkpoints:
        checkpoints(replace(SAVED, program=asked.program, threads=asked.threads), asked.rounds)
    print(f"\nload average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
