"""A gate report for people: plain text for a terminal, Markdown for a page."""

import math
from collections.abc import Sequence

from include.gates.results import GateReport, GateResult

_HEAD = ("group", "gate", "against", "estimate [bounds]", "limit", "n", "verdict")


def table(report: GateReport) -> str:
    """The report as aligned columns; below it, what blocked and what is a known risk."""
    rows = [_HEAD, *(_cells(result) for result in report.results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([_title(report), "", *lines, *_remarks(report)])


def markdown(report: GateReport) -> str:
    """The same as a Markdown table."""
    rows = [_HEAD, ("---",) * len(_HEAD), *(_cells(result) for result in report.results)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"### {_title(report)}", "", *lines, *_remarks(report, "- ")]) + "\n"


def _title(report: GateReport) -> str:
    passed = "passed" if report.passed else "blocked"
    return f"Gates {report.gates} ({report.gate_code}): {passed}"


def _cells(result: GateResult) -> tuple[str, ...]:
    verdict = result.verdict.value.replace("_", " ") + (" (waived)" if result.lets_through and result.waived else "")
    return (
        result.group,
        result.name,
        result.against or "-",
        _interval(result),
        "-" if result.limit is None else f"{result.limit:.3g}",
        str(result.n or "-"),
        verdict,
    )


def _interval(result: GateResult) -> str:
    if result.estimate is None:
        return "-"
    bounds = ", ".join("?" if b is None or not math.isfinite(b) else f"{b:+.3f}" for b in (result.lower, result.upper))
    return f"{result.estimate:+.3f} [{bounds}]"


def _remarks(report: GateReport, bullet: str = "") -> Sequence[str]:
    blocked = [
        f"{bullet}blocks: {r.name}" + (f" against {r.against}" if r.against else "") + f": {r.message}"
        for r in report.results
        if not r.lets_through
    ]
    risks = [f"{bullet}known risk: {risk}" for risk in report.known_risks]
    lines = [*blocked, *risks, *(f"{bullet}note: {note}" for note in report.notes)]
    return ["", *lines] if lines else []
