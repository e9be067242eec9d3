"""Handing out tasks: who sees which comparison, with which answer on the left.

The side is drawn and committed before anything is answered, once for a task and annotator; asking again shows the same.
A lease keeps a task for its annotator for a while, so that nobody else is given work that somebody is at.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, func, or_, select, update

from include.annotation.batches import find_batch, rubric_of
from include.annotation.database import Database
from include.annotation.errors import NotFound
from include.annotation.tables import batches, displays, labels, leases, tasks
from include.annotation.times import stamp
from include.domain.records import Rubric

OPEN, DONE, WITHDRAWN = "open", "done", "withdrawn"


@dataclass(frozen=True)
class Annotator:
    """Somebody who labels: the pseudonym, the kind that marks the labels, and the pool of tasks."""

    annotator_id: str
    kind: str
    pool: str


@dataclass(frozen=True)
class Shown:
    """A task as one annotator sees it. `left_side` (A or B) stays on the server."""

    task: Row[Any]
    left_side: str
    rubric: Rubric

    def blind(self) -> dict[str, Any]:
        """What may be known to the annotator, and nothing else."""
        prompt = json.loads(self.task.prompt)
        a, b = json.loads(self.task.a_answer), json.loads(self.task.b_answer)
        left, right = (a, b) if self.left_side == "A" else (b, a)
        return {"task_id": self.task.task_id, "prompt": prompt, "left": left, "right": right, "rubric": self.rubric.to_json()}


@dataclass(frozen=True)
class Desk:
    """One question for the next task: whose, when, and how long it is kept."""

    annotator: Annotator
    moment: datetime
    lease_s: float

    @property
    def now(self) -> str:
        return stamp(self.moment)

    @property
    def until(self) -> str:
        return stamp(self.moment + timedelta(seconds=self.lease_s))


@dataclass(frozen=True)
class Offer:
    """The answer to "what next?": a task, or the reason why there is none (none_left, all_taken)."""

    shown: Shown | None
    done: int
    of: int
    reason: str | None = None


def next_task(database: Database, desk: Desk, batch_id: str | None = None) -> Offer:
    """The annotator's open task, or a new one, its side committed. Raises NotFound for an unknown batch."""
    with database.write() as connection:
        roots = _open_roots(connection, batch_id)
        for root in roots:
            find_batch(connection, root, lock=True)
            shown = _open_task(connection, root, desk) or _new_task(connection, root, desk)
            if shown:
                done, of = _counts(connection, [root], desk)
                return Offer(shown, done, of)
        done, of = _counts(connection, roots, desk)
        return Offer(None, done, of, "all_taken" if _unfilled(connection, roots, desk) else "none_left")


def _open_roots(connection: Connection, batch_id: str | None) -> list[str]:
    if batch_id is not None:
        root = find_batch(connection, batch_id)
        if root.root_id != batch_id:  # mixed-in gold items are handed out with the batch they hide in, never alone
            raise NotFound("unknown_batch", f"there is no batch {batch_id}")
        return [] if root.closed_at else [batch_id]
    wanted = batches.c.closed_at.is_(None) & (batches.c.root_id == batches.c.batch_id)
    return list(connection.execute(select(batches.c.batch_id).where(wanted).order_by(batches.c.created_at, batches.c.batch_id)).scalars())


def _below(roots: Sequence[str]) -> ColumnElement[bool]:
    return tasks.c.batch_id.in_(select(batches.c.batch_id).where(batches.c.root_id.in_(roots)))


def taken_by_others(annotator_id: str, now: str) -> Any:
    """SQL: how many others have labelled a task of `tasks`, or are at it."""
    busy = or_(leases.c.state == DONE, and_(leases.c.state == OPEN, leases.c.until > now))
    where = and_(leases.c.task_id == tasks.c.task_id, leases.c.annotator_id != annotator_id, busy)
    return select(func.count()).select_from(leases).where(where).correlate(tasks).scalar_subquery()


def _has_room(desk: Desk) -> ColumnElement[bool]:
    return or_(tasks.c.wanted.is_(None), taken_by_others(desk.annotator.annotator_id, desk.now) < tasks.c.wanted)


def _mine(desk: Desk) -> ColumnElement[bool]:
    return and_(displays.c.task_id == tasks.c.task_id, displays.c.annotator_id == desk.annotator.annotator_id)


