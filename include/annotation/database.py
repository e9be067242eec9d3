"""The database: SQLite (WAL, one writer at a time, every commit synced) or PostgreSQL (writers meet at the batch's row)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy import text as sql

MIGRATIONS = Path(__file__).with_name("migrations")
_WAIT_FOR_WRITER_S = 30
_MIGRATION_LOCK = 0x616E6E6F  # any number that nobody else in the same PostgreSQL database uses for an advisory lock


def open_engine(url: str) -> Engine:
    """An engine for `url`; an SQLite file is made readable for its owner alone."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True)
    if parsed.database and parsed.database != ":memory:":
        _make_private(Path(parsed.database))
    engine = create_engine(parsed, connect_args={"timeout": _WAIT_FOR_WRITER_S, "check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_private(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # sqlite3 would begin by itself, and too late; `_begin_sqlite` does it
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Database:
    """Transactions: `read` sees one consistent state, `write` is alone (SQLite) or locks what it touches (PostgreSQL)."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with connection.begin():
                yield connection

    def migrate(self) -> str:
        """Brings the schema to the newest version, in one transaction, and says which it is."""
        config = AlembicConfig()
        config.set_main_option("script_location", str(MIGRATIONS))
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sql("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        return ScriptDirectory.from_config(config).get_current_head() or ""

    def close(self) -> None:
        self.engine.dispose()
