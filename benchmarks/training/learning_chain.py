"""The tiny recipe's stages for one seed, each its own program run directly, and what each taught on rows that no stage has trained on.

The recipe's data, settings and programs; its seed is replaced, its labels are the verifier's alone, and nothing is gated or approved.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow.parquet as pq

from include.data.build import build_datasets
from include.data.plan import plan_of, split_of
from include.domain.canonical import digest
from include.domain.records import Candidate, PreferencePair, Prompt
from include.domain.spec import InputPlace
from include.domain.split import SIDES, side_of
from include.settings.base import identity_config, placement_config
from include.settings.recipes import Recipe
from include.transforms.datasets_io import SidedRow, load_info, read_rows
from include.transforms.sources.arithmetic import write_corpus
from include.verifiers import arithmetic
from include.verifiers.compare import compare
from tests.training.harness import PROJECT, Started, Store, cluster_python

SUITE = "word_problems"


@dataclass(frozen=True)
class Share:
    """`count` of `n`."""

    count: int
    n: int

    @property
    def value(self) -> float:
        return self.count / self.n

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Wilson's score interval (1927), 95 % by default."""
        centre = (self.value + z * z / (2 * self.n)) / (1 + z * z / self.n)
        half = z / (1 + z * z / self.n) * (self.value * (1 - self.value) / self.n + z * z / (4 * self.n * self.n)) ** 0.5
        return centre - half, centre + half


@dataclass(frozen=True)
class Learnt:
    """One seed: shares of right answers and of answers in the asked form by model (base, sft, dpo, ppo), and of hold-out pairs that the
    reward model orders rightly, beside what the longer (or the shorter) answer alone would get."""

    seed: int
    exact: Mapping[str, Share]
    form: Mapping[str, Share]
    reward: Share
    length_only: float


def prepare(root: Path, recipe: Recipe, threads: int) -> Store:
    """A store with the recipe's data sets and its base, which all seeds share."""
    store = Store(root / "store", threads=threads, timeout_s=3600)
    for name, info in build_datasets(plan_of(recipe.data, root, arithmetic.VERSION), root / "build").datasets.items():
        store.places[name] = InputPlace(str(info.folder), info.content_hash, info.artifact_digest)
    corpus = root / recipe.base.file
    write_corpus(corpus, seed=recipe.base_source.seed, rows=recipe.base_source.rows)
    store.raw("source", recipe.base.file, corpus.read_bytes())
    store.artifact("base", stage(store, recipe, "base_import", {"source": "source"}).output("base"))
    return store


def stage(store: Store, recipe: Recipe, name: str, inputs: Mapping[str, str]) -> Started:
    """One attempt of a stage with the recipe's settings."""
    settings = getattr(recipe, "base" if name == "base_import" else name)
    placed = {key: value for key, value in placement_config(settings).items() if key not in ("job", "threads")}
    done = store.run(store.spec(name, inputs, identity_config(settings), recipe.seed), **placed)
    if done.code:
        raise SystemExit(f"{name} of seed {recipe.seed} ended with {done.code}: {done.stderr[-2000:]}")
    return done


