"""Audits of annotation: what an interval's labels said of annotators (pseudonyms alone) and rubrics, one row a report."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import canonical_bytes, check_digest
from include.stores.catalog.database import Database, insert_new
from include.stores.catalog.tables_evidence import annotation_audits
from include.stores.errors import Conflict, NotFound


@dataclass(frozen=True)
class AuditRow:
    """A report. `digest` is its artifact's; since, until: the interval, as the report writes them; rubric: None of all."""

    digest: str
    since: str
    until: str
    rubric: str | None
    status: str
    body: Mapping[str, Any]
    writer: str
    created_at: str


class Audits:
    """The table annotation_audits."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def record(self, digest: str, body: Mapping[str, Any], writer: str) -> AuditRow:
        """Keeps a report under its artifact's digest, once; the first writer stays on record. Raises Conflict for another one under it."""
        check_digest(digest, "audit.digest")
        named = {name: body[name] for name in ("since", "until", "rubric", "status")}
        with self._db.write("labels") as connection:
            insert_new(
                connection,
                annotation_audits,
                {"digest": digest, **named, "body": dict(body), "writer": writer, "created_at": self._db.now()},
            )
        known = self.get(digest)
        if canonical_bytes(dict(known.body)) != canonical_bytes(dict(body)):
            raise Conflict(f"audit {digest} is in the catalog with other content: a report is never overwritten")
        return known

    def get(self, digest: str) -> AuditRow:
        found = self._select(annotation_audits.c.digest == digest)
        if not found:
            raise NotFound(f"audit {digest} is not in the catalog")
        return found[0]

    def newest(self, limit: int = 52) -> list[AuditRow]:
        """The latest intervals first; of one interval the report that was written last."""
        return self._select(limit=limit)

    def of_week(self, week: str) -> list[AuditRow]:
        """Those whose interval begins in an ISO week, such as 2026-W10, in the same order. Raises NotFound where that is none."""
        try:
            monday = datetime.strptime(f"{week}-1", "%G-W%V-%u").replace(tzinfo=UTC)
        except ValueError as error:
            raise NotFound(f"{week!r} is no week: write one as 2026-W10") from error
        begin, end = (f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in (monday, monday + timedelta(days=7)))
        return self._select(annotation_audits.c.since >= begin, annotation_audits.c.since < end)

    def _select(self, *where: sa.ColumnElement[bool], limit: int | None = None) -> list[AuditRow]:
        table = annotation_audits.c
        order = (table.since.desc(), table.until.desc(), table.created_at.desc(), table.digest)
        with self._db.read() as connection:
            query = sa.select(annotation_audits).where(*where).order_by(*order).limit(limit)
            return [AuditRow(**row) for row in connection.execute(query).mappings()]
