"""What happened to labels, and the snapshots that runs froze. Texts never come here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import canonical_bytes, check_digest, digest
from include.stores.catalog.database import Database, insert_new, insert_once
from include.stores.catalog.graph import chunks
from include.stores.catalog.ledger import NewEntry, append_entry
from include.stores.catalog.tables_evidence import label_events, snapshots
from include.stores.errors import StoreError

EVENT_KINDS = ("collected", "superseded", "withdrawn", "restored")


@dataclass(frozen=True)
class LabelEvent:
    """Something that happened to a label."""

    label_id: str
    kind: str
    batch_id: str | None
    actor: str
    detail: Mapping[str, Any]
    at: str


@dataclass(frozen=True)
class Snapshot:
    """The labels that a run saw: frozen for the run, reused on retry and clear."""

    run_id: str
    name: str
    high_water_mark: int | str
    digest: str
    uri: str
    body: Mapping[str, Any]
    created_at: str


class Labels:
    """The tables label_events and snapshots."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def collected(self, labels: Sequence[Mapping[str, Any]], actor: str = "pipeline") -> None:
        """Makes labels known, each once: their ids, digest and what they were made under, never who made them.

        Args:
            labels: whole labels as JSON (`Label.to_json`).
        """
        rows = [{**label, "label_digest": digest("label", dict(label))} for label in labels]
        with self._db.write("labels") as connection:
            now = self._db.now()
            insert_once(connection, label_events, [_event_row(row, "collected", actor, {}, now) for row in rows])

    def event(self, label_id: str, kind: str, actor: str, detail: Mapping[str, Any] | None = None) -> None:
        """Records that a label was superseded, withdrawn or restored; a withdrawal is a row of the ledger too."""
        if kind not in EVENT_KINDS[1:]:
            raise StoreError(f"label {label_id}: event {kind!r} is none of {', '.join(EVENT_KINDS[1:])}")
        with self._db.write("ledger") as connection:
            now = self._db.now()
            new = insert_new(connection, label_events, _event_row({"label_id": label_id}, kind, actor, detail or {}, now))
            if new and kind == "withdrawn":
                payload = {"label_id": label_id, **(detail or {})}
                append_entry(connection, now, NewEntry("label_withdrawn", payload, actor, subject=f"label:{label_id}"))

    def events(self, label_id: str) -> list[LabelEvent]:
        with self._db.read() as connection:
            query = sa.select(label_events).where(label_events.c.label_id == label_id).order_by("at", "event_id")
            names = LabelEvent.__dataclass_fields__
            return [LabelEvent(**{name: row[name] for name in names}) for row in connection.execute(query).mappings()]

    def withdrawn(self, label_ids: Iterable[str]) -> set[str]:
        """Those whose newest event, of withdrawn and restored, is withdrawn."""
        state: dict[str, str] = {}
        with self._db.read() as connection:
            for piece in chunks(label_ids):
                wanted = sa.and_(label_events.c.label_id.in_(piece), label_events.c.kind.in_(("withdrawn", "restored")))
                query = sa.select(label_events.c.label_id, label_events.c.kind).where(wanted).order_by("at")
                state |= {row.label_id: row.kind for row in connection.execute(query)}
        return {label_id for label_id, kind in state.items() if kind == "withdrawn"}

    def record_snapshot(
        self, run_id: str, name: str, high_water_mark: int | str, digest_: str, uri: str, body: Mapping[str, Any] | None = None
    ) -> Snapshot:
        """Freezes what a run saw; the first call of a run and name wins, and later ones get it back."""
        check_digest(digest_, f"snapshot {name}")
        row = {"run_id": run_id, "name": name, "high_water_mark": high_water_mark, "digest": digest_, "uri": uri, "body": dict(body or {})}
        with self._db.write("labels") as connection:
            insert_new(connection, snapshots, {**row, "created_at": self._db.now()})
        found = self.snapshot(run_id, name)
        if found is None:
            raise StoreError(f"snapshot {name} of {run_id} vanished from {self._db.shown} right after it was written")
        return found

    def snapshot(self, run_id: str, name: str) -> Snapshot | None:
        found = self._snapshots(snapshots.c.run_id == run_id, snapshots.c.name == name)
        return found[0] if found else None

    def snapshots(self, run_id: str | None = None) -> list[Snapshot]:
        """Every snapshot, or those of a run, oldest first."""
        return self._snapshots(*([] if run_id is None else [snapshots.c.run_id == run_id]))

    def snapshots_named(self, name: str) -> list[Snapshot]:
        """Every run's snapshot of this name, oldest first."""
        return self._snapshots(snapshots.c.name == name)

    def newest_of_project(self, project: str, *, other_than: str = "") -> list[Snapshot]:
        """The newest snapshot of each name whose body's `origin` names this project, the newest last; leaving out the run `other_than`."""
        said = sa.type_coerce(snapshots.c.body, sa.Text).contains(f'"project":{canonical_bytes(project).decode()}', autoescape=True)
        row = sa.func.row_number().over(partition_by=snapshots.c.name, order_by=(snapshots.c.created_at.desc(), snapshots.c.run_id.desc()))
        ranked = sa.select(snapshots.c.run_id, snapshots.c.name, row.label("nth")).where(said, snapshots.c.run_id != other_than).subquery()
        newest = sa.select(ranked.c.run_id, ranked.c.name).where(ranked.c.nth == 1)
        found = self._snapshots(sa.tuple_(snapshots.c.run_id, snapshots.c.name).in_(newest))
        of_project = [one for one in found if dict(one.body.get("origin") or {}).get("project") == project]
        return sorted(of_project, key=lambda one: (one.created_at, one.name))

    def last_snapshot(self, name: str, *, other_than: str = "") -> Snapshot | None:
        """The newest snapshot of this name, leaving out the run `other_than`: unchanged means *no new input*."""
        found = self._snapshots(snapshots.c.name == name, snapshots.c.run_id != other_than)
        return found[-1] if found else None

    def _snapshots(self, *where: sa.ColumnElement[bool]) -> list[Snapshot]:
        with self._db.read() as connection:
            query = sa.select(snapshots).where(*where).order_by("created_at", "run_id")
            return [Snapshot(**row) for row in connection.execute(query).mappings()]


def _event_row(label: Mapping[str, Any], kind: str, actor: str, detail: Mapping[str, Any], now: str) -> dict[str, Any]:
    names = ("label_id", "batch_id", "label_digest", "rubric_version", "annotator_kind")
    known = {name: label.get(name) for name in names}
    identity = {"label_id": known["label_id"], "kind": kind, "label_digest": known["label_digest"], "detail": dict(detail)}
    return {"event_id": digest("label-event", identity), **known, "kind": kind, "actor": actor, "detail": dict(detail), "at": now}
