"""Creating, closing and finding batches. A batch is made once for its idempotency key, whatever is sent again."""

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, select, update
from sqlalchemy.exc import IntegrityError

from include.annotation.database import Database
from include.annotation.errors import Conflict, NotFound, Refused
from include.annotation.requests import BatchIn, TaskIn
from include.annotation.tables import batches, rubrics, tasks
from include.annotation.times import stamp
from include.domain.canonical import canonical_bytes, digest
from include.domain.errors import RecordError
from include.domain.records import Message, Rubric, prompt_id_of

HUMAN, VERIFIER = "human", "verifier"
_random = secrets.SystemRandom()
_SHUFFLE_BITS = 62


@dataclass(frozen=True)
class Order:
    """A batch as it was asked for: by whom, under which key, when."""

    key: str
    body: BatchIn
    created_by: str
    moment: datetime


def create_batch(database: Database, order: Order) -> tuple[dict[str, Any], bool]:
    """The batch's receipt, and whether it was made now.

    Raises:
        Conflict: the key was used with another body, or the rubric's version means another text.
        Refused: a prompt that is not what its id says, or text without a canonical form.
    """
    body_digest = _checked_digest(order.body)
    try:
        return _create(database, order, body_digest)
    except IntegrityError:
        # PostgreSQL: another request with this key, or this new rubric, was faster. Now it is there to be found.
        return _create(database, order, body_digest)


def _create(database: Database, order: Order, body_digest: str) -> tuple[dict[str, Any], bool]:
    with database.write() as connection:
        known = _known(connection, order.key, body_digest)
        return (known, False) if known is not None else (_insert(connection, order, body_digest), True)


def _checked_digest(body: BatchIn) -> str:
    try:
        for task in [*body.tasks, *body.gold_items]:
            _check_prompt(task)
        return digest("annotation-batch", body.to_body())
    except RecordError as error:
        raise Refused("invalid", str(error)) from error


def _check_prompt(task: TaskIn) -> None:
    messages = [Message.from_json(m.model_dump()) for m in task.prompt.messages]
    if prompt_id_of(messages, task.prompt.tools) != task.prompt.prompt_id:
        raise Refused("prompt_id", f"{task.prompt.prompt_id} is not the digest of the messages and tools sent with it")


def _known(connection: Connection, key: str, body_digest: str) -> dict[str, Any] | None:
    row = connection.execute(select(batches.c.body_digest, batches.c.receipt).where(batches.c.idempotency_key == key)).first()
    if row is None:
        return None
    if row.body_digest != body_digest:
        raise Conflict("idempotency_conflict", "this Idempotency-Key was used for a batch with another body: take a new key")
    receipt: dict[str, Any] = json.loads(row.receipt)
    return receipt


def _insert(connection: Connection, order: Order, body_digest: str) -> dict[str, Any]:
    body = order.body
    _insert_rubric(connection, Rubric.from_json(body.rubric.model_dump()))
    batch_id = _new_id("batch")
    gold_id = _new_id("batch") if body.gold_items else None
    rows = _task_rows(batch_id, body)
    receipt = {
        "batch_id": batch_id,
        "purpose": body.purpose,
        "gold_batch_id": gold_id,
        "tasks": len(rows),
        "human": sum(row["pool"] == HUMAN for row in rows),
        "verifier": sum(row["pool"] == VERIFIER for row in rows),
        "labels_wanted": sum(row["wanted"] for row in rows),
        "created_at": stamp(order.moment),
    }
    common = {
        "root_id": batch_id,
        "body_digest": body_digest,
        "rubric_id": body.rubric.rubric_id,
        "rubric_version": body.rubric.version,
        "mark": 0,
        "created_at": receipt["created_at"],
        "created_by": order.created_by,
        "receipt": json.dumps(receipt),
        "review": canonical_bytes(body.review.model_dump()).decode() if body.review else None,
        "per_annotator": body.assignment.per_annotator,
        "not_by": json.dumps(sorted(set(body.assignment.not_by))) if body.assignment.not_by else None,
    }
    connection.execute(batches.insert().values(batch_id=batch_id, idempotency_key=order.key, purpose=body.purpose, **common))
    connection.execute(tasks.insert(), rows)
    if gold_id:
        connection.execute(batches.insert().values(batch_id=gold_id, purpose="gold", **common))
        connection.execute(tasks.insert(), [_task_row(gold_id, item, HUMAN, None) for item in body.gold_items])
    return receipt


