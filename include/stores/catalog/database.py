"""The catalog's database: connections, transactions, the clock, and what kinds of place are refused.

SQLite runs in WAL mode, and every writing transaction begins with BEGIN IMMEDIATE, so that writers queue instead of
failing half-way. PostgreSQL takes an advisory lock by topic where SQLite would have taken its one write lock.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.pool import NullPool

from include.stores.errors import CatalogUnsafe

Clock = Callable[[], datetime]
Row = Mapping[Any, Any]
"""A row of a result, by column name."""

BUSY_TIMEOUT_S = 30
NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "cxfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"),
        *("nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
    )
)
NETWORK_FUSE = ("sshfs", "glusterfs", "ceph", "s3fs", "gcsfuse", "rclone", "juicefs", "beegfs", "weka", "smb", "nfs")
TOPICS = ("migrate", "runs", "receipts", "datasets", "labels", "measurements", "ledger", "lineage", "requests", "artifacts")
_LOCK_SPACE = 0x616C676E  # "algn": the first half of our PostgreSQL advisory locks


def system_clock() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """A fixed-width UTC time, so that text order is time order; a naive time is refused."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def file_system_of(path: Path, mounts: str) -> tuple[str, str]:
    """(mount point, type) of the mount that holds `path`, by the text of /proc/mounts; ("/", "unknown") when none fits."""
    target = str(path.resolve())
    best = ("/", "unknown")
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")  # a space is written \040
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, fields[2])
    return best


def refuse_network_mount(path: Path, mounts: str) -> None:
    """Raises CatalogUnsafe when `path` lies on a file system where SQLite's locks do not hold."""
    point, kind = file_system_of(path, mounts)
    fuse = kind.removeprefix("fuse.") if kind.startswith("fuse") else ""
    if kind in NETWORK_FILE_SYSTEMS or any(name in fuse for name in NETWORK_FUSE):
        raise CatalogUnsafe(
            f"the catalog {path} lies on {point}, a network file system ({kind}): SQLite's locks do not hold there. "
            "Put it on a local disk, or use PostgreSQL (postgresql+psycopg://…)"
        )


class Database:
    """An engine with our transaction rules. Safe to share between threads; connections are never kept across a fork."""

    def __init__(self, url: str, clock: Clock = system_clock, mounts: str | None = None) -> None:
        self.url = sa.make_url(url)
        self.clock = clock
        backend = self.url.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise CatalogUnsafe(f"the catalog's database {self.shown} is neither SQLite nor PostgreSQL")
        self.is_sqlite = backend == "sqlite"
        self.engine = self._sqlite(mounts) if self.is_sqlite else self._postgresql()

    @property
    def shown(self) -> str:
        """The URL without its password, for messages."""
        return self.url.render_as_string(hide_password=True)

    def now(self) -> str:
        return stamp(self.clock())

    def _sqlite(self, mounts: str | None) -> sa.Engine:
        name = self.url.database
        if not name or name == ":memory:":
            raise CatalogUnsafe("the catalog needs a file: a database in memory is gone with its process")
        path = Path(name).absolute()
        refuse_network_mount(path, Path("/proc/mounts").read_text() if mounts is None else mounts)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        engine = sa.create_engine(self.url, poolclass=NullPool, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_S})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _postgresql(self) -> sa.Engine:
        url = self.url.set(drivername="postgresql+psycopg")
        return sa.create_engine(url, poolclass=NullPool, hide_parameters=True)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads and blocks nobody."""
        with self.engine.connect().execution_options(align_read_only=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self, topic: str) -> Iterator[sa.Connection]:
        """A writing transaction, one at a time for each topic; all of it or nothing."""
        number = TOPICS.index(topic)
        with self.engine.begin() as connection:
            if not self.is_sqlite:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:space, :topic)"), {"space": _LOCK_SPACE, "topic": number})
            yield connection


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late; ours is in _begin_sqlite
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    read_only = connection.get_execution_options().get("align_read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def insert_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Inserts the row unless one with the same unique key is there; whether it was new."""
    statement = _insert(connection, table).on_conflict_do_nothing()
    # SQLAlchemy 2.1 keeps an INSERT's row count only when asked (without it psycopg's is -1 by the time one looks).
    return connection.execute(statement, dict(row), execution_options={"preserve_rowcount": True}).rowcount == 1


def insert_once(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts the rows that are not there yet (by any unique key); what is there stays as it is."""
    if rows:
        connection.execute(_insert(connection, table).on_conflict_do_nothing(), [dict(row) for row in rows])


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    return (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(table)


def upsert(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Inserts the row, or replaces the other columns of the row with these `keys`."""
    statement = _insert(connection, table).values(**row)
    changed = {name: statement.excluded[name] for name in row if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=changed))
