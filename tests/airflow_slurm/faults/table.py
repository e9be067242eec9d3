"""The matrix for people to read."""

from __future__ import annotations

from collections.abc import Sequence

from .matrix import Result

#: Of all cells that ran in this process.
RESULTS: list[Result] = []

_HEAD = ("fault @ point", "submitted", "doubled", "lost", "false success", "false failure", "recovered after s", "took s")


def table(results: Sequence[Result]) -> str:
    """A Markdown table with one line a cell, and a last line that sums up."""
    rows = [
        (str(r.cell) + ("" if r.clean else "  ←"), str(r.submitted), str(r.doubled), str(r.lost), str(r.false_success), str(r.false_failure),
         "–" if r.recover_s is None else f"{r.recover_s:.1f}", f"{r.total_s:.1f}")
        for r in results
    ]  # fmt: skip
    sums = [
        sum(values) for values in zip(*((r.submitted, r.doubled, r.lost, r.false_success, r.false_failure) for r in results), strict=True)
    ]
    slowest = max((r.recover_s or 0.0 for r in results), default=0.0)
    rows.append((f"{len(results)} cells", *map(str, sums), f"at most {slowest:.1f}", f"{sum(r.total_s for r in results):.0f}"))
    widths = [max(len(row[i]) for row in [_HEAD, *rows]) for i in range(len(_HEAD))]
    lines = [_HEAD, tuple("-" * width for width in widths), *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in lines) + "\n"
