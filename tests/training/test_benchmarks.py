"""The benchmarks' own arithmetic, and that their code runs: how fast it is cannot be a test."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.training.against_trl import _check_equal_work
from benchmarks.training.flops import peak_of, per_token, utilisation
from benchmarks.training.learning import lost, table
from benchmarks.training.learning_chain import Learnt, Share
from benchmarks.training.on_gpu import main as on_gpu
from benchmarks.training.ppo_iteration import check_equal_answers
from benchmarks.training.scaling import AXES, LABELS, cell
from benchmarks.training.scaling import main as scaling
from benchmarks.training.turns import OURS, Measured
from benchmarks.training.workload import WARM_UP, Workload, means_of
from tests.training.harness import PROJECT


def test_operations_of_a_token_by_hand() -> None:
    assert per_token(parameters=1000, layers=2, hidden=10, length=5) == 6 * 1000 + 12 * 2 * 10 * 5
    assert utilisation(1e6, 7200.0, 100e9) == pytest.approx(0.072)
    assert utilisation(1e6, 7200.0, None) is None


@pytest.mark.parametrize(
    ("device", "peak"), [("NVIDIA H200", 989.4e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA L40S", 362e12), ("NVIDIA T4", None)]
)
def test_the_peak_is_found_by_the_devices_name(device: str, peak: float | None) -> None:
    assert peak_of(device) == peak


def test_the_warm_up_and_the_last_update_are_not_measured() -> None:
    load = Workload("sft", steps=7)
    ends = [10.0, 20.0, 30.0, 31.0, 32.0, 33.5, 99.0]
    measured = Measured(
        load,
        1,
        700.0,
        turns={"ours": [{"ends": ends, "cpu": ends}], "trl": [{"ends": [2 * e for e in ends], "cpu": [3 * e for e in ends]}]},
    )
    assert measured.median("ours") == pytest.approx(3.5 / (7 - WARM_UP - 1))
    assert (measured.ratio, measured.cpu_ratio()) == (pytest.approx(2.0), pytest.approx(3.0))
    assert measured.tokens_per_s("ours") == pytest.approx(700 / (3.5 / 3))


def test_losses_are_compared_by_whole_groups_of_updates() -> None:
    assert means_of([1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 9.0]) == [3.0]
    assert means_of([1.0] * 10) == [1.0, 1.0]


def test_two_sides_that_did_other_work_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    load = Workload("dpo", steps=10)
    equal = Measured(load, 1, 1.0, turns={"ours": [{"losses": [0.7, 0.6]}], "trl": [{"losses": [0.7, 0.6 + 1e-6]}]})
    _check_equal_work(equal)
    assert "the largest difference is 1.0e-06" in capsys.readouterr().out
    equal.turns["trl"].append({"losses": [0.7, 0.65]})
    equal.turns["ours"].append({"losses": [0.7, 0.71]})
    with pytest.raises(SystemExit, match=r"their losses differ by 0.06"):
        _check_equal_work(equal)
    equal.turns["trl"][1] = {"losses": [0.7, float("nan")]}
    with pytest.raises(SystemExit, match="did not do the same work"):
        _check_equal_work(equal)


def test_iterations_whose_answers_are_not_of_like_length_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    turns = {"ours": [{"answer_tokens": 20.0}, {"answer_tokens": 22.0}], "trl": [{"answer_tokens": 19.0}, {"answer_tokens": 22.0}]}
    check_equal_answers(Measured(Workload("ppo"), 1, 1.0, turns=turns))
    assert "ours 21.0, TRL 20.5" in capsys.readouterr().out
    for length in (19.0, 24.0, 0.0, float("nan")):
        turns["trl"][1] = {"answer_tokens": 2 * length - 19.0}
        with pytest.raises(SystemExit, match="did not do the same work"):
            check_equal_answers(Measured(Workload("ppo"), 1, 1.0, turns=turns))
    for side in turns:
        turns[side] = [{"answer_tokens": 0.0}]
    with pytest.raises(SystemExit, match="did not do the same work"):
        check_equal_answers(Measured(Workload("ppo"), 1, 1.0, turns=turns))


def test_a_workload_that_measures_nothing_or_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 6 are needed"):
        Workload("sft", steps=5)
    with pytest.raises(ValueError, match="cannot be shared by 2 ranks"):
        Workload("sft", batch=5, ranks=2)


def test_wilsons_interval_by_a_known_value() -> None:
    low, high = Share(8, 10).interval()
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def _learnt() -> Learnt:
    right, wrong = Share(150, 200), Share(20, 200)
    exact = {"base": wrong, "sft": right, "dpo": right, "ppo": right}
    form = {"base": Share(0, 200), "sft": Share(100, 200), "dpo": Share(190, 200), "ppo": Share(180, 200)}
    return Learnt(1, exact, form, Share(160, 200), 0.55)


def test_a_seed_that_learnt_all_of_it_loses_nothing() -> None:
    assert lost(_learnt()) == []
    assert "| 1 | dpo | 0.75 [0.69, 0.80] | 0.95 [0.91, 0.97] |" in table([_learnt()])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"exact": {"base": Share(180, 200), "sft": Share(150, 200), "dpo": Share(150, 200), "ppo": Share(150, 200)}},
            "SFT: right answers",
        ),
        ({"form": {"base": Share(90, 200), "sft": Share(100, 200), "dpo": Share(190, 200), "ppo": Share(180, 200)}}, "SFT: asked form"),
        ({"reward": Share(108, 200)}, "does not exclude chance"),
        ({"length_only": 0.8}, "length alone gets 0.80"),
        ({"form": {"base": Share(0, 200), "sft": Share(100, 200), "dpo": Share(109, 200), "ppo": Share(180, 200)}}, "DPO: asked form"),
        ({"form": {"base": Share(0, 200), "sft": Share(100, 200), "dpo": Share(190, 200), "ppo": Share(109, 200)}}, "PPO: asked form"),
        ({"exact": {"base": Share(20, 200), "sft": Share(150, 200), "dpo": Share(150, 200), "ppo": Share(139, 200)}}, "PPO: right answers"),
    ],
)
def test_what_a_seed_did_not_learn_is_named(change: dict, said: str) -> None:
    assert any(said in line for line in lost(replace(_learnt(), **change)))


PARTS = ("sft", "ppo", "checkpoints", "generation")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not OURS.exists(), reason="the cluster's environment is not installed")
def test_the_gpu_benchmark_runs_on_a_cpu_at_a_tiny_size(capsys: pytest.CaptureFixture[str]) -> None:
    on_gpu(["--device", "cpu", "--tiny", "--ours-alone", "--peak-tflops", "0.1", "--budget-s", "100000", "--programs", *PARTS])
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if line.startswith("| sft | ours |"))
    assert float(row.split("|")[6].strip().removesuffix("%")) > 0
    drawn = next(line for line in said.splitlines() if line.startswith("| ppo, an iteration | ours |"))
    assert float(drawn.split("|")[5].replace(",", "")) > 0
    stood_still = re.search(r"^checkpoint every 4 updates of .* s, ours: .* for ([0-9.]+)% of the time, ([0-9.]+) s a save$", said, re.M)
    assert stood_still is not None
    assert float(stood_still[2]) > 0
    assert any(line.startswith("generate_batch ") for line in said.splitlines())


@pytest.mark.parametrize("program", AXES)
def test_growth_changes_one_size_at_a_time(program: str) -> None:
    assert set(AXES[program]) == set(LABELS[program]) == {"length", "batch", "ranks"}
    if program == "generation":
        return
    start = Workload(program, steps=7, batch=32)
    for axis, value in (("length", 12), ("batch", 8), ("ranks", 2)):
        name = "new_tokens" if (program, axis) == ("ppo", "length") else axis
        changed = {field for field in vars(start) if getattr(start, field) != getattr(cell(start, axis, value), field)}
        assert changed == ({name, "threads"} if axis == "ranks" else {name})


def test_values_of_several_axes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scaling(["ppo", "--values", "4"])
    assert "--values belongs to one axis" in capsys.readouterr().err


@pytest.mark.skipif(not OURS.exists(), reason="the cluster's environment is not installed")
def test_without_a_cuda_device_it_says_how_to_try_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.on_gpu"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 1
    assert "to try the code: --device cpu --tiny" in done.stderr
