"""A store with what the alignment programs need: a tiny policy that answers in two styles, pairs, and prompts."""

import atexit
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from include.domain.records import Candidate, PreferencePair, SamplingConfig, candidate_id_of
from include.domain.spec import RunSpec
from include.runtime.chat import dialogue
from include.runtime.job import Job
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest
from include.training import base_import, dpo, ppo, reward_model, sft
from include.training.engines.deepspeed import engines
from include.training.model_io import load_tokenizer
from include.training.rl.rollouts import read_rollouts
from include.transforms.datasets_io import SidedRow, read_rows
from include.transforms.dimension_scores import DimensionScore
from tests.training.harness import PROJECT, TINY, Started, Store, question, sums

OPTIMISER = {
    "global_batch": 8,
    "warmup_steps": 1,
    "schedule": "constant",
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
    "betas": [0.9, 0.95],
    "max_length": 64,
    "precision": "fp32",
    "engine": "deepspeed",
    "zero_stage": 0,
    "optimizer": "torch_adamw",
    "attention": "sdpa",
}
REWARD = {
    **OPTIMISER,
    "learning_rate": 2e-3,
    "steps": 12,
    "clip": 5.0,
    "epsilon": 1e-8,
    "early_stop": {"every_steps": 4, "patience": 2},
    "eval_pairs": 16,
    "max_identical_share": 0.2,
}
DPO = {**OPTIMISER, "learning_rate": 1e-3, "steps": 10, "beta": 0.1, "loss": "sigmoid", "label_smoothing": 0.0, "max_identical_share": 0.2}
KTO = {**DPO, "loss": "kto", "desirable_weight": 1.2}
DIMENSIONS = {**REWARD, "dimensions": ["clarity", "safety"]}
PAIRED = [("dpo", DPO), ("dpo", KTO), ("reward_model", REWARD), ("reward_model", DIMENSIONS)]
"""Programs that learn from pairs, each with its configuration."""
PPO = {
    **{k: v for k, v in OPTIMISER.items() if k not in ("global_batch", "warmup_steps", "schedule")},
    "iterations": 4,
    "prompts_per_iteration": 12,
    "minibatch": 6,
    "epochs": 2,
    "max_new_tokens": 20,
    "temperature": 1.0,
    "learning_rate": 1e-4,
    "critic_learning_rate": 1e-3,
    "kl": {"controller": "adaptive", "target": 0.6, "initial": 0.1, "factor": 1.5, "floor": 1e-4},
    "clip": 0.2,
    "value_clip": 0.5,
    "gamma": 1.0,
    "lam": 0.95,
    "value_coefficient": 0.5,
    "whiten": True,
    "reward": {"model_weight": 1.0, "clip": 5.0, "verifier_weight": 1.0, "length_penalty": 0.1},
    "ratio_tolerance": 1e-4,
    "guards": {"hacking_quality": 1.0, "kl_negative": -50.0},
}
"""Open are those two guards that chance alone trips where an iteration has so few answers: which it trips hangs on the CPU's rounding."""


def asked(first: int, second: int) -> str:
    return f"{first} + {second} = {first + second}\nAnswer: {first + second}"


def other(first: int, second: int) -> str:
    return f"{first} + {second} = {first + second}\nSo the result is {first + second}."


def side_of(at: int, count: int) -> str:
    return "train" if at < count * 0.6 else "validation" if at < count * 0.75 else "holdout"


def candidate(store: Store, prompt_id: str, text: str, finish: str = "eos", **changes: Any) -> Candidate:
    place = store.places["policy"]
    body: dict[str, Any] = {
        "prompt_id": prompt_id,
        "policy_checkpoint": place.digest,
        "tokenizer_version": tokenizer_digest(Path(place.path)),
        "chat_template": chat_template_digest(Path(place.path)),
        "sampling_config": SamplingConfig(1.0, 1.0, 20).to_json(),
        "random_seed": 1,
        "response_text": text,
        "finish_reason": finish,
        "safety_filter_version": "none@1",
        "origin": "policy",
        "token_ids": None,
        "tool_calls": None,
        **changes,
    }
    return Candidate.from_json({**body, "candidate_id": candidate_id_of(body)})


