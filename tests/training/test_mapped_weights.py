"""A float32 folder is loaded as the pages of its file, of which a process needs no copy; another type is converted into memory of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.training.harness import cluster_python  # noqa: E402
from tests.training.small_llama import small_llama  # noqa: E402

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps_rollup")]

PROJECT = Path(__file__).parents[2]
SHAPE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 4000}


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Of one model of some 50 MB, in float32 and rounded: what of its bytes a process that loaded it had to take of its own."""
    folders = {dtype: tmp_path_factory.mktemp("model") for dtype in (torch.float32, torch.bfloat16)}
    model = small_llama(**SHAPE)
    for dtype, folder in folders.items():
        model.to(dtype).save_pretrained(str(folder))
    content = (folders[torch.float32] / "model.safetensors").read_bytes()
    assert len(content) > 50e6
    command = [cluster_python(), "-m", "tests.training.memory_of_loading", *map(str, folders.values())]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ | {"PYTHONPATH": str(PROJECT)}, check=True, capture_output=True, text=True)
    assert (folders[torch.float32] / "model.safetensors").read_bytes() == content
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("model", ["policy", "reward model"])
def test_a_float32_folder_takes_no_memory_of_its_own(private: dict[str, float], model: str) -> None:
    assert private[model] < 0.1


@pytest.mark.parametrize("model", ["rounded policy", "rounded reward model"])
def test_a_rounded_folder_takes_all_that_its_float32_weights_need(private: dict[str, float], model: str) -> None:
    assert private[model] > 0.9


def test_weights_that_are_written_to_become_memory_of_their_own(private: dict[str, float]) -> None:
    """As on CPUs, where models are trained in place; the file stays what it was."""
    assert private["trained policy"] > 0.9
