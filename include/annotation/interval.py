"""Labels by the time at which they were given, over all batches: as they stood at the interval's end, whatever happened since."""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, or_, select

from include.annotation.database import Database
from include.annotation.errors import NotFound, Refused
from include.annotation.tables import batches, displays, labels, tasks, withdrawals
from include.annotation.times import stamp

SCHEMA = "align/interval-labels/v1"


def labels_between(
    database: Database, since: datetime, until: datetime, now: datetime, after: str | None = None, limit: int = 500
) -> dict[str, Any]:
    """The labels of [since, until) that stood at `until`, oldest first; a page of them, which follows the label `after`.

    A correction or a withdrawal counts when it was made before `until`. `next` names the last label of a page that others follow.

    Raises:
        Refused: a time without its zone, an interval that is none, or one that is not over yet: its labels could still become others.
        NotFound: there is no label `after`.
    """
    _check(since, until, now)
    with database.read() as connection:
        query = (
            select(labels, tasks.c.a_answer, tasks.c.b_answer, tasks.c.gold, batches.c.purpose, displays.c.shown_at)
            .join(tasks, tasks.c.task_id == labels.c.task_id)
            .join(batches, batches.c.batch_id == labels.c.batch_id)
            .join(displays, and_(displays.c.task_id == labels.c.task_id, displays.c.annotator_id == labels.c.annotator_id))
            .where(_standing(stamp(since), stamp(until)), *_following(connection, after))
            .order_by(labels.c.created_at, labels.c.label_id)
        )
        rows = connection.execute(query.limit(limit + 1)).all()
    page = [_told(row) for row in rows[:limit]]
    more = len(rows) > limit
    return {"schema": SCHEMA, "labels": page, "next": page[-1]["label"]["label_id"] if more else None}


def _check(since: datetime, until: datetime, now: datetime) -> None:
    if since.tzinfo is None or until.tzinfo is None:
        raise Refused("invalid", "since and until need their zone, as in 2026-03-02T00:00:00Z")
    if since >= until:
        raise Refused("invalid", f"an interval from {since.isoformat()} to {until.isoformat()} holds nothing")
    if until > now:
        raise Refused("not_over", f"the interval ends at {until.isoformat()}, and it is {now.isoformat()}: its labels could still change")


def _standing(since: str, until: str) -> ColumnElement[bool]:
    newer = labels.alias("newer")
    corrected = exists().where(newer.c.supersedes == labels.c.label_id, newer.c.created_at < until)
    gone = exists().where(withdrawals.c.label_id == labels.c.label_id, withdrawals.c.withdrawn_at < until)
    return and_(labels.c.created_at >= since, labels.c.created_at < until, ~corrected, ~gone)


def _following(connection: Connection, after: str | None) -> list[ColumnElement[bool]]:
    if after is None:
        return []
    at = connection.execute(select(labels.c.created_at).where(labels.c.label_id == after)).scalar_one_or_none()
    if at is None:
        raise NotFound("unknown_label", f"there is no label {after}")
    return [or_(labels.c.created_at > at, and_(labels.c.created_at == at, labels.c.label_id > after))]


def _told(row: Row[Any]) -> dict[str, Any]:
    """A label with what an audit needs beside it. Of the answers their lengths alone, of the annotator the pseudonym."""
    lengths = [len(json.loads(answer)["text"]) for answer in (row.a_answer, row.b_answer)]
    return {
        "label": json.loads(row.record),
        "purpose": row.purpose,
        "gold": json.loads(row.gold)["verdict"] if row.gold else None,
        "characters": lengths,
        "shown_at": row.shown_at,
    }
