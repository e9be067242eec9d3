"""What the resume matrix found, cell by cell, kept in a file so that a run that was cut off goes on where it stopped."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CODE = ("include/domain", "include/runtime", "include/training", "include/transforms", "tests/training")
INSTALLED = "requirements-cluster.txt"
"""What the bits of a run, or the way it is killed and compared, may depend on."""


def code_digest(project: Path) -> str:
    """Over names and bytes of the sources in CODE, without the tests themselves, and of what is installed: another byte, and every cell is run again."""
    sources = (path for folder in CODE for path in (project / folder).rglob("*.py") if not path.name.startswith("test_"))
    found = hashlib.sha256()
    for path in sorted([*sources, *project.glob(INSTALLED)]):
        found.update(f"{path.relative_to(project).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


class Results:
    """The outcomes of cells under one digest of the code; those under another one are dropped with the first that is kept."""

    def __init__(self, path: Path, code: str) -> None:
        self.path = path
        self.code = code
        stated = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._cells: dict[str, dict[str, Any]] = stated["cells"] if stated.get("code") == code else {}

    def of(self, name: str) -> Mapping[str, bool]:
        """Moment → exact, as far as known."""
        return {outcome["moment"]: bool(outcome["exact"]) for outcome in self._cells.get(name, {}).get("outcomes", ())}

    def exact(self, name: str, moments: Sequence[str]) -> bool:
        """Every one of `moments` was seen, was exact, and nothing failed."""
        seen = self.of(name)
        return not self._cells.get(name, {"error": "not run"})["error"] and all(seen.get(moment, False) for moment in moments)

    def seconds(self, names: Sequence[str]) -> float:
        return sum(float(self._cells[name]["seconds"]) for name in names if name in self._cells)

    def keep(self, name: str, outcomes: Sequence[Mapping[str, Any]], error: str, seconds: float) -> None:
        self._cells[name] = {"outcomes": [dict(outcome) for outcome in outcomes], "error": error, "seconds": round(seconds, 1)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".tmp")
        aside.write_text(json.dumps({"code": self.code, "cells": self._cells}, indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(aside, self.path)


def line(number: str, elapsed_s: float, columns: Mapping[str, str], outcome: Mapping[str, Any]) -> str:
    """One moment of one cell, as it is seen."""
    where = ", ".join(f"{name} {value}" for name, value in columns.items() if name != "program")
    exact = "exact" if outcome["exact"] else "NOT EXACT"
    return (
        f"{number} {elapsed_s:.0f} s {columns['program']}, {where}: {outcome['moment']}, resumed at step {outcome['resumed_at']}: {exact}"
    )


def table(rows: Sequence[tuple[Mapping[str, str], Sequence[str], Mapping[str, bool]]], moments: Sequence[str]) -> str:
    """A line a cell: yes, NO, ``-`` for a moment that is none of its own, ``?`` for one that was not seen."""
    words = {True: "yes", False: "NO", None: "?"}
    lines = [[*rows[0][0], *moments]] if rows else []
    for columns, own, seen in rows:
        lines.append([*columns.values(), *(words[seen.get(moment)] if moment in own else "-" for moment in moments)])
    widths = [max(len(cells[at]) for cells in lines) for at in range(len(lines[0]))] if lines else []
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in lines)
