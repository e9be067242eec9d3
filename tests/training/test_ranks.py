"""Several ranks: the same losses as one, exact after a death, and stopped together. The whole table: make resume-matrix."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from include.domain.errors import SpecError
from include.runtime.pieces import Stored
from include.runtime.ranks import Ranks
from tests.training.harness import SFT, Started, Store, wait_for_all
from tests.training.resume_matrix import outcomes
from tests.training.resume_matrix_cells import Cell
from tests.training.rounding import to_rounding

QUICK = {**SFT, "eval_rows": 0}
ROUNDING = 1e-5
"""Relative, of a loss: what adding in another order makes of float32. Seen: 1.6e-6 on a CPU with AVX-512."""


def _losses(started: Started) -> list[float]:
    assert started.code == 0, started.stderr
    return [line["loss"] for line in started.lines]


@pytest.mark.parametrize("stage", [0, 3])
def test_after_a_death_two_ranks_go_on_to_the_same_bits(store: Store, stage: int) -> None:
    seen = list(outcomes(store, Cell("sft", 2, stage), QUICK, ("update", "before-rename")))
    assert [(outcome.moment, outcome.exact) for outcome in seen] == [("update", True), ("before-rename", True)]


@pytest.mark.parametrize(
    ("stage", "offload"),
    [pytest.param(1, "optimizer", marks=pytest.mark.slow), (2, "optimizer"), pytest.param(3, "parameters", marks=pytest.mark.slow)],
)
def test_with_state_in_the_cpus_memory_two_ranks_learn_the_same_and_go_on_to_the_same_bits(store: Store, stage: int, offload: str) -> None:
    cell = Cell("sft", 2, stage, offload=offload)
    (seen,) = outcomes(store, cell, QUICK, ("before-rename",))
    assert seen.exact
    there = cell.run(store, cell.spec(store, QUICK, "there"))
    here = Cell("sft", 2, stage).run(store, cell.spec(store, QUICK, "here"))
    assert _losses(there) == to_rounding(_losses(here), rel=ROUNDING)
    assert [line["grad_norm"] for line in there.lines] == to_rounding([line["grad_norm"] for line in here.lines], rel=1e-4)
    assert any("there is no GPU" in warning for warning in there.report.summary["warnings"])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_rank_saves_its_part_of_a_state_that_is_dealt_out(store: Store, stage: int) -> None:
    cell = Cell("sft", 2, stage)
    started = cell.run(store, cell.spec(store, QUICK, f"parts at stage {stage}"))
    assert started.code == 0, started.stderr
    sizes = {path.name: path.stat().st_size for path in sorted((started.folder / "checkpoints").iterdir())[-1].glob("*.safetensors")}
    if stage == 0:
        assert set(sizes) == {"model.safetensors", "optimizer.safetensors"}
        return
    assert set(sizes) == {f"{group}@{rank}.safetensors" for group in ("model", "optimizer") for rank in (0, 1)}
    assert sizes["model@1.safetensors"] == pytest.approx(sizes["model@0.safetensors"], rel=0.1)


def test_a_run_goes_on_without_the_offload_that_it_began_with(store: Store) -> None:
    began, goes_on = Cell("sft", 2, 3, offload="parameters"), Cell("sft", 2, 3)
    whole = goes_on.run(store, goes_on.spec(store, QUICK, "never offloaded"))
    spec = began.spec(store, QUICK, "offloaded, then not")
    began.run(store, spec, 1, "after-rename")
    second = goes_on.run(store, spec, 2)
    assert second.report.first_step == 3
    assert _losses(second) == to_rounding(_losses(whole), rel=ROUNDING)[3:]


def test_another_number_of_ranks_goes_on_from_the_same_checkpoint_with_the_losses_of_one(store: Store) -> None:
    one, two = Cell("sft", 1, 2), Cell("sft", 2, 2)
    whole = one.run(store, one.spec(store, QUICK, "one rank, in one go"))
    spec = one.spec(store, QUICK, "one rank, then two")
    one.run(store, spec, 1, "after-rename")
    second = two.run(store, spec, 2)
    assert second.report.first_step == 3
    assert _losses(second) == to_rounding(_losses(whole)[3:], rel=1e-5)
    assert [line["learning_rate"] for line in second.lines] == [line["learning_rate"] for line in whole.lines][3:]
    assert second.report.summary["ranks"] == 2


def test_a_rank_that_breaks_while_all_save_ends_the_run_and_leaves_that_checkpoint_whole(store: Store) -> None:
    spec = Cell("sft", 2, 1).spec(store, QUICK, "breaks on one rank")
    arguments = store.prepare(spec, 1, save_every_steps=3, save_in_background=True)
    slow = [str(Path(__file__).with_name("breaking_rank.py")), spec.program]
    started = store.start_ranks(spec, arguments, 2, {0: [*slow, "0"], 1: [*slow, "4"]})
    assert wait_for_all(started, 120) == [1, 1]
    broken = Started(Path(arguments[-1]), 1, "")
    assert broken.report.message.startswith("rank 1: RuntimeError: this rank breaks (rank 0 then saw: ")
    assert [path.name for path in (broken.folder / "checkpoints").iterdir()] == ["step-3"]


LAYOUTS = ((3, 3), (2, 1), (1, 0), (3, 2), (2, 3))
"""(ranks, ZeRO stage), one after the other."""


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast"])
def test_through_all_layouts_a_state_stays_what_it_was_to_the_last_bit(store: Store, tmp_path: Path, precision: str) -> None:
    spec, alone, before, seen = Cell("sft", 3, 1).spec(store, QUICK, "unused"), str(Path(__file__).with_name("layouts_alone.py")), "-", []
    for number, (ranks, stage) in enumerate(LAYOUTS):
        folder = tmp_path / str(number)
        (folder / "1-1.0").mkdir(parents=True)
        wrappers = {rank: [alone, str(stage), precision, before] for rank in range(ranks)}
        started = store.start_ranks(spec, [str(folder)], ranks, wrappers)
        told = [rank.communicate(store.timeout_s)[1] for rank in started]
        assert [rank.returncode for rank in started] == [0] * ranks, "\n".join(told)
        before = str(folder)
        saved = folder / "1-1.0/checkpoints/step-3"
        seen.append({group: dict(Stored(saved, group)) for group in ("model", "optimizer")})
    first = seen[0]
    assert {"bias", "bias.exp_avg", "model.model.embed_tokens.weight.step"} <= {*first["model"], *first["optimizer"]}
    assert "model.model.norm.weight" not in first["model"]
    for other in seen[1:]:
        for group, tensors in first.items():
            assert set(other[group]) == set(tensors)
            assert all(torch.equal(other[group][name], value) for name, value in tensors.items())


def test_a_signal_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(store: Store) -> None:
    spec = Cell("sft", 2, 1).spec(store, QUICK, "signalled on two ranks")
    arguments = store.prepare(spec, 1, save_every_steps=100)
    slow = [str(Path(__file__).with_name("slow_steps.py")), spec.program]
    started = store.start_ranks(spec, arguments, 2, {0: slow, 1: slow})
    folder = Path(arguments[-1])
    end = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.02)
    started[1].send_signal(signal.SIGUSR1)
    assert wait_for_all(started, 60) == [75, 75]
    stopped = Started(folder, 75, "")
    assert (stopped.report.outcome, stopped.report.stop_reason) == ("interrupted", "signal")
    saved = [path.name for path in (folder / "checkpoints").iterdir()]
    assert saved == [f"step-{stopped.report.last_step}"]


def test_a_batch_that_the_ranks_cannot_share_equally_is_refused_by_all(store: Store) -> None:
    spec = store.spec("sft", {"base": "base", "demonstrations": "demonstrations"}, {**QUICK, "global_batch": 7})
    refused = store.run_ranks(spec, 2)
    assert refused.code == 1
    assert "a batch of 7 cannot be shared equally by 2 ranks" in refused.report.message
    assert json.loads((refused.folder / "rank-1.json").read_text())["rank"] == 1


def test_shares_are_equal_and_in_order() -> None:
    assert [list(Ranks(rank, 2).share([5, 6, 7, 8])) for rank in (0, 1)] == [[5, 6], [7, 8]]
    with pytest.raises(SpecError, match="cannot be shared"):
        Ranks(0, 2).share([])
