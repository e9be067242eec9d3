"""A text that spells out a special token is counted and warned of, whichever program reads it."""

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.records import Message, prompt_id_of  # noqa: E402
from include.training.base.chatml import END  # noqa: E402
from include.transforms.datasets_io import SidedRow  # noqa: E402
from tests.training.align_store import (  # noqa: E402
    DPO,
    PPO,
    REWARD,
    asked,
    candidate,
    other,
    pair,
    rewarded_store,
    run_here,
    shared_root,
    side_of,
)
from tests.training.harness import Started, Store, question, sums  # noqa: E402
from tests.training.test_generate import CONFIG as GENERATE  # noqa: E402

COUNT, SAID = 16, "rows spell out a special token in their text"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two of the prompts spell out the end token in what a person wrote, and one of the pairs in an answer."""
    store = rewarded_store(shared_root(tmp_path_factory))
    prompts, pairs = [], []
    for at, (first, second) in enumerate(sums()[:COUNT]):
        prompt = question(first, second)
        if at < 2:
            messages = (Message("user", f"{first} + {second} ={END}"),)
            prompt = dataclasses.replace(prompt, messages=messages, prompt_id=prompt_id_of(messages))
        prompts.append(SidedRow(prompt.prompt_id, "train", prompt.split_group, "rl", prompt.to_json()))
        texts = (asked(first, second), other(first, second) + (f" {END} more" if at == 2 else ""))
        made = pair(store, first, second, *(candidate(store, prompt.prompt_id, text) for text in texts))
        made = dataclasses.replace(made, prompt=prompt)
        pairs.append(SidedRow(made.pair_id, side_of(at, COUNT), prompt.split_group, "preference", made.to_json()))
    store.dataset("spelt prompts", "prompt", prompts)
    store.dataset("spelt pairs", "pair", pairs)
    return store


def _run(store: Store, stage: str) -> Started:
    named = {"reward_model": "reward_model", "policy": "policy", "reference": "policy", "base": "policy"}
    short: dict[str, tuple[list[str], dict[str, Any]]] = {
        "reward_model": (["base"], {**REWARD, "steps": 1, "eval_pairs": 2}),
        "dpo": (["policy", "reference"], {**DPO, "steps": 1}),
        "ppo": (["policy", "reference", "reward_model"], {**PPO, "iterations": 1}),
        "generate": (["policy"], {**GENERATE, "use": "rl", "prompt_limit": COUNT, "candidates_per_prompt": 2}),
    }
    inputs, config = short[stage]
    rows = {"reward_model": "preferences", "dpo": "preferences"}.get(stage, "prompts")
    spelt = {"preferences": "spelt pairs", "prompts": "spelt prompts"}[rows]
    spec = store.spec(stage, {**{name: named[name] for name in inputs}, rows: spelt}, config, salt="spelt")
    return store.run(spec) if stage == "generate" else run_here(store, spec)


@pytest.mark.parametrize(
    ("stage", "what", "found", "looked"),
    [
        ("reward_model", "preferences", 3, 10),
        ("dpo", "preferences", 3, 10),
        ("ppo", "prompts", 2, COUNT),
        ("generate", "prompts", 2, COUNT),
    ],
)
def test_every_program_counts_and_warns(store: Store, stage: str, what: str, found: int, looked: int) -> None:
    done = _run(store, stage)
    assert done.code == 0, done.report.message
    assert f"{what}: {found} of the first {looked} {SAID}" in done.report.summary["warnings"]
    assert (done.report.metrics["texts_with_special_token"], done.report.metrics["texts_looked_at"]) == (found, looked)


def test_plain_texts_are_no_warning(store: Store) -> None:
    inputs = {"base": "policy", "preferences": "preferences"}
    done = run_here(store, store.spec("reward_model", inputs, {**REWARD, "steps": 1}, salt="plain texts"))
    assert done.report.metrics["texts_with_special_token"] == 0
    assert not any(SAID in warning for warning in done.report.summary["warnings"])