def pair(store: Store, first: int, second: int, chosen: Candidate, rejected: Candidate) -> PreferencePair:
    return PreferencePair(
        pair_id=f"pair-{first:02d}-{second:02d}",
        prompt=question(first, second),
        chosen=chosen,
        rejected=rejected,
        label_id=None,
        label_digest=None,
        rubric_version=None,
        annotator_kind="verifier",
        swap_flag=False,
    )


def no_scores(first: int, second: int) -> dict[str, float]:
    return {}


def planted_scores(first: int, second: int) -> dict[str, float]:
    """`clarity` is high where the sum is, and a third of the pairs has none; `safety` is 4 whatever is said."""
    clear = {} if (first + second) % 3 == 2 else {"clarity": 4.5 if first + second > 10 else 1.5}
    return {**clear, "safety": 4.0}


def preferences(
    store: Store, name: str, count: int = 80, swapped: Sequence[int] = (), scored: Callable[[int, int], dict[str, float]] = no_scores
) -> None:
    """Both answers are right, the asked form is chosen; pairs numbered in `swapped` prefer the other one. `scored`: of the chosen answer."""
    rows, scores = [], []
    for at, (first, second) in enumerate(sums()[:count]):
        prompt = question(first, second)
        texts = (asked(first, second), other(first, second))
        sides = texts[::-1] if at in swapped else texts
        made = pair(store, first, second, *(candidate(store, prompt.prompt_id, text) for text in sides))
        rows.append(SidedRow(made.pair_id, side_of(at, count), prompt.split_group, "preference", made.to_json()))
        scores += [DimensionScore(made.pair_id, dimension, score, 1) for dimension, score in scored(first, second).items()]
    store.dataset(name, "pair", rows, scores)


PlantedPair = tuple[str, tuple[int, ...], tuple[int, ...], dict[str, float]]
"""A pair's id, the ids of its chosen and its rejected side, and what `planted_scores` gives it."""


def planted_pairs(store: Store, side: str) -> list[PlantedPair]:
    """The pairs of one side of `preferences` (and of every data set with the same pairs), in their order."""
    tokenizer = load_tokenizer(Path(store.places["policy"].path))
    found = []
    for row in read_rows(Path(store.places["preferences"].path), side):
        made = PreferencePair.from_json(row.record)
        both = [made.chosen.response_text, made.rejected.response_text]
        chosen, rejected = (dialogue(tokenizer, made.prompt.messages, [{"role": "assistant", "content": text}]).ids for text in both)
        first, second = (int(part) for part in made.pair_id.split("-")[1:])
        found.append((made.pair_id, chosen, rejected, planted_scores(first, second)))
    return found


def rl_prompts(store: Store, name: str = "prompts", count: int = 30) -> None:
    rows = []
    for at, (first, second) in enumerate(sums()[:count]):
        prompt = question(first, second)
        side = "train" if at < count * 4 // 5 else "validation"
        rows.append(SidedRow(prompt.prompt_id, side, prompt.split_group, "rl", prompt.to_json()))
    store.dataset(name, "prompt", rows)


def dialogues() -> bytes:
    lines = []
    for at, (first, second) in enumerate(sums()):
        text = (asked if at % 2 else other)(first, second)
        lines.append(json.dumps({"prompt": f"{first} + {second} =", "response": text}))
    return ("\n".join(lines) + "\n").encode()


def shared_root(factory: pytest.TempPathFactory) -> Path:
    """One store for all test modules of a session: the policy and the reward model are made once."""
    root = factory.getbasetemp() / "aligned"
    root.mkdir(exist_ok=True)
    return root


@cache
def aligned_store(root: Path, steps: int = 400) -> Store:
    """`policy` (answers sums in two styles), `preferences`, `prompts`."""
    store = Store(root)
    store.raw("source", "corpus.jsonl", dialogues())
    tiny = {**TINY, "steps": steps, "max_length": 64}
    started = run_here(
        store, store.spec("base_import", {"source": "source"}, {"kind": "tiny", "file": "corpus.jsonl", "dtype": "float32", "tiny": tiny})
    )
    assert started.code == 0, started.stderr
    store.artifact("policy", started.output("base"))
    preferences(store, "preferences")
    rl_prompts(store)
    return store


