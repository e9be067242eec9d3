"""Prints the matrix at the end of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .table import RESULTS, table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of all cells that ran, also into the file that SLURM_FAULTS_TABLE names."""
    if not RESULTS:
        return
    text = table(RESULTS)
    terminalreporter.write_sep("=", "Slurm provider: accidents and what came of them")
    terminalreporter.write_line("")
    terminalreporter.write_line(text)
    if path := os.environ.get("SLURM_FAULTS_TABLE"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
        terminalreporter.write_line(f"Written to {path}.")
