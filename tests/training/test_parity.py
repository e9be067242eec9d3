"""The same weights and batches as other trainers: losses, log-probabilities and gradients are equal to 1e-5 in float32.

golden.json holds TRL's values, recorded by parity/record_trl.py. Where `make peers` has installed TRL they are computed again.
"""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from include.training.lora import LoraSettings, add_adapters, merge_adapters, save_adapter
from tests.training.harness import PROJECT
from tests.training.parity import ours
from tests.training.parity.cases import DPO_SETTINGS, KTO_CASES
from tests.training.small_llama import small_llama

GOLDEN = Path(__file__).with_name("parity") / "golden.json"
PEERS = PROJECT / ".local" / "venv-peers" / "bin" / "python"
CASES = ["sft", "reward", *(f"dpo_{name}" for name in DPO_SETTINGS), *KTO_CASES]
installed = pytest.mark.skipif(not PEERS.exists(), reason="other trainers are not installed: make peers")


@cache
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text("utf-8"))
    return found


@cache
def computed(case: str) -> dict[str, Any]:
    if case in KTO_CASES:
        return ours.kto(case)
    return ours.dpo(case.removeprefix("dpo_")) if case.startswith("dpo_") else getattr(ours, case)()


@pytest.mark.parametrize("case", CASES)
def test_the_loss_equals_trls(case: str) -> None:
    assert computed(case)["loss"] == pytest.approx(golden()["values"][case]["loss"], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_log_probabilities_and_scores_equal_trls(case: str) -> None:
    theirs = golden()["values"][case]
    compared = [name for name in ("log_probs", "reference_log_probs", "scores") if name in theirs]
    assert compared
    for name in compared:
        assert computed(case)[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_every_parameter_equals_trls(case: str) -> None:
    own, theirs = computed(case)["gradients"], golden()["values"][case]["gradients"]
    assert set(own) == set(theirs)
    size = max(norm for norm, *_ in theirs.values())
    assert size > 1e-3
    for name, values in theirs.items():
        assert own[name] == pytest.approx(values, rel=1e-5, abs=1e-5 * size), name


def test_the_recorded_losses_tell_the_cases_apart() -> None:
    losses = [golden()["values"][f"dpo_{name}"]["loss"] for name in DPO_SETTINGS]
    assert len({round(loss, 4) for loss in losses}) == len(losses)


def _peers(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(PEERS), "-W", "ignore", *arguments], env=environment, cwd=PROJECT, text=True, capture_output=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_ktos_reference_point_equals_trls_and_is_never_below_0() -> None:
    points = {case: golden()["values"][case]["reference_point"] for case in KTO_CASES}
    assert {case: computed(case)["reference_point"] for case in KTO_CASES} == pytest.approx(points, rel=1e-5, abs=1e-5)
    assert sorted(point > 0.01 for point in points.values()) == [False, True]


@installed
def test_trl_gives_the_recorded_values_again(tmp_path: Path) -> None:
    _peers("-m", "tests.training.parity.record_trl", str(tmp_path / "golden.json"))
    again = json.loads((tmp_path / "golden.json").read_text())["values"]
    assert set(again) == set(golden()["values"])
    for case, values in golden()["values"].items():
        for name in set(values) - {"gradients"}:
            assert again[case][name] == pytest.approx(values[name], rel=1e-5, abs=1e-5), (case, name)
        for name, of_parameter in values["gradients"].items():
            assert again[case]["gradients"][name] == pytest.approx(of_parameter, rel=1e-4, abs=1e-5), (case, name)


@installed
def test_peft_loads_an_adapter_of_ours_and_answers_as_the_merged_model(tmp_path: Path) -> None:
    base, adapter, out = tmp_path / "base", tmp_path / "adapter", tmp_path / "logits.json"
    adapter.mkdir()
    model, settings = small_llama(), LoraSettings(4, 6.0)
    model.save_pretrained(base)
    add_adapters(model, settings, seed=3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_B"):
                value.copy_(torch.sin(torch.arange(value.numel(), dtype=torch.float32)).reshape(value.shape) * 0.2)
    save_adapter(model, settings, "base", adapter)
    _peers(str(Path(__file__).with_name("parity") / "load_with_peft.py"), str(base), str(adapter), str(out))
    merge_adapters(model, torch.arange(16)[None])
    with torch.no_grad():
        merged = model(input_ids=torch.arange(20)[None]).logits[0]
    assert torch.allclose(torch.tensor(json.loads(out.read_text())), merged, atol=1e-4)
    assert not torch.allclose(small_llama()(input_ids=torch.arange(20)[None]).logits[0], merged, atol=1e-2)
