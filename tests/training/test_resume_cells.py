"""What recipes set beside a program's plain configuration is killed and resumed to the same bits too. All of it: make resume-matrix."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.training.harness import Store
from tests.training.resume_matrix import outcomes, prepared
from tests.training.resume_matrix_cells import Cell, cells, cells_within, changed_cells

TRIED = (
    ("sft bf16_autocast 1 0 plain", "before-rename"),
    ("reward_model bf16_autocast 1 0 plain", "update"),
    ("dpo bf16_autocast 1 0 plain", "update"),
    ("dpo fp32 1 0 lora", "before-rename"),
    ("dpo fp32 1 0 kto", "update"),
    ("reward_model fp32 1 0 ensemble", "after-rename"),
    ("ppo bf16_autocast 1 0 plain", "generating"),
    ("ppo fp32 1 0 reuse", "update"),
    ("ppo fp32 1 0 adapters", "after-rename"),
    ("ppo bf16_autocast 1 0 frozen", "generating"),
    ("ppo fp32 1 0 apart", "before-rename after-rename"),
    ("ppo fp32 2 3 apart", "update"),
    ("generate bf16 1 0 plain", "generating"),
    ("sft fp32 1 0 micro", "backward"),
    ("sft fp32 2 3 micro", "backward"),
    ("dpo fp32 1 0 micro", "backward"),
    ("ppo fp32 1 0 micro", "backward between-steps"),
)
"""Cells, each once, with the moments that are tried here."""


def _named(cell: Cell) -> str:
    return f"{cell.program} {cell.precision} {cell.ranks} {cell.zero_stage} {cell.variant}"


CELLS = {_named(cell): cell for cell in (*changed_cells(), *cells_within())}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Mapping[str, dict[str, Any]]]:
    """The matrix's own store and configurations."""
    return prepared(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize(("name", "moments"), TRIED)
def test_after_a_death_the_bits_are_those_of_a_run_in_one_go(
    ready: tuple[Store, Mapping[str, dict[str, Any]]], name: str, moments: str
) -> None:
    store, configs = ready
    cell = CELLS[name]
    assert set(moments.split()) <= set(cell.moments)
    seen = list(outcomes(store, cell, configs[cell.program], tuple(moments.split())))
    assert [one.moment for one in seen if not one.exact or one.resumed_at <= 0] == []
    assert len(seen) == len(moments.split())


def test_every_cell_has_a_name_of_its_own_and_moments() -> None:
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names)
    assert all(cell.moments for cell in cells())
