"""Frozen views of a batch's labels: what stood at a mark, with a digest that anybody can compute again."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select

from include.annotation.batches import find_batch
from include.annotation.database import Database
from include.annotation.errors import Refused
from include.annotation.tables import labels, withdrawals
from include.domain.canonical import digest_rows

SCHEMA = "align/label-snapshot/v1"


def snapshot(database: Database, batch_id: str, up_to: int | None = None) -> dict[str, Any]:
    """The labels that stood at mark `up_to` (now, if None), sorted by id, and their digest.

    A label counts when its mark is reached, and neither its correction's nor its withdrawal's is.
    """
    with database.read() as connection:
        batch = find_batch(connection, batch_id)
        mark = batch.mark if up_to is None else up_to
        if not 0 <= mark <= batch.mark:
            raise Refused("unknown_mark", f"batch {batch_id} is at mark {batch.mark}; there is no mark {mark} yet")
        rows = standing(connection, batch_id, mark)
    return {
        "schema": SCHEMA,
        "batch_id": batch_id,
        "purpose": batch.purpose,
        "rubric_version": batch.rubric_version,
        "mark": mark,
        "digest": snapshot_digest({row["label_id"]: row["digest"] for row in rows}),
        "labels": [json.loads(row["record"]) for row in rows],
    }


def standing(connection: Connection, batch_id: str, mark: int) -> list[Mapping[str, Any]]:
    """The rows of `labels` that stood at `mark`, sorted by label_id."""
    reached = select(labels).where(labels.c.batch_id == batch_id, labels.c.mark <= mark).order_by(labels.c.label_id)
    rows: list[Mapping[str, Any]] = [dict(row) for row in connection.execute(reached).mappings()]
    gone = select(withdrawals.c.label_id).where(withdrawals.c.batch_id == batch_id, withdrawals.c.mark <= mark)
    out = {row["supersedes"] for row in rows} | set(connection.execute(gone).scalars())
    return sorted((row for row in rows if row["label_id"] not in out), key=lambda row: str(row["label_id"]))


def snapshot_digest(digests: Mapping[str, str]) -> str:
    """The digest of a snapshot, from each label's id and digest."""
    rows: Iterable[dict[str, str]] = ({"label_id": key, "label_digest": digests[key]} for key in sorted(digests))
    return digest_rows("label-snapshot", rows)
