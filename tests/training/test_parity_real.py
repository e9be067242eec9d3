"""The quick start's own model, SmolLM2-135M, beside TRL on one short batch: losses, log-probabilities and gradients equal to 1e-5 in float32, each as a whole.

Runs where `make parity` has fetched both; nothing recorded stands in for them.
"""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from include.domain.records import Message
from include.runtime.chat import dialogue
from include.training.base.chatml import TEMPLATE
from include.training.base.gguf_import import read_gguf
from local.layout import Layout
from tests.training.harness import PROJECT
from tests.training.parity import ours, real
from tests.training.parity.cases import Setup

LAYOUT = Layout.find()
PEERS = LAYOUT.peers_environment / "bin" / "python"
GGUF = LAYOUT.sources / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CASES = ("sft", "reward", "dpo_sigmoid")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PEERS.exists(), reason="other trainers are not installed: make parity"),
    pytest.mark.skipif(not GGUF.exists(), reason="the quick start's model is not there: make parity"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as base import makes it of its GGUF, and three problems as its dialogues."""
    made = tmp_path_factory.mktemp("real")
    model, tokenizer = read_gguf(GGUF)
    tokenizer.chat_template = TEMPLATE
    assert sum(parameter.numel() for parameter in model.parameters()) > 130e6
    real.write(made, model, lambda asked, answer: dialogue(tokenizer, [Message("user", asked)], [Message("assistant", answer)]))
    return made


@pytest.fixture(scope="module")
def setup(folder: Path) -> Setup:
    return real.read(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> dict[str, Any]:
    """TRL's values, by its own trainers and collators."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(PEERS), "-W", "ignore", "-m", "tests.training.parity.record_trl", str(folder / "trl.json"), str(folder)]
    done = subprocess.run(command, env=environment, cwd=PROJECT, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((folder / "trl.json").read_text())
    assert found["made_by"]["trl"].startswith("1.")
    values: dict[str, Any] = found["values"]
    return values


@pytest.mark.parametrize("case", CASES)
def test_on_a_real_model_losses_log_probabilities_and_gradients_are_trls(setup: Setup, theirs: dict[str, Any], case: str) -> None:
    torch.set_num_threads(1)
    own = ours.dpo("sigmoid", setup) if case == "dpo_sigmoid" else getattr(ours, case)(setup)
    other = theirs[case]
    assert own["loss"] == pytest.approx(other["loss"], rel=1e-5, abs=1e-5)
    # Float32 rounds to its share of the logits, which thirty layers made: 1e-5 of the largest value here, not of one that happens to be near 0.
    for name in {"log_probs", "reference_log_probs", "scores"} & set(other):
        assert own[name] == pytest.approx(other[name], rel=0, abs=1e-5 * max(1.0, *map(abs, other[name]))), name
    assert set(own["gradients"]) == set(other["gradients"])
    # Thirty layers add their rounding up in single parameters: what is asked of is the gradient as a whole.
    size = math.sqrt(sum(norm**2 for norm, *_ in other["gradients"].values()))
    assert size > 1e-3
    gaps = {
        name: max(abs(a - b) for a, b in zip(own["gradients"][name], values, strict=True)) for name, values in other["gradients"].items()
    }
    worst = max(gaps, key=lambda name: gaps[name])
    print(f"{case}: the gradient's norm is {size:.4g}; largest difference {gaps[worst]:.2e}, of {worst}")
    assert gaps[worst] < 1e-5 * size, worst


def test_the_cases_are_no_trivial_ones(setup: Setup, theirs: dict[str, Any]) -> None:
    assert len({len(chosen.ids) for chosen, _ in setup.pairs}) == len(setup.pairs), (
        "dialogues of unlike length, so that something is padded"
    )
    assert theirs["sft"]["loss"] > 0.1
    assert abs(theirs["dpo_sigmoid"]["loss"] - 0.6931472) > 1e-3, "policy and reference differ"
    assert theirs["dpo_sigmoid"]["log_probs"] != pytest.approx(theirs["dpo_sigmoid"]["reference_log_probs"], abs=1e-3)