def _insert_rubric(connection: Connection, rubric: Rubric) -> None:
    body = rubric.to_json()
    wanted = digest("rubric", body)
    where = (rubrics.c.rubric_id == rubric.rubric_id) & (rubrics.c.version == rubric.version)
    known = connection.execute(select(rubrics.c.digest).where(where)).scalar_one_or_none()
    if known is None:
        values = {"rubric_id": rubric.rubric_id, "version": rubric.version, "digest": wanted, "body": canonical_bytes(body).decode()}
        connection.execute(rubrics.insert().values(**values))
    elif known != wanted:
        raise Conflict(
            "rubric_changed", f"rubric {rubric.rubric_id} {rubric.version} is known with another text: give the new text a new version"
        )


def _task_rows(batch_id: str, body: BatchIn) -> list[dict[str, Any]]:
    """Which tasks people get, and which of these more than one of them, is drawn at random."""
    total = len(body.tasks)
    humans = _random.sample(range(total), body.assignment.human_of(total))
    several = set(humans[: math.ceil(len(humans) * body.overlap.share - 1e-9)])
    pools = dict.fromkeys(humans, HUMAN)
    return [
        _task_row(batch_id, task, pools.get(i, VERIFIER), body.overlap.annotators if i in several else 1)
        for i, task in enumerate(body.tasks)
    ]


def _task_row(batch_id: str, task: TaskIn, pool: str, wanted: int | None) -> dict[str, Any]:
    """A row of `tasks`; `wanted` None is a task for everybody (gold items mixed in)."""
    prompt = task.prompt.model_dump(include={"messages", "tools"})
    return {
        "task_id": _new_id("task"),
        "batch_id": batch_id,
        "pool": pool,
        "wanted": wanted,
        "filled": False,
        "shuffle": secrets.randbits(_SHUFFLE_BITS),
        "prompt_id": task.prompt.prompt_id,
        "prompt": canonical_bytes(prompt).decode(),
        "a_id": task.candidate_a.candidate_id,
        "a_answer": answer_column(task.candidate_a.response_text, task.candidate_a.tool_calls),
        "b_id": task.candidate_b.candidate_id,
        "b_answer": answer_column(task.candidate_b.response_text, task.candidate_b.tool_calls),
        "gold": canonical_bytes(task.gold.model_dump()).decode() if task.gold else None,
    }


def answer_column(text: str, tool_calls: Sequence[Any] | None) -> str:
    return canonical_bytes({"text": text, "tool_calls": tool_calls}).decode()


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


def find_batch(connection: Connection, batch_id: str, lock: bool = False) -> Row[Any]:
    """The batch's row; with `lock`, nobody else changes it until the transaction ends. Raises NotFound."""
    query = select(batches).where(batches.c.batch_id == batch_id)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound("unknown_batch", f"there is no batch {batch_id}")
    return row


def next_mark(connection: Connection, batch_id: str) -> int:
    """Counts the batch's mark up by one; the caller holds the root batch's lock."""
    connection.execute(update(batches).where(batches.c.batch_id == batch_id).values(mark=batches.c.mark + 1))
    return int(connection.execute(select(batches.c.mark).where(batches.c.batch_id == batch_id)).scalar_one())


def close_batch(database: Database, batch_id: str, moment: datetime) -> str:
    """From now on no task of the batch is handed out; says since when that is so."""
    with database.write() as connection:
        row = find_batch(connection, batch_id, lock=True)
        closed_at = row.closed_at or stamp(moment)
        members = (batches.c.root_id == batch_id) & batches.c.closed_at.is_(None)
        connection.execute(update(batches).where(members).values(closed_at=closed_at))
    return str(closed_at)


def rubric_of(connection: Connection, batch: Row[Any]) -> Rubric:
    where = (rubrics.c.rubric_id == batch.rubric_id) & (rubrics.c.version == batch.rubric_version)
    return Rubric.from_json(json.loads(connection.execute(select(rubrics.c.body).where(where)).scalar_one()))
