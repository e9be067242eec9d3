"""Who is behind a pseudonym: a database of its own, which the labels' database never points into. Also login sessions."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Column, MetaData, String, Table, Text, delete, func, select

from include.annotation.accounts import Account, check_private, token_hash, write_private
from include.annotation.database import Database
from include.annotation.errors import ConfigurationError
from include.annotation.times import stamp

SESSION_HOURS = 12
SCHEMA_VERSION = "1"
_KEY_BYTES = 32
_PSEUDONYM_DIGITS = 32
_metadata = MetaData()

identities = Table(
    "identities",
    _metadata,
    Column("annotator_id", String(64), primary_key=True),
    Column("account", String(100), nullable=False, unique=True),
    Column("display_name", Text, nullable=False),
    Column("role", String(20), nullable=False),
    Column("kind", String(20)),
    Column("first_seen", String(40), nullable=False),
)
sessions = Table(
    "sessions",
    _metadata,
    Column("session_sha256", String(64), primary_key=True),
    Column("token_sha256", String(64), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("expires_at", String(40), nullable=False, index=True),
)
settings = Table("settings", _metadata, Column("name", String(40), primary_key=True), Column("value", Text, nullable=False))


@dataclass(frozen=True)
class Session:
    """A login: its account's hashed token, and what a changing request must show beside the cookie."""

    token_sha256: str
    csrf: str


class Identities:
    """Pseudonyms (HMAC of the account under a key of this installation), identities and sessions."""

    def __init__(self, url: str, key_file: Path, clock: Callable[[], datetime]) -> None:
        self._database = Database(url)
        self._clock = clock
        with self._database.write() as connection:
            _metadata.create_all(connection)
            anybody = connection.execute(select(func.count()).select_from(identities)).scalar_one() > 0
            self._key = _read_key(key_file, may_make=not anybody)
            _remember(connection, "schema_version", SCHEMA_VERSION, "this version of the service can't read it")
            fingerprint = self._pseudonym("fingerprint of the key\n")
            _remember(connection, "key", fingerprint, f"{key_file} is another key than the one its pseudonyms were made with")

    def _pseudonym(self, account: str) -> str:
        return "ann_" + hmac.new(self._key, account.encode(), hashlib.sha256).hexdigest()[:_PSEUDONYM_DIGITS]

    def pseudonym_of(self, account: Account) -> str:
        """The account's annotator_id; remembers, the first time, whose it is."""
        annotator_id = self._pseudonym(account.account)
        with self._database.read() as connection:
            known = connection.execute(select(identities.c.account).where(identities.c.annotator_id == annotator_id)).first()
        if known:
            return annotator_id
        row = {"account": account.account, "display_name": account.display_name, "role": account.role, "kind": account.kind}
        with self._database.write() as connection:
            if not connection.execute(select(identities).where(identities.c.annotator_id == annotator_id)).first():
                connection.execute(identities.insert().values(annotator_id=annotator_id, first_seen=stamp(self._clock()), **row))
        return annotator_id

    def identity_of(self, annotator_id: str) -> dict[str, Any] | None:
        with self._database.read() as connection:
            row = connection.execute(select(identities).where(identities.c.annotator_id == annotator_id)).mappings().first()
        return dict(row) if row else None

    def open_session(self, account: Account) -> str:
        """A new session's secret, for the cookie; only its hash is kept. Old sessions are swept."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        row = {"session_sha256": token_hash(secret), "token_sha256": account.token_sha256, "csrf": secrets.token_urlsafe(32)}
        with self._database.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.expires_at < stamp(now)))
            connection.execute(sessions.insert().values(expires_at=stamp(now + timedelta(hours=SESSION_HOURS)), **row))
        return secret

    def session(self, secret: str) -> Session | None:
        now = stamp(self._clock())
        wanted = (sessions.c.session_sha256 == token_hash(secret)) & (sessions.c.expires_at >= now)
        with self._database.read() as connection:
            row = connection.execute(select(sessions.c.token_sha256, sessions.c.csrf).where(wanted)).first()
        return Session(*row) if row else None

    def close_session(self, secret: str) -> None:
        with self._database.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.session_sha256 == token_hash(secret)))

    def close(self) -> None:
        self._database.close()


def _remember(connection: Any, name: str, value: str, otherwise: str) -> None:
    known = connection.execute(select(settings.c.value).where(settings.c.name == name)).scalar_one_or_none()
    if known is None:
        connection.execute(settings.insert().values(name=name, value=value))
    elif known != value:
        raise ConfigurationError(f"the identity database does not fit ({name}): {otherwise}")


def _read_key(path: Path, may_make: bool) -> bytes:
    if not path.exists():
        if not may_make:
            raise ConfigurationError(f"{path} is not there, but pseudonyms were made with it: restore it, or nobody is recognised again")
        write_private(path, secrets.token_bytes(_KEY_BYTES).hex().encode())
    check_private(path)
    key = bytes.fromhex(path.read_text("ascii").strip())
    if len(key) < _KEY_BYTES:
        raise ConfigurationError(f"{os.fspath(path)} holds {len(key)} bytes; a pseudonym key has at least {_KEY_BYTES}")
    return key
