"""What was removed on purpose: the bytes go, the digest and the way to it stay, and the ledger says who removed them and why.

Persons and prompts that must not come in again are known by keyed hashes alone; the key is not in the catalog.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from include.stores.catalog.database import Database, insert_once
from include.stores.catalog.ledger import NewEntry, append_entry, read_entries
from include.stores.catalog.tables_evidence import ledger, suppressions
from include.stores.errors import StoreError

KINDS = ("subject", "prompt", "key")
_OF_THE_KEY = "the key of this catalog"
"""Kept under the key with the first suppression, so that another key is seen as such."""


def keyed_hash(key: bytes, kind: str, value: str) -> str:
    """``hmac-sha256:<hex>`` of a subject's reference or a prompt's id."""
    if kind not in KINDS:
        raise StoreError(f"suppression kind {kind!r} is none of {', '.join(KINDS)}")
    return "hmac-sha256:" + hmac.new(key, f"align/suppression/v1\n{kind}\n{value}".encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Suppression:
    """Tells who must stay out."""

    key: bytes
    hashes: frozenset[str]

    def __post_init__(self) -> None:
        if self.hashes and keyed_hash(self.key, "key", _OF_THE_KEY) not in self.hashes:
            raise StoreError(
                "this is not the key that persons were suppressed with: nobody can tell with it who has to stay out. Bring the old one back"
            )

    def covers(self, subject_ref: str | None, prompt_id: str | None) -> bool:
        given = (("subject", subject_ref), ("prompt", prompt_id))
        return any(value is not None and keyed_hash(self.key, kind, value) in self.hashes for kind, value in given)


class Erasures:
    """The table suppressions, and the ledger's rows about what was erased."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def suppress(self, key: bytes, persons: Iterable[str], prompts: Iterable[str], actor: str, why: str) -> None:
        """Keeps the keyed hashes of persons' references and prompt ids, each once.

        Raises:
            StoreError: others were suppressed with another key.
        """
        Suppression(key, self.suppressed())
        hashes = [keyed_hash(key, "key", _OF_THE_KEY), *(keyed_hash(key, "subject", one) for one in persons)]
        hashes += [keyed_hash(key, "prompt", one) for one in prompts]
        with self._db.write("labels") as connection:
            base = {"actor": actor, "reason": why, "created_at": self._db.now()}
            insert_once(connection, suppressions, [{**base, "keyed_hash": value} for value in hashes])

    def suppressed(self) -> frozenset[str]:
        """All keyed hashes."""
        with self._db.read() as connection:
            return frozenset(connection.execute(sa.select(suppressions.c.keyed_hash)).scalars())

    def erase(self, digests: Sequence[str], actor: str, why: str, request: str) -> None:
        """Says in the ledger that the bytes of these things go, before they go; each once. request: tells who asked for the same again."""
        if not why.strip():
            raise StoreError("erasure: say why")
        with self._db.write("ledger") as connection:
            for digest in digests:
                if erased_entry(connection, digest) is None:
                    append_entry(connection, self._db.now(), NewEntry("erasure", {"why": why, "request": request}, actor, subject=digest))

    def erased(self, digest: str) -> Mapping[str, Any] | None:
        """{at, by, why, request} where a thing was erased."""
        with self._db.read() as connection:
            return erased_entry(connection, digest)


def erased_entry(connection: sa.Connection, digest: str) -> Mapping[str, Any] | None:
    """{at, by, why, request} of the erasure of a thing, or None."""
    found = read_entries(connection, ledger.c.kind == "erasure", ledger.c.subject == digest)
    return {"at": found[0].at, "by": found[0].actor, **found[0].payload} if found else None
