"""The audit of an interval's labels: read from the annotation service, judged, kept as a report; red where somebody has to look."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import TYPE_CHECKING, Any

from include.flows import services
from include.flows.errors import NoInterval, ToBeReviewed
from include.settings.catalogue import recipe

if TYPE_CHECKING:
    from include.data.annotation_audit import Interval, Thresholds

Json = Mapping[str, Any]
WEEK = timedelta(days=7)
SETTLE = timedelta(seconds=60)
"""So long after an interval's end its labels are read: one is dated when its request comes in, and written a moment later."""


def interval_of(params: Json, dag_run: Any, since: datetime | None, until: datetime | None) -> "Interval":
    """What a run audits: as its parameters say, else its data interval, else the seven days before it was due; a `since` alone reaches to when
    it was due, an `until` alone a week back. The same on every try.

    Raises:
        NoInterval: a time without its zone, an interval that holds nothing, or one that is not over.
    """
    from include.data.annotation_audit import Interval

    asked_since, asked_until = (_moment(name, params.get(name)) for name in ("since", "until"))
    due = getattr(dag_run, "run_after", None) or datetime.now(UTC)
    stated = asked_since or asked_until
    end = (asked_until or (due if stated else until or due)).astimezone(UTC).replace(microsecond=0)
    begin = (asked_since or (None if stated else since) or end - WEEK).astimezone(UTC).replace(microsecond=0)
    if begin >= end:
        raise NoInterval(f"since {begin.isoformat()} is not before until {end.isoformat()}: there is nothing between them")
    if end > datetime.now(UTC):
        raise NoInterval(f"until {end.isoformat()} is not over yet: labels may still come, audit it then")
    return Interval(begin, end)


def _moment(name: str, stated: str | None) -> datetime | None:
    if not stated:
        return None
    try:
        found = datetime.fromisoformat(stated)
    except ValueError as error:
        raise NoInterval(f"{name} is {stated!r}: write a time as 2026-03-02T00:00:00Z") from error
    if found.tzinfo is None:
        raise NoInterval(f"{name} is {stated!r}: say its zone too, as in 2026-03-02T00:00:00Z")
    return found


def thresholds_of(params: Json) -> "Thresholds":
    """As the parameters say; what is left out as the recipe's `annotation` and `preferences` say; what these leave out as usual."""
    from include.data.annotation_audit import Thresholds

    found = recipe(str(params["recipe"]))
    wanted = found.annotation
    stated: dict[str, Any] = {
        "min_gold_accuracy": wanted.min_gold_accuracy,
        "min_gold_labels": wanted.min_gold_labels,
        "min_kappa": wanted.min_kappa,
        "min_majority_agreement": wanted.min_agreement,
        "min_short_win_share": found.preferences.min_short_win_share,
    }
    asked = {name: params.get(name) for name in Thresholds.__dataclass_fields__}
    chosen: dict[str, Any] = {name: stated.get(name) if value is None else value for name, value in asked.items()}
    return Thresholds(**{name: value for name, value in chosen.items() if value is not None})


def audit_labels(params: Json, interval: "Interval", writer: str) -> dict[str, Any]:
    """Reads the interval's labels and those of the one before, and keeps what they say; the same again is the same report.

    Raises:
        AnnotationError: the service does not answer, or not as agreed: nothing is kept.
    """
    from include.data.annotation_audit import audit
    from include.data.audit_figures import figures_of
    from include.data.audit_text import audit_text, review_lines
    from include.flows.panel_result import put

    asked, rubric = thresholds_of(params), params.get("rubric") or None
    _let_settle(interval)
    with services.annotation("pipeline") as client:
        now, before = (client.labels_between(one.since, one.until) for one in (interval, interval.before))
    report = audit(interval, figures_of(now, rubric), figures_of(before, rubric), asked, rubric)
    digest, folder = put("audits", "report.json", report, [], writer)
    services.catalog().audits.record(digest, report, writer)
    print(audit_text(report))
    if rubric is not None and not any(one.label.rubric_version == rubric for one in now):
        print(
            f"No label is by that rubric; there are labels by {', '.join(sorted({ascii(one.label.rubric_version) for one in now})) or 'none'}"
        )
    print(f"Report {digest}: {folder}. Again: bin/align audit {digest}")
    return {"digest": digest, "status": report["status"], "review": review_lines(report), **interval.to_json()}


def _let_settle(interval: "Interval") -> None:
    left = (interval.until + SETTLE - datetime.now(UTC)).total_seconds()
    if left > 0:
        print(f"The interval has just ended: {left:.0f} s for labels that are being written")
        sleep(left)


def require_no_review(told: Json) -> str:
    """The audit's status, where nobody has to look.

    Raises:
        ToBeReviewed: who or which rubric is to be reviewed, why, and what to do.
    """
    if not told["review"]:
        return str(told["status"])
    raise ToBeReviewed(
        f"to be reviewed, of the labels of {told['since']} to {told['until']}:\n"
        + "\n".join(f"- {line}" for line in told["review"])
        + "\nNothing was withdrawn. An annotator: look at their work; what is wrong is taken back with the DAG withdraw_labels (annotator: the "
        "pseudonym), what stands is accepted in the recipe's annotation.gold_reviewed. A rubric: say what people understand differently, under "
        f"a new version. The figures: bin/align audit {told['digest']}"
    )