def _free_for(roots: Sequence[str], desk: Desk) -> ColumnElement[bool]:
    return and_(
        _below(roots), tasks.c.pool == desk.annotator.pool, tasks.c.filled.is_(False), ~exists().where(_mine(desk)), _has_room(desk)
    )


def _held_by(roots: Sequence[str], desk: Desk) -> ColumnElement[bool]:
    """Shown to this annotator, not labelled, and still wanted from them."""
    mine = and_(leases.c.task_id == tasks.c.task_id, leases.c.annotator_id == desk.annotator.annotator_id, leases.c.state == OPEN)
    return and_(_below(roots), exists().where(mine), _has_room(desk))


def _open_task(connection: Connection, root: str, desk: Desk) -> Shown | None:
    query = select(tasks, displays.c.left_side).join(displays, _mine(desk)).where(_held_by([root], desk))
    row = connection.execute(query.order_by(displays.c.shown_at, tasks.c.shuffle).limit(1)).first()
    if row is None:
        return None
    mine = and_(leases.c.task_id == row.task_id, leases.c.annotator_id == desk.annotator.annotator_id)
    connection.execute(update(leases).where(mine).values(until=desk.until))
    return _shown(connection, row, row.left_side)


def _new_task(connection: Connection, root: str, desk: Desk) -> Shown | None:
    row = connection.execute(select(tasks).where(_free_for([root], desk)).order_by(tasks.c.shuffle, tasks.c.task_id).limit(1)).first()
    if row is None:
        return None
    left_side = "AB"[secrets.randbits(1)]
    who = {"task_id": row.task_id, "annotator_id": desk.annotator.annotator_id}
    connection.execute(displays.insert().values(left_side=left_side, shown_at=desk.now, **who))
    connection.execute(leases.insert().values(until=desk.until, state=OPEN, **who))
    return _shown(connection, row, left_side)


def _shown(connection: Connection, row: Row[Any], left_side: str) -> Shown:
    return Shown(row, left_side, rubric_of(connection, find_batch(connection, row.batch_id)))


def _counts(connection: Connection, roots: Sequence[str], desk: Desk) -> tuple[int, int]:
    """Labelled by this annotator, and that together with what they could still label, in these batches."""
    count = select(func.count()).select_from(tasks)
    first = and_(labels.c.task_id == tasks.c.task_id, labels.c.annotator_id == desk.annotator.annotator_id)
    done = connection.execute(count.where(_below(roots), exists().where(first))).scalar_one()
    waiting = connection.execute(count.where(or_(_free_for(roots, desk), _held_by(roots, desk)))).scalar_one()
    return done, done + waiting


def _unfilled(connection: Connection, roots: Sequence[str], desk: Desk) -> bool:
    """Whether others are at tasks that would come back if they gave up."""
    where = and_(_below(roots), tasks.c.pool == desk.annotator.pool, tasks.c.filled.is_(False), tasks.c.wanted.is_not(None))
    first = and_(labels.c.task_id == tasks.c.task_id, labels.c.annotator_id == desk.annotator.annotator_id)
    return connection.execute(select(tasks.c.task_id).where(where, ~exists().where(first)).limit(1)).first() is not None


def shown_task(connection: Connection, annotator: Annotator, task_id: str) -> Shown:
    """A task that was shown to this annotator; NotFound for any other, so that ids tell nothing."""
    mine = and_(displays.c.task_id == tasks.c.task_id, displays.c.annotator_id == annotator.annotator_id)
    row = connection.execute(select(tasks, displays.c.left_side).join(displays, mine).where(tasks.c.task_id == task_id)).first()
    if row is None:
        raise NotFound("unknown_task", f"task {task_id} was not shown to you")
    return _shown(connection, row, row.left_side)


def finish(connection: Connection, task_id: str, annotator_id: str, state: str) -> None:
    """The annotator's lease ends as `state` (DONE, or WITHDRAWN, which frees its place); the caller holds the batch's lock."""
    mine = and_(leases.c.task_id == task_id, leases.c.annotator_id == annotator_id)
    connection.execute(update(leases).where(mine).values(state=state))
    done = and_(leases.c.task_id == tasks.c.task_id, leases.c.state == DONE)
    count = select(func.count()).select_from(leases).where(done).correlate(tasks).scalar_subquery()
    bounded = and_(tasks.c.task_id == task_id, tasks.c.wanted.is_not(None))
    connection.execute(update(tasks).where(bounded).values(filled=count >= tasks.c.wanted))
