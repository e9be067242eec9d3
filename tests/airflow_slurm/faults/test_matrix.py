"""Every accident at every point of the protocol, against a real Slurm behind a real sshd: exactly one job, and the truth about it.

``make faults`` runs all cells; a short selection runs with the other tests. The table is printed at the end and written to
the file that ``SLURM_FAULTS_TABLE`` names.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.slurm_cluster import PrivateSlurm

from .cells import CELLS, SHORT, Cell
from .matrix import run_cell
from .table import RESULTS

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short, since it is on the PATH of every command."""
    made = Path(tempfile.mkdtemp(prefix="fm-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("cell", [pytest.param(c, id=str(c), marks=() if c.short else pytest.mark.slow) for c in CELLS])
async def test_one_job_and_its_true_end(cell: Cell, slurm: PrivateSlurm, folder: Path, key: str) -> None:
    result = await run_cell(cell, slurm, folder, key)
    RESULTS.append(result)
    log = (folder / "log").read_text() if (folder / "log").exists() else ""
    assert result.clean, f"{result}\n{log[-6000:].replace('x' * 200, '')}"


def test_every_cell_is_there_once() -> None:
    names = [str(cell) for cell in CELLS]
    assert len(names) == len(set(names)) >= 60
    assert {str(cell) for cell in CELLS if cell.short} == set(SHORT)
