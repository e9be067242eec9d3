"""Taking labels: what was seen is resolved to candidates by the order that was recorded. History is only added to."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select

from include.annotation.assignment import DONE, Annotator, Shown, finish, shown_task, taken_by_others
from include.annotation.batches import find_batch, next_mark
from include.annotation.database import Database
from include.annotation.errors import Conflict, Refused
from include.annotation.requests import LabelIn
from include.annotation.tables import labels, leases, tasks, withdrawals
from include.annotation.times import stamp
from include.domain.canonical import canonical_bytes, digest
from include.domain.records import Label, Rubric, record_digest

_OTHER = {"A": "B", "B": "A"}


@dataclass(frozen=True)
class Submission:
    """One judgement as it comes in."""

    annotator: Annotator
    task_id: str
    body: LabelIn
    moment: datetime


def submit(database: Database, submission: Submission) -> tuple[dict[str, Any], bool]:
    """The label in the annotator's own terms, and whether it was written now (the same again writes nothing).

    Raises:
        NotFound: the task was never shown to this annotator.
        Refused: a reason code or dimension that the rubric does not have.
        Conflict: already_labelled, superseded (of a correction), withdrawn, or lease_lost.
    """
    request_digest = digest("label-request", submission.body.model_dump())
    with database.write() as connection:
        shown = shown_task(connection, submission.annotator, submission.task_id)
        _check_against(shown.rubric, submission.body)
        find_batch(connection, find_batch(connection, shown.task.batch_id).root_id, lock=True)
        earlier = _labels_of(connection, submission)
        for row in earlier:
            if row.request_digest == request_digest:
                return as_seen(row, shown), False
        _check_place(connection, submission, shown, earlier)
        label = _insert(connection, submission, shown, request_digest)
        finish(connection, shown.task.task_id, submission.annotator.annotator_id, DONE)
        return as_seen(label, shown), True


def _check_against(rubric: Rubric, body: LabelIn) -> None:
    for what, given, known in (
        ("reason code", body.reason_codes, rubric.reason_codes),
        ("dimension", list(body.dimension_scores), rubric.dimensions),
    ):
        if unknown := sorted(set(given) - set(known)):
            raise Refused("not_in_rubric", f"{what} {unknown[0]!r} is not in rubric {rubric.version} ({', '.join(known) or 'it has none'})")
    if len(set(body.reason_codes)) != len(body.reason_codes):
        raise Refused("invalid", "a reason code is given twice")
    if body.verdict == "cannot_judge" and body.dimension_scores:
        raise Refused("invalid", "who cannot judge gives no scores")


def _labels_of(connection: Connection, submission: Submission) -> list[Row[Any]]:
    mine = and_(labels.c.task_id == submission.task_id, labels.c.annotator_id == submission.annotator.annotator_id)
    return list(connection.execute(select(labels).where(mine).order_by(labels.c.mark)))


def _check_place(connection: Connection, submission: Submission, shown: Shown, earlier: Sequence[Row[Any]]) -> None:
    corrected = submission.body.supersedes
    if corrected is None:
        if earlier:
            raise Conflict("already_labelled", f"you labelled this task before: correct {earlier[-1].label_id} by naming it in supersedes")
        _check_room(connection, submission, shown)
        return
    if not earlier or earlier[-1].label_id != corrected:
        current = earlier[-1].label_id if earlier else "none yet"
        raise Conflict("superseded", f"{corrected} is not your current label of this task ({current})")
    if connection.execute(select(withdrawals.c.label_id).where(withdrawals.c.label_id == corrected)).first():
        raise Conflict("withdrawn", f"{corrected} was withdrawn and can't be corrected")


def _check_room(connection: Connection, submission: Submission, shown: Shown) -> None:
    if shown.task.wanted is None:
        return
    taken = select(taken_by_others(submission.annotator.annotator_id, stamp(submission.moment)))
    query = taken.select_from(tasks).where(tasks.c.task_id == submission.task_id)
    if connection.execute(query).scalar_one() >= shown.task.wanted:
        raise Conflict("lease_lost", "this task was given to somebody else after you had left it for too long: take the next one")


def _insert(connection: Connection, submission: Submission, shown: Shown, request_digest: str) -> Row[Any]:
    label = resolve(submission, shown)
    body = label.to_json()
    values = {
        "label_id": label.label_id,
        "batch_id": label.batch_id,
        "mark": next_mark(connection, label.batch_id),
        "task_id": label.task_id,
        "annotator_id": label.annotator_id,
        "annotator_kind": label.annotator_kind,
        "verdict": label.verdict,
        "record": canonical_bytes(body).decode(),
        "digest": record_digest("label", label),
        "request_digest": request_digest,
        "created_at": label.created_at,
        "supersedes": label.supersedes,
    }
    connection.execute(labels.insert().values(**values))
    return connection.execute(select(labels).where(labels.c.label_id == label.label_id)).one()


def resolve(submission: Submission, shown: Shown) -> Label:
    """The label about candidates that a judgement about left and right amounts to."""
    task, body, left = shown.task, submission.body, shown.left_side
    verdict = {"left": left, "right": _OTHER[left]}.get(body.verdict, body.verdict)
    ids = {"A": task.a_id, "B": task.b_id}
    return Label(
        label_id=f"label_{secrets.token_hex(16)}",
        task_id=task.task_id,
        batch_id=task.batch_id,
        prompt_id=task.prompt_id,
        candidate_a_id=task.a_id,
        candidate_b_id=task.b_id,
        verdict=verdict,
        chosen_candidate_id=ids.get(verdict),
        rejected_candidate_id=ids.get(_OTHER.get(verdict, "")),
        rubric_version=shown.rubric.version,
        annotator_id=submission.annotator.annotator_id,
        annotator_kind=submission.annotator.kind,
        display_order=(ids[left], ids[_OTHER[left]]),
        swap_flag=left == "B",
        dimension_scores=dict(body.dimension_scores),
        reason_codes=tuple(body.reason_codes),
        created_at=stamp(submission.moment),
        supersedes=body.supersedes,
    )


def as_seen(row: Row[Any], shown: Shown) -> dict[str, Any]:
    """A label in the annotator's terms: left and right, no candidate, no order."""
    record = json.loads(row.record)
    verdict = record["verdict"]
    if verdict in _OTHER:
        verdict = "left" if verdict == shown.left_side else "right"
    kept = ("label_id", "task_id", "supersedes", "created_at", "reason_codes", "dimension_scores")
    return {**{key: record[key] for key in kept}, "verdict": verdict}


