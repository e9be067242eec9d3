"""Whether each kind of training teaches what it should, over several seeds: the tiny recipe's stages, run directly; `make learning`.

    PYTHONPATH=.:plugins .local/venv/bin/python -m benchmarks.training.learning --seeds 1 2 3 --plot docs/images/learning

SFT, DPO and PPO must each raise the share of answers in the asked form over the model that they start from, SFT by intervals that do not
touch, DPO and PPO by at least 5 points, and may not lose more than 5 points of right answers; the reward model must order hold-out
pairs better than chance and than length alone. (The generated base already adds: what its demonstrations teach it is the form.) A seed
that does not is named, and the exit code is 1. Intervals are Wilson's, 95 %.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.training.learning_chain import Learnt, Share, learn, prepare
from include.settings.catalogue import recipe as recipe_of
from include.settings.recipes import Recipe

EXACT_LOSS = 0.05
FORM_GAIN = 0.05
"""What DPO and PPO add at least: 18 of 363 answers. SFT, which starts at next to none, has to be apart by whole intervals."""
CHANCE = 0.5
STEPS = (("sft", "base"), ("dpo", "sft"), ("ppo", "sft"))
"""Each policy with the one it starts from."""


def lost(found: Learnt) -> list[str]:
    """What this seed did not learn, in words."""
    said = []
    if found.reward.interval()[0] <= CHANCE:
        said.append(f"reward model: {_shown(found.reward)} does not exclude chance")
    if found.reward.value <= found.length_only:
        said.append(f"reward model: {_shown(found.reward)}, length alone gets {found.length_only:.2f}")
    for name, start in STEPS:
        (low, _), (_, high) = found.form[name].interval(), found.form[start].interval()
        if not (low > high if name == "sft" else found.form[name].value - found.form[start].value >= FORM_GAIN):
            said.append(f"{name.upper()}: asked form {_shown(found.form[start])} → {_shown(found.form[name])}")
        if found.exact[name].value < found.exact[start].value - EXACT_LOSS:
            said.append(f"{name.upper()}: right answers {_shown(found.exact[start])} → {_shown(found.exact[name])}")
    return said


def _shown(share: Share) -> str:
    low, high = share.interval()
    return f"{share.value:.2f} [{low:.2f}, {high:.2f}]"


def table(seeds: Sequence[Learnt]) -> str:
    """Markdown: a row a seed and stage."""
    items = seeds[0].exact["base"].n
    lines = [f"| seed | model | right of {items} | in the asked form | ", "| --- | --- | --- | --- |"]
    lines[0] = lines[0].rstrip()
    for found in seeds:
        lines += [f"| {found.seed} | {name} | {_shown(found.exact[name])} | {_shown(found.form[name])} |" for name in found.exact]
    lines += ["", "| seed | reward model, hold-out pairs | right | chance | length alone |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {f.seed} | {f.reward.n} | {_shown(f.reward)} | {CHANCE:.2f} | {f.length_only:.2f} |" for f in seeds]
    return "\n".join(lines)


def run(root: Path, recipe: Recipe, seeds: Sequence[int], threads: int) -> list[Learnt]:
    started = time.monotonic()
    store = prepare(root, recipe, threads)
    print(f"data and base: {time.monotonic() - started:.0f} s", flush=True)
    found = []
    for seed in seeds:
        started = time.monotonic()
        found.append(learn(store, recipe.model_copy(update={"seed": seed})))
        print(f"seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="path without ending; .svg and .png are written")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        seeds = run(Path(folder), recipe_of(asked.recipe), asked.seeds, asked.threads)
    print(table(seeds))
    if asked.plot is not None:
        from benchmarks.training.plots import learning_plot

        learning_plot(seeds, asked.plot)
    failures = [f"seed {found.seed}: {what}" for found in seeds for what in lost(found)]
    print("\n".join(failures) if failures else f"no seed of {len(seeds)} lost")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
