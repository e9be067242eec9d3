"""Pairs on another number of ranks, or cut in another way: the rest of the run has the data order, schedule and losses of one that never changed."""

from typing import Any

import pytest

from tests.training import align_store
from tests.training.harness import Started, Store
from tests.training.resume_matrix_cells import EVERY, Cell

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpo": ("dpo", align_store.DPO),
    "kto": ("dpo", align_store.KTO),
    "reward_model": ("reward_model", align_store.REWARD),
}
"""What is learnt, by which program and with what configuration."""
MOVES = {
    "from two ranks to one": (Cell("", 2, 3), Cell("", 1, 3)),
    "from one rank to two": (Cell("", 1, 2), Cell("", 2, 2)),
    "Megatron, from one rank to two pipeline stages": (Cell("", 1, 0, "megatron"), Cell("", 2, 0, "megatron", 1, 2)),
    "Megatron, from two tensor parallel to two data parallel": (Cell("", 2, 0, "megatron", 2), Cell("", 2, 0, "megatron")),
}
"""Where a run begins, and where it goes on."""


def _of(program: str, cell: Cell) -> Cell:
    return Cell(program, cell.ranks, cell.zero_stage, cell.engine, cell.tensor_parallel, cell.pipeline_parallel)


def _told(started: Started, name: str) -> list[float]:
    return [line[name] for line in started.lines]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("learnt", [pytest.param(name, marks=[pytest.mark.slow] * (name == "kto")) for name in CONFIGS])
def test_a_run_goes_on_elsewhere_with_the_losses_of_one_that_stayed(paired: Store, learnt: str, move: str) -> None:
    program, config = CONFIGS[learnt]
    began, goes_on = (_of(program, cell) for cell in MOVES[move])
    stayed = began.run(paired, began.spec(paired, config, f"{learnt} stayed, {move}"))
    assert stayed.code == 0, stayed.stderr
    spec = began.spec(paired, config, f"{learnt} moved, {move}")
    assert began.run(paired, spec, 1, "after-rename").code != 0
    rest = goes_on.run(paired, spec, 2)
    assert (rest.code, rest.report.first_step) == (0, EVERY), rest.stderr
    assert rest.report.summary["ranks"] == goes_on.ranks
    for name in ("step", "learning_rate"):
        assert _told(rest, name) == _told(stayed, name)[EVERY:], name
    assert _told(rest, "loss") == pytest.approx(_told(stayed, "loss")[EVERY:], abs=1e-4)
    if learnt == "kto":
        assert _told(rest, "reference_point") == pytest.approx(_told(stayed, "reference_point")[EVERY:], abs=1e-3)
    assert _told(rest, "loss") != pytest.approx(_told(stayed, "loss")[:-EVERY], abs=1e-4), "other steps have other losses"
