"""Plots of the benchmarks, as SVG and PNG that are the same bytes for the same figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.training.learning_chain import Learnt, Share

MODELS = ("base", "sft", "dpo", "ppo")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
"""Of Okabe and Ito: told apart by the colour-blind too."""


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = path.name
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=100)
    plt.close(figure)


def _clean(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


def learning_plot(seeds: Sequence[Learnt], path: Path) -> None:
    """Right answers and asked form by model, and the reward model against chance and length; a colour a seed."""
    figure, (right, form, reward) = plt.subplots(1, 3, figsize=(10, 3.4), width_ratios=(4, 4, 2), layout="constrained")
    for axes, name, title in ((right, "exact", "Right answers"), (form, "form", "In the asked form")):
        for number, found in enumerate(seeds):
            shares: Mapping[str, Share] = getattr(found, name)
            _points(
                axes, [at + 0.12 * (number - 1) for at in range(len(MODELS))], [shares[m] for m in MODELS], number, f"seed {found.seed}"
            )
        axes.set(title=title, xlabel=f"{seeds[0].exact['base'].n} unseen problems", ylim=(0, 1.02))
        axes.set_xticks(range(len(MODELS)), [m.upper() if m != "base" else m for m in MODELS])
        _clean(axes)
    for number, found in enumerate(seeds):
        _points(reward, [number], [found.reward], number, "")
        reward.plot(
            [number - 0.25, number + 0.25],
            [found.length_only] * 2,
            color="black",
            linewidth=1.5,
            label="length alone" if not number else None,
        )
    reward.axhline(0.5, color="grey", linestyle="--", linewidth=1, label="chance")
    reward.set(title="Reward model", ylim=(0, 1.02))
    reward.set_xticks(range(len(seeds)), [str(found.seed) for found in seeds])
    reward.set_xlabel(f"seed; {seeds[0].reward.n} unseen pairs")
    reward.legend(frameon=False, loc="lower right", fontsize=8)
    right.legend(frameon=False, loc="lower right", fontsize=8)
    _clean(reward)
    _save(figure, path)


def _points(axes: Any, at: Sequence[float], shares: Sequence[Share], number: int, label: str) -> None:
    ends = [share.interval() for share in shares]
    values = [share.value for share in shares]
    below = [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)]
    above = [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)]
    axes.errorbar(
        at, values, yerr=[below, above], fmt="o", markersize=4, capsize=2, color=COLOURS[number % len(COLOURS)], label=label or None
    )


def growth_plot(axes_rows: Mapping[str, Sequence[tuple[float, float, float]]], path: Path, other: str, unit: str) -> None:
    """axis → (its value, speed of ours, of the `other` side, in `unit`)."""
    figure, grid = plt.subplots(1, len(axes_rows), figsize=(9, 3), layout="constrained", sharey=True, squeeze=False)
    all_axes = grid[0]
    for axes, (name, rows) in zip(all_axes, axes_rows.items(), strict=True):
        ticks = range(len(rows))
        for column, (label, colour) in enumerate((("ours", COLOURS[0]), (other, COLOURS[1])), 1):
            axes.plot(ticks, [row[column] for row in rows], marker="o", color=colour, label=label)
        axes.set_xticks(ticks, [f"{row[0]:g}" for row in rows])
        axes.set_xlabel(name)
        _clean(axes)
    all_axes[0].set_ylabel(unit)
    all_axes[0].set_ylim(bottom=0)
    all_axes[0].legend(frameon=False, fontsize=8)
    _save(figure, path)
