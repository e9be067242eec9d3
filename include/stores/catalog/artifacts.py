"""Artifacts by digest, and where copies of them lie."""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from include.domain.canonical import check_digest
from include.domain.manifest import Manifest
from include.stores.catalog.database import Database, insert_new
from include.stores.catalog.erasures import erased_entry
from include.stores.catalog.tables_work import artifact_locations, artifacts
from include.stores.errors import Erased, NotFound


@dataclass(frozen=True)
class Artifact:
    """One artifact: its digest, kind, manifest, and the attempt that first wrote it."""

    digest: str
    kind: str
    size_bytes: int
    manifest: Manifest
    writer: str | None
    created_at: str


@dataclass(frozen=True)
class Location:
    """A copy: `path` is POSIX and relative to the root that `store` names; `uri` is both together."""

    store: str
    path: str
    uri: str
    verified_at: str | None


class Artifacts:
    """The tables artifacts and artifact_locations."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def register(self, manifest: Manifest, writer: str | None = None) -> str:
        """Makes the artifact known, once, and gives its digest. The first writer stays on record; edges hold every writer."""
        with self._db.write("artifacts") as connection:
            insert_artifact(connection, manifest, writer, self._db.now())
        return manifest.digest

    def get(self, digest: str) -> Artifact | None:
        with self._db.read() as connection:
            row = connection.execute(sa.select(artifacts).where(artifacts.c.digest == digest)).mappings().first()
        if row is None:
            return None
        return Artifact(
            row["digest"], row["kind"], row["size_bytes"], Manifest.from_json(row["manifest"]), row["writer"], row["created_at"]
        )

    def add_location(self, digest: str, store: str, path: str, *, verified: bool = False) -> None:
        """Records a copy; `verified` says that its bytes were compared with the manifest just now."""
        check_digest(digest, "location.digest")
        with self._db.write("artifacts") as connection:
            now = self._db.now()
            insert_location(connection, digest, store, path)
            if verified:
                connection.execute(sa.update(artifact_locations).where(*_is(digest, store, path)).values(verified_at=now))

    def locations(self, digest: str) -> list[Location]:
        with self._db.read() as connection:
            query = sa.select(artifact_locations).where(artifact_locations.c.digest == digest).order_by("store", "path")
            return [Location(r["store"], r["path"], r["uri"], r["verified_at"]) for r in connection.execute(query).mappings()]

    def locate(self, digest: str, store: str) -> str:
        """The path of a copy, relative to the root of `store`.

        Raises:
            Erased: it was removed on purpose.
            NotFound: there is no copy in this store; the message says where there is one.
        """
        everywhere = self.locations(digest)
        for place in everywhere:
            if place.store == store:
                return place.path
        with self._db.read() as connection:
            gone = erased_entry(connection, digest)
        if gone is not None:
            raise Erased(f"{digest} was erased by {gone['by']} at {gone['at']}: {gone['why']}")
        elsewhere = ", ".join(place.uri for place in everywhere) or "nowhere"
        raise NotFound(f"{digest} has no copy in {store}; known copies: {elsewhere}")

    def forget_location(self, digest: str, store: str, path: str) -> None:
        """The copy is gone (retention, erasure)."""
        with self._db.write("artifacts") as connection:
            connection.execute(sa.delete(artifact_locations).where(*_is(digest, store, path)))


def _is(digest: str, store: str, path: str) -> tuple[sa.ColumnElement[bool], ...]:
    table = artifact_locations.c
    return table.digest == digest, table.store == store, table.path == path


def insert_artifact(connection: sa.Connection, manifest: Manifest, writer: str | None, now: str) -> None:
    """Inserts the artifact inside the caller's transaction."""
    row = {
        "digest": manifest.digest,
        "kind": manifest.kind,
        "size_bytes": manifest.size_bytes,
        "manifest": manifest.to_json(),
        "writer": writer,
        "created_at": now,
    }
    insert_new(connection, artifacts, row)


def insert_location(connection: sa.Connection, digest: str, store: str, path: str) -> None:
    """Inserts a location inside the caller's transaction."""
    row: Mapping[str, str | None] = {
        "digest": digest,
        "store": store,
        "path": path,
        "uri": f"{store.rstrip('/')}/{path}",
        "verified_at": None,
    }
    insert_new(connection, artifact_locations, row)
