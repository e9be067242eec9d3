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

from include.annotation.batches import HUMAN, find_batch, rubric_of
from include.annotation.database import Database
from include.annotation.errors import NotFound
from include.annotation.tables import batches, displays, leases, tasks
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
        everywhere: list[str] = []
        for root in _open_roots(connection, batch_id):
            batch = find_batch(connection, root, lock=True)
            if _kept_out(batch, desk):
                continue
            members = list(connection.execute(select(batches.c.batch_id).where(batches.c.root_id == root)).scalars())
            shown = _open_task(connection, members, desk)
            if shown is None and not _has_their_share(connection, batch, desk):
                shown = _new_task(connection, members, desk)
            if shown:
                done, waiting = _counts(connection, members, desk)
                return Offer(shown, done, done + waiting)
            everywhere += members
        done, waiting = _counts(connection, everywhere, desk)
        return Offer(None, done, done + waiting, "all_taken" if _others_at_work(connection, everywhere, desk) else "none_left")


def _open_roots(connection: Connection, batch_id: str | None) -> list[str]:
    if batch_id is not None:
        root = find_batch(connection, batch_id)
        if root.root_id != batch_id:  # mixed-in gold items are handed out with the batch they hide in, never alone
            raise NotFound("unknown_batch", f"there is no batch {batch_id}")
        return [] if root.closed_at else [batch_id]
    wanted = batches.c.closed_at.is_(None) & (batches.c.root_id == batches.c.batch_id)
    return list(connection.execute(select(batches.c.batch_id).where(wanted).order_by(batches.c.created_at, batches.c.batch_id)).scalars())


def taken_by_others(annotator_id: str, now: str) -> Any:
    """SQL: how many others have labelled a task of `tasks`, or are at it."""
    other = leases.alias("other")
    busy = or_(other.c.state == DONE, and_(other.c.state == OPEN, other.c.until > now))
    where = and_(other.c.task_id == tasks.c.task_id, other.c.annotator_id != annotator_id, busy)
    return select(func.count()).select_from(other).where(where).correlate(tasks).scalar_subquery()


def _has_room(desk: Desk) -> ColumnElement[bool]:
    return or_(tasks.c.wanted.is_(None), taken_by_others(desk.annotator.annotator_id, desk.now) < tasks.c.wanted)


def _unfilled(desk: Desk) -> ColumnElement[bool]:
    return and_(tasks.c.pool == desk.annotator.pool, tasks.c.filled.is_(False))


def _my_leases(members: Sequence[str], desk: Desk, *states: str) -> ColumnElement[bool]:
    mine = leases.c.annotator_id == desk.annotator.annotator_id
    return and_(leases.c.batch_id.in_(members), leases.c.state.in_(states), mine)


def _open_task(connection: Connection, members: Sequence[str], desk: Desk) -> Shown | None:
    """What was shown to this annotator before, is not labelled, and is still wanted from them."""
    shown = and_(displays.c.task_id == tasks.c.task_id, displays.c.annotator_id == leases.c.annotator_id)
    query = select(tasks, displays.c.left_side).select_from(leases).join(tasks, tasks.c.task_id == leases.c.task_id).join(displays, shown)
    query = query.where(_my_leases(members, desk, OPEN), _has_room(desk)).order_by(displays.c.shown_at, tasks.c.shuffle)
    row = connection.execute(query.limit(1)).first()
    if row is None:
        return None
    mine = and_(leases.c.task_id == row.task_id, leases.c.annotator_id == desk.annotator.annotator_id)
    connection.execute(update(leases).where(mine).values(until=desk.until))
    return _shown(connection, row, row.left_side)


def _has_their_share(connection: Connection, batch: Row[Any], desk: Desk) -> bool:
    """Whether this annotator has been given as many of the batch's tasks as one may have; gold that is mixed in does not count."""
    if batch.per_annotator is None or desk.annotator.pool != HUMAN:
        return False
    given = select(func.count()).select_from(leases).where(_my_leases([batch.batch_id], desk, OPEN, DONE))
    return bool(connection.execute(given).scalar_one() >= batch.per_annotator)


def _kept_out(batch: Row[Any], desk: Desk) -> bool:
    """Whether the batch is for others than this annotator, gold that is mixed in included."""
    return batch.not_by is not None and desk.annotator.annotator_id in json.loads(batch.not_by)


def _new_task(connection: Connection, members: Sequence[str], desk: Desk) -> Shown | None:
    """The first in random order that this annotator has not seen and that has room; gold mixed in where its turn is."""
    seen = exists().where(displays.c.task_id == tasks.c.task_id, displays.c.annotator_id == desk.annotator.annotator_id)
    found: list[Row[Any]] = []
    for member in members:  # one query each: the index then gives the order
        query = select(tasks).where(tasks.c.batch_id == member, _unfilled(desk), ~seen, _has_room(desk))
        found += connection.execute(query.order_by(tasks.c.shuffle).limit(1)).all()
    if not found:
        return None
    row = min(found, key=lambda task: task.shuffle)
    left_side = "AB"[secrets.randbits(1)]
    who = {"task_id": row.task_id, "annotator_id": desk.annotator.annotator_id}
    connection.execute(displays.insert().values(left_side=left_side, shown_at=desk.now, **who))
    connection.execute(leases.insert().values(batch_id=row.batch_id, until=desk.until, state=OPEN, **who))
    return _shown(connection, row, left_side)


def _shown(connection: Connection, row: Row[Any], left_side: str) -> Shown:
    return Shown(row, left_side, rubric_of(connection, find_batch(connection, row.batch_id)))


def _counts(connection: Connection, members: Sequence[str], desk: Desk) -> tuple[int, int]:
    """How many tasks of these batches this annotator has labelled, and how many they still could.

    Not for them are, of the unfilled ones: what they have done, and what others who are at it right now will fill.
    """
    done = connection.execute(select(func.count()).select_from(leases).where(_my_leases(members, desk, DONE))).scalar_one()
    unfilled = select(func.count()).select_from(tasks).where(tasks.c.batch_id.in_(members), _unfilled(desk))
    leased = select(tasks.c.task_id).select_from(leases).join(tasks, tasks.c.task_id == leases.c.task_id).where(_unfilled(desk))
    at_it = and_(leases.c.batch_id.in_(members), leases.c.state == OPEN, leases.c.annotator_id != desk.annotator.annotator_id)
    mine = connection.execute(leased.where(_my_leases(members, desk, DONE, WITHDRAWN))).scalars()
    full = connection.execute(leased.where(at_it, leases.c.until > desk.now, ~_has_room(desk))).scalars()
    return done, connection.execute(unfilled).scalar_one() - len({*mine, *full})


def _others_at_work(connection: Connection, members: Sequence[str], desk: Desk) -> bool:
    """Whether others are at tasks that would come back if they gave up."""
    labelled = exists().where(
        leases.c.task_id == tasks.c.task_id, leases.c.annotator_id == desk.annotator.annotator_id, leases.c.state != OPEN
    )
    where = and_(tasks.c.batch_id.in_(members), _unfilled(desk), tasks.c.wanted.is_not(None), ~labelled)
    return connection.execute(select(tasks.c.task_id).where(where).limit(1)).first() is not None


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