def hardly_learnt_store(root: Path) -> Store:
    """A policy and a reward model that have hardly learnt: for looking at who drew what, and when."""
    store = aligned_store(root, steps=4)
    rewarded = run_here(store, reward_spec(store, steps=2, eval_pairs=4))
    assert rewarded.code == 0, rewarded.report.message
    store.artifact("reward_model", rewarded.output("reward_model"))
    return store


@cache
def rewarded_store(root: Path) -> Store:
    """The same with `reward_model`, trained on `preferences`."""
    store = aligned_store(root)
    started = run_here(store, reward_spec(store))
    assert started.code == 0, started.stderr
    store.artifact("reward_model", started.output("reward_model"))
    return store


def reward_spec(store: Store, seed: int = 5, salt: str = "", data: str = "preferences", **changes: Any) -> RunSpec:
    return store.spec("reward_model", {"base": "policy", "preferences": data}, {**REWARD, **changes}, seed, salt)


def dpo_spec(store: Store, seed: int = 5, salt: str = "", data: str = "preferences", **changes: Any) -> RunSpec:
    return store.spec("dpo", {"policy": "policy", "reference": "policy", "preferences": data}, {**DPO, **changes}, seed, salt)


def ppo_spec(store: Store, seed: int = 5, salt: str = "", **changes: Any) -> RunSpec:
    inputs = {"policy": "policy", "reference": "policy", "reward_model": "reward_model", "prompts": "prompts"}
    return store.spec("ppo", inputs, {**PPO, **changes}, seed, salt)


@cache
def _joined() -> ExitStack:
    """The process group, joined once: DeepSpeed cannot join a second one in the same process."""
    stack = ExitStack()
    stack.enter_context(engines())
    atexit.register(stack.close)
    return stack


def run_here(store: Store, spec: RunSpec, n: int = 1, **settings: Any) -> Started:
    """One attempt in this process: no second start of torch and DeepSpeed."""
    _joined()
    arguments = store.prepare(spec, n, 100 + n, **settings)
    programs = {"base_import": base_import.main, "sft": sft.main, "reward_model": reward_model.main, "dpo": dpo.main, "ppo": ppo.main}
    code = programs[spec.stage](arguments)
    return Started(Path(arguments[-1]), code, "")


def weights_of(started: Started) -> bytes:
    """The policy as it was written."""
    return (started.output("policy") / "model.safetensors").read_bytes()


def killed(store: Store, spec: RunSpec, moment: str, number: int, n: int = 1, **settings: Any) -> Started:
    """One attempt in a process of its own that is SIGKILLed at the `number`-th `moment` (see kill_at.py)."""
    wrapper = [str(PROJECT / "tests" / "training" / "kill_at.py"), f"include.training.{spec.stage}", moment, str(number)]
    return store.run(spec, n, wrapper=wrapper, **settings)


def signalled(store: Store, spec: RunSpec, step: int, monkeypatch: pytest.MonkeyPatch, n: int = 1, **settings: Any) -> Started:
    """One attempt that gets USR1 in the middle of step `step`."""
    record = Job.record

    def warned(self: Job, at: int, metrics: Any, tokens: int = 0) -> None:
        record(self, at, metrics, tokens)
        if at == step:
            os.kill(os.getpid(), signal.SIGUSR1)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "record", warned)
        return run_here(store, spec, n, **settings)


def rollouts_of(started: Started) -> list[dict[str, Any]]:
    """All rollouts without the clock and without the names of run and attempt, which are another's in another run."""
    rows = [rollout.to_json() for rollout in read_rollouts(started.output("rollouts"))]
    for row in rows:
        row["actor_checkpoint"] = {k: v for k, v in row["actor_checkpoint"].items() if k not in ("attempt", "run_key")}
        del row["created_at"], row["rollout_id"]
    return rows


def curve(*attempts: Started) -> list[dict[str, Any]]:
    """The merged series of attempts: what is past the step from which the next one resumed is dropped, times too."""
    lines: list[dict[str, Any]] = []
    for attempt in attempts:
        lines = (
            [line for line in lines if line["step"] <= attempt.report.first_step] if (attempt.folder / "report.json").exists() else lines
        )
        lines += [{k: v for k, v in line.items() if k not in ("time", "tokens")} for line in attempt.lines]
    return lines
