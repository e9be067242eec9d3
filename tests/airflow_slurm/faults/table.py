"""The matrix for people to read."""

from __future__ import annotations

from collections.abc import Sequence

from .matrix import Result

#: Of all cells that ran in this process.
RESULTS: list[Result] = []

#: What the table is, above it.
NOTE = """\
One accident a line, at one point of the protocol. The lines are a selection of fault x point, not every pair: the receipt store's points
(claim, record, released, close) meet the death of their process alone, as nothing else passes there; daemons and the network meet the points
at which a command runs or an answer is on its way, most of them at the first passage. Worker, triggerer and reconciler are processes of
this test that run the real operator, trigger and reconciler; what Airflow does between them is played here. With Airflow's own services the
same is tried, less densely, in tests/e2e/test_faults.py and tests/e2e/test_slurm_tasks.py.

*answered after*: from the accident to the first command that began after it and was answered. *settled after*: from the accident to the
task's end, the rest of the job included. *lost* also counts a job that was ended without having heard the signal to save. Where a controller dies while a job is being ended, it
had saved that the job runs, as it does some seconds after the start: killed before, it comes back with a job that it holds, and the node
ends the run without a signal.
"""

_HEAD = ("fault @ point", "submitted", "doubled", "lost", "false success", "false failure", "answered after s", "settled after s", "took s")


def table(results: Sequence[Result]) -> str:
    """A Markdown table with one line a cell, a last line that sums up, and what is to know of it above."""
    rows = [
        (str(r.cell) + ("" if r.clean else "  ←"), str(r.submitted), str(r.doubled), str(r.lost), str(r.false_success), str(r.false_failure),
         "–" if r.answered_s is None else f"{r.answered_s:.1f}", f"{r.settled_s:.1f}", f"{r.total_s:.1f}")
        for r in results
    ]  # fmt: skip
    sums = [
        sum(values) for values in zip(*((r.submitted, r.doubled, r.lost, r.false_success, r.false_failure) for r in results), strict=True)
    ]
    slowest = [max((times[i] or 0.0 for times in ((r.answered_s, r.settled_s) for r in results)), default=0.0) for i in (0, 1)]
    at_most = [f"at most {seconds:.1f}" for seconds in slowest]
    rows.append((f"{len(results)} cells", *map(str, sums), *at_most, f"{sum(r.total_s for r in results):.0f}"))
    widths = [max(len(row[i]) for row in [_HEAD, *rows]) for i in range(len(_HEAD))]
    lines = [_HEAD, tuple("-" * width for width in widths), *rows]
    return (
        f"{NOTE}\n"
        + "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in lines)
        + "\n"
    )