def learn(store: Store, recipe: Recipe) -> Learnt:
    """SFT, candidates, pairs, reward model, DPO and PPO of one seed; then all models answer the hold-out problems."""
    own = f"{recipe.seed}-"
    sft = own + "sft"
    store.artifact(sft, stage(store, recipe, "sft", {"base": "base", "demonstrations": "demonstrations"}).output("policy"))
    answered = stage(store, recipe, "generate", {"policy": sft, "prompts": "preference_prompts"}).output("candidates")
    decided = verified_pairs(candidates_in(answered), prompts_in(store), recipe)
    synthetic = {row.id: row for row in rows_of(store, "synthetic_pairs")}
    store.dataset(own + "preferences", "pair", decided)
    store.dataset(own + "reward_pairs", "pair", list({**synthetic, **{row.id: row for row in decided}}.values()))
    scored = stage(store, recipe, "reward_model", {"base": sft, "preferences": own + "reward_pairs"})
    store.artifact(own + "reward", scored.output("reward_model"))
    policies = {"policy": sft, "reference": sft}
    dpo = stage(store, recipe, "dpo", {**policies, "preferences": own + "preferences"})
    ppo = stage(store, recipe, "ppo", {**policies, "reward_model": own + "reward", "prompts": "rl_prompts"})
    models = {"base": Path(store.places["base"].path), "sft": Path(store.places[sft].path)}
    models |= {"dpo": dpo.output("policy"), "ppo": ppo.output("policy")}
    found = measured(models, Path(store.places[SUITE].path), recipe.evaluation.max_new_tokens, store.threads)
    figures = scored.report.metrics
    pairs = round(figures["holdout_pairs"])
    return Learnt(
        recipe.seed,
        {name: Share(of_model["exact"], of_model["n"]) for name, of_model in found.items()},
        {name: Share(of_model["form"], of_model["n"]) for name, of_model in found.items()},
        Share(round(figures["holdout_accuracy"] * pairs), pairs),
        max(figures["holdout_longer_wins"], figures["holdout_shorter_wins"]),
    )


def rows_of(store: Store, name: str) -> list[SidedRow]:
    """All rows of a data set, each with its side."""
    folder = Path(store.places[name].path)
    counts = load_info(folder).counts
    sides = [side for side in SIDES if counts.get(side)]
    return [SidedRow(row.id, side, row.split_group, row.use, row.record) for side in sides for row in read_rows(folder, side)]


def prompts_in(store: Store) -> dict[str, Prompt]:
    found = [Prompt.from_json(row.record) for row in rows_of(store, "preference_prompts")]
    return {prompt.prompt_id: prompt for prompt in found}


def candidates_in(folder: Path) -> list[Candidate]:
    column = pq.read_table(folder / "candidates.parquet").column("record").to_pylist()
    return [Candidate.from_json(json.loads(text)) for text in column]


def verified_pairs(candidates: list[Candidate], prompts: Mapping[str, Prompt], recipe: Recipe) -> list[SidedRow]:
    """Each prompt's first two answers as a pair, where the verifier prefers one; on the side of the prompt's group."""
    split, rows = split_of(recipe.data), []
    for prompt_id, of_prompt in groupby(sorted(candidates, key=lambda c: (c.prompt_id, c.candidate_id)), key=lambda c: c.prompt_id):
        (first, second, *_), prompt = list(of_prompt), prompts[prompt_id]
        if prompt.reference is None:
            continue
        verdict = compare(prompt.reference, first.response_text, second.response_text).verdict
        if verdict not in ("A", "B") or first.response_text == second.response_text:
            continue
        chosen, rejected = (first, second) if verdict == "A" else (second, first)
        pair_id = digest("pair", [prompt_id, chosen.candidate_id, rejected.candidate_id])
        pair = PreferencePair(pair_id, prompt, chosen, rejected, None, None, None, "verifier", False)
        side = side_of(split.salt, prompt.split_group, prompt.safety_class, split.shares)
        use = "preference" if side in ("train", "validation") else "evaluation"
        rows.append(SidedRow(pair_id, side, prompt.split_group, use, pair.to_json()))
    return rows


def measured(models: Mapping[str, Path], suite: Path, max_new_tokens: int, threads: int) -> dict[str, dict[str, int]]:
    """Model → n, exact, form over the suite's hold-out problems, answered greedily by a process in the cluster's environment."""
    asked = {
        "models": {name: str(path) for name, path in models.items()},
        "suite": str(suite),
        "tokens": max_new_tokens,
        "threads": threads,
    }
    argv = [cluster_python(), "-W", "ignore", "-m", "benchmarks.training.held_out", json.dumps(asked)]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the hold-out problems could not be answered:\n{done.stderr[-2000:]}")
    found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found
