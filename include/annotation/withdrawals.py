"""Withdrawing a label: an event beside it, never a change of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from include.annotation.assignment import WITHDRAWN, finish
from include.annotation.batches import find_batch, next_mark
from include.annotation.database import Database
from include.annotation.errors import Conflict, NotFound
from include.annotation.tables import labels, withdrawals
from include.annotation.times import stamp


@dataclass(frozen=True)
class Withdrawal:
    label_id: str
    reason: str
    by: str
    moment: datetime


def withdraw(database: Database, withdrawal: Withdrawal) -> tuple[dict[str, Any], bool]:
    """Takes a label out of every later snapshot; earlier ones stay as they were. The task is free for somebody else.

    Raises:
        NotFound: no such label.
        Conflict: superseded; the correction is what has to be withdrawn.
    """
    with database.write() as connection:
        label = connection.execute(select(labels).where(labels.c.label_id == withdrawal.label_id)).first()
        if label is None:
            raise NotFound("unknown_label", f"there is no label {withdrawal.label_id}")
        find_batch(connection, find_batch(connection, label.batch_id).root_id, lock=True)
        known = connection.execute(select(withdrawals).where(withdrawals.c.label_id == label.label_id)).mappings().first()
        if known:
            return _told(known), False
        if newer := connection.execute(select(labels.c.label_id).where(labels.c.supersedes == label.label_id)).scalar_one_or_none():
            raise Conflict("superseded", f"{label.label_id} was corrected by {newer}: withdraw that one")
        row = {
            "label_id": label.label_id,
            "batch_id": label.batch_id,
            "mark": next_mark(connection, label.batch_id),
            "reason": withdrawal.reason,
            "withdrawn_at": stamp(withdrawal.moment),
            "withdrawn_by": withdrawal.by,
        }
        connection.execute(withdrawals.insert().values(**row))
        finish(connection, label.task_id, label.annotator_id, WITHDRAWN)
        return _told(row), True


def withdraw_all_of(database: Database, annotator_id: str, reason: str, by: str, moment: datetime) -> list[dict[str, Any]]:
    """Withdraws every standing label of an annotator, one by one; again after a break it goes on where it was. All their withdrawals, oldest first.

    Raises:
        NotFound: the annotator has no label.
    """
    with database.read() as connection:
        mine = select(labels.c.label_id, labels.c.supersedes).where(labels.c.annotator_id == annotator_id).order_by(labels.c.created_at)
        rows = connection.execute(mine).all()
    if not rows:
        raise NotFound("unknown_annotator", f"annotator {annotator_id} has no label")
    corrected = {row.supersedes for row in rows}
    return [withdraw(database, Withdrawal(row.label_id, reason, by, moment))[0] for row in rows if row.label_id not in corrected]


def all_withdrawals(database: Database, batch_id: str | None = None) -> list[dict[str, Any]]:
    """Every withdrawal (of a batch), in the order in which each batch got them."""
    query = select(withdrawals).order_by(withdrawals.c.batch_id, withdrawals.c.mark)
    if batch_id is not None:
        query = query.where(withdrawals.c.batch_id == batch_id)
    with database.read() as connection:
        return [_told(row) for row in connection.execute(query).mappings()]


def _told(row: Any) -> dict[str, Any]:
    return {key: row[key] for key in ("label_id", "batch_id", "mark", "reason", "withdrawn_at")}