def own_task(database: Database, annotator: Annotator, task_id: str) -> dict[str, Any]:
    """A task that was shown to this annotator, with their current label of it (None if none, or withdrawn)."""
    with database.read() as connection:
        shown = shown_task(connection, annotator, task_id)
        mine = and_(labels.c.task_id == task_id, labels.c.annotator_id == annotator.annotator_id)
        row = connection.execute(select(labels).where(mine).order_by(labels.c.mark.desc()).limit(1)).first()
        gone = row and connection.execute(select(withdrawals.c.label_id).where(withdrawals.c.label_id == row.label_id)).first()
        return {**shown.blind(), "label": as_seen(row, shown) if row and not gone else None}


def previous_task(database: Database, annotator: Annotator, before: str | None) -> dict[str, Any] | None:
    """The task this annotator labelled last, or last before the task `before`; with its label, ready to be corrected."""
    first = and_(labels.c.annotator_id == annotator.annotator_id, labels.c.supersedes.is_(None))
    stands = and_(leases.c.task_id == labels.c.task_id, leases.c.annotator_id == labels.c.annotator_id, leases.c.state == DONE)
    query = select(labels.c.task_id, labels.c.created_at, labels.c.label_id).join(leases, stands).where(first)
    with database.read() as connection:
        if before is not None:
            pivot = connection.execute(query.where(labels.c.task_id == before)).first()
            if pivot is not None:
                at, same = labels.c.created_at, labels.c.label_id
                query = query.where(or_(at < pivot.created_at, and_(at == pivot.created_at, same < pivot.label_id)))
        row = connection.execute(query.order_by(labels.c.created_at.desc(), labels.c.label_id.desc()).limit(1)).first()
    return own_task(database, annotator, row.task_id) if row else None
