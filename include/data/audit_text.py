"""An annotation audit as people read it, in a task's log and in a shell. Names are shown with what could move a cursor or break a line escaped."""

from collections.abc import Mapping, Sequence
from typing import Any

from include.data.annotation_audit import FINE, NOT_ENOUGH, REVIEW
from include.data.audit_figures import UNDECIDED

Json = Mapping[str, Any]
_MARKS = {FINE: "", REVIEW: " !", NOT_ENOUGH: " ?"}


def plain(name: str) -> str:
    """A name in which nothing is invisible: line ends, escape sequences and marks of direction are written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)


def audit_text(report: Json) -> str:
    """The whole report."""
    labels = report["labels"]
    about = "all rubrics" if report["rubric"] is None else f"rubric {plain(report['rubric'])}"
    lines = [
        f"Annotation audit of {report['since']} to {report['until']}, {about}: {report['status']}",
        f"{labels['people']} labels of people ({labels['gold']} on gold items), {report['before']['labels']['people']} in the interval before; "
        f"{labels['programs']} of programs are not audited",
    ]
    if report["review"]:
        lines += ["", "To be reviewed:", *(f"  {line}" for line in review_lines(report))]
    if report["rubrics"]:
        lines += ["", *_table(_RUBRICS, [_rubric(one) for one in report["rubrics"]])]
    if report["annotators"]:
        lines += ["", *_table(_ANNOTATORS, [_annotator(one) for one in report["annotators"]])]
        lines += ["", "? not enough, never fine · ! to be reviewed · [95 % interval] · < the interval before"]
    return "\n".join(lines)


def review_lines(report: Json) -> list[str]:
    """Who and what is to be reviewed, by name, and why."""
    return [f"{one['kind']} {plain(one['name'])}: {one['why']}" for one in report["review"]]


_RUBRICS = ("rubric", "labels", "people", "double", "kappa", "agree", "same sides", "swapped", "left")
_ANNOTATORS = ("annotator", "kind", "labels", "gold right", "as most others", "left", "longer", "short wins", "tie/bad/can't", "median s")


def _rubric(one: Json) -> list[str]:
    kappa = one["measures"]["kappa"]
    shown = _figure(kappa["kappa"], kappa["interval"]) + _MARKS.get(kappa["state"], "")
    shares = [_share(one[name]) for name in ("agreeing", "same_sides", "swapped", "left")]
    return [plain(one["name"]), str(one["labels"]), str(one["annotators"]), str(kappa["items"]), shown + _before(kappa, "kappa"), *shares]


def _annotator(one: Json) -> list[str]:
    gold, majority, left, short = (_measure(one["measures"][name]) for name in ("gold", "majority", "left", "short"))
    undecided = "/".join(str(one["undecided"][verdict]) for verdict in UNDECIDED)
    seconds = "–" if one["median_seconds"] is None else f"{one['median_seconds']:g}"
    who = [plain(one["name"]), plain(one["kind"]), str(one["labels"])]
    return [*who, gold, majority, left, _share(one["longer"]), short, undecided, seconds]


def _measure(one: Json) -> str:
    shown = "–" if one["share"] is None else f"{one['part']}/{one['of']} {_figure(one['share'], one['interval'])}"
    return shown + _MARKS.get(one["state"], "") + _before(one, "share")


def _share(one: Json) -> str:
    return "–" if one["share"] is None else f"{one['part']}/{one['of']} {one['share']:.2f}"


def _figure(value: float | None, interval: Sequence[float] | None) -> str:
    bounds = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"
    return "–" if value is None else f"{value:.2f}{bounds}"


def _before(one: Json, name: str) -> str:
    earlier = one["before"] and one["before"][name]
    return "" if earlier is None else f" < {earlier:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
