"""Dataset versions: the same content is the same version; what it came from and which labels are in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import check_digest
from include.domain.layout import dataset_dir
from include.domain.manifest import Manifest
from include.stores.catalog.artifacts import insert_artifact
from include.stores.catalog.database import Database, insert_once
from include.stores.catalog.tables_work import dataset_versions, edges, memberships
from include.stores.errors import NotFound, StoreError


@dataclass(frozen=True)
class Member:
    """A label that is in a dataset version."""

    label_id: str
    label_digest: str
    batch_id: str | None = None


@dataclass(frozen=True)
class DatasetVersion:
    """dataset@version. Keys take `content_hash`; `artifact` guards the transport of its files."""

    dataset_id: str
    version: int
    content_hash: str
    artifact: str
    row_kind: str
    schema_version: str
    filter_policy_version: str
    manifest_uri: str
    info: Mapping[str, Any]
    writer: str
    created_at: str

    @property
    def name(self) -> str:
        return f"{self.dataset_id}@{self.version}"


class Datasets:
    """The tables dataset_versions and memberships, and the edges of datasets."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def register(
        self,
        info: Mapping[str, Any],
        manifest: Manifest,
        writer: str,
        derived_from: Sequence[tuple[str, str]] = (),
        members: Sequence[Member | tuple[str, str, str | None]] = (),
    ) -> DatasetVersion:
        """Registers a dataset folder: the same content again is the same version, and the new derivation adds edges.

        Args:
            info: dataset.json.
            writer: the attempt that wrote it, as ``dag:<dag>/<run>/<task>/<try>`` or a run's attempt folder.
            derived_from: (digest or ref, role) of each thing it was made of.
            members: (label_id, label_digest, batch_id) of each label in it.
        """
        content_hash = check_digest(info.get("content_hash"), "dataset.json: content_hash")
        with self._db.write("datasets") as connection:
            now = self._db.now()
            insert_artifact(connection, manifest, writer, now)
            _insert_version(connection, info, manifest, writer, now)
            rows = [Member(*m) if isinstance(m, tuple) else m for m in members]
            insert_once(connection, memberships, [{"content_hash": content_hash, **vars(m)} for m in rows])
            edge = {"child": content_hash, "writer": writer, "created_at": now}
            insert_once(connection, edges, [{**edge, "parent": parent, "role": role} for parent, role in derived_from])
        found = [v for v in self.by_hash(content_hash) if v.dataset_id == info["dataset_id"]]
        if not found:
            raise StoreError(f"dataset {info['dataset_id']} vanished from {self._db.shown} right after it was written")
        return found[0]

    def get(self, dataset_id: str, version: int) -> DatasetVersion:
        table = dataset_versions.c
        found = self._select(table.dataset_id == dataset_id, table.version == version)
        if not found:
            known = ", ".join(str(v.version) for v in self._select(table.dataset_id == dataset_id)) or "none"
            raise NotFound(f"dataset {dataset_id}@{version} is not in the catalog; versions of {dataset_id}: {known}")
        return found[0]

    def latest(self, dataset_id: str) -> DatasetVersion | None:
        found = self._select(dataset_versions.c.dataset_id == dataset_id)
        return found[-1] if found else None

    def all(self) -> list[DatasetVersion]:
        """Every version of every dataset."""
        return self._select()

    def by_hash(self, content_hash: str) -> list[DatasetVersion]:
        """Every dataset@version with this content (two dataset ids may share it)."""
        return self._select(dataset_versions.c.content_hash == content_hash)

    def of_project(self, project: str) -> list[DatasetVersion]:
        """Every version that a build of `project` made, in order of name and version."""
        named = self._select(dataset_versions.c.dataset_id.startswith(f"{project}-", autoescape=True))
        return [version for version in named if dict(version.info).get("notes", {}).get("project") == project]

    def resolve(self, name: str) -> DatasetVersion:
        """``id@3`` or ``id@v3``: that version; ``id`` alone: the newest."""
        dataset_id, at, version = name.rpartition("@")
        if not at:
            newest = self.latest(name)
            if newest is None:
                raise NotFound(f"dataset {name} is not in the catalog")
            return newest
        digits = version.removeprefix("v")
        if not digits.isdigit():
            raise NotFound(f"dataset {name!r}: the version must be a number, as in {dataset_id}@3")
        return self.get(dataset_id, int(digits))

    def members(self, content_hash: str) -> list[Member]:
        with self._db.read() as connection:
            query = sa.select(memberships).where(memberships.c.content_hash == content_hash).order_by("label_id")
            return [Member(r["label_id"], r["label_digest"], r["batch_id"]) for r in connection.execute(query).mappings()]

    def _select(self, *where: sa.ColumnElement[bool]) -> list[DatasetVersion]:
        with self._db.read() as connection:
            query = sa.select(dataset_versions).where(*where).order_by("dataset_id", "version")
            return [DatasetVersion(**row) for row in connection.execute(query).mappings()]


def _insert_version(connection: sa.Connection, info: Mapping[str, Any], manifest: Manifest, writer: str, now: str) -> None:
    dataset_id, content_hash = info["dataset_id"], info["content_hash"]
    same = sa.and_(dataset_versions.c.dataset_id == dataset_id, dataset_versions.c.content_hash == content_hash)
    if connection.execute(sa.select(dataset_versions.c.version).where(same)).first():
        return
    highest = sa.select(sa.func.max(dataset_versions.c.version)).where(dataset_versions.c.dataset_id == dataset_id)
    version = (connection.execute(highest).scalar() or 0) + 1
    row = {
        "dataset_id": dataset_id,
        "version": version,
        "content_hash": content_hash,
        "artifact": manifest.digest,
        "row_kind": str(info["rows"]),
        "schema_version": str(info["schema_version"]),
        "filter_policy_version": str(info["filter_policy_version"]),
        "manifest_uri": f"{dataset_dir(content_hash)}/manifest.json",
        "info": dict(info),
        "writer": writer,
        "created_at": now,
    }
    connection.execute(sa.insert(dataset_versions).values(**row))
