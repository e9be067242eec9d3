"""The ledger: append-only, each row hashes the one before. Who decided what, and what is champion, now or then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import digest
from include.stores.catalog.database import Database, stamp
from include.stores.catalog.tables_evidence import ledger
from include.stores.errors import LedgerBroken, NotFound, StoreError

GENESIS = digest("ledger", {"genesis": True})
"""What the first row names as the hash before it."""

RELEASE_KINDS = (
    "candidate",
    "approved",
    "rejected",
    "no_answer",
    "canary_started",
    "canary_passed",
    "canary_aborted",
    "released",
    "rolled_back",
    "tainted",
)
OTHER_KINDS = ("submission_resolved", "label_withdrawn", "erasure", "anchor_set", "note", "removed_from_store")
KINDS = RELEASE_KINDS + OTHER_KINDS


@dataclass(frozen=True)
class Entry:
    """One row. `name` is the model's name, `subject` the dossier's or other digest that it is about."""

    seq: int
    kind: str
    name: str
    subject: str
    payload: Mapping[str, Any]
    actor: str
    at: str
    previous: str
    hash: str

    def expected_hash(self) -> str:
        return digest("ledger", {k: v for k, v in vars(self).items() if k != "hash"})

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class NewEntry:
    """What is to be appended; the ledger adds number, time and hashes."""

    kind: str
    payload: Mapping[str, Any]
    actor: str
    name: str = ""
    subject: str = ""


def append_entry(connection: sa.Connection, now: str, new: NewEntry) -> Entry:
    """Appends inside the caller's transaction, which holds the topic `ledger`. Time never runs backwards along the chain."""
    if new.kind not in KINDS:
        raise StoreError(f"ledger: kind {new.kind!r} is none of {', '.join(KINDS)}")
    if not new.actor.strip():
        raise StoreError(f"ledger: {new.kind} needs an actor: who did it")
    last = connection.execute(sa.select(ledger).order_by(ledger.c.seq.desc()).limit(1)).mappings().first()
    seq, previous, at = (1, GENESIS, now) if last is None else (last["seq"] + 1, last["hash"], max(now, last["at"]))
    body: dict[str, Any] = {**vars(new), "payload": dict(new.payload), "seq": seq, "at": at}
    row = {**body, "previous": previous, "hash": digest("ledger", {**body, "previous": previous})}
    connection.execute(sa.insert(ledger).values(**row))
    return Entry(**row)


def read_entries(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> list[Entry]:
    """Rows in the order they were appended."""
    return [Entry(**row) for row in connection.execute(sa.select(ledger).where(*where).order_by("seq")).mappings()]


def champions(entries: list[Entry]) -> list[Entry]:
    """The stack of champions after these entries of one name: the last is champion, those below it the earlier ones."""
    stack: list[Entry] = []
    for entry in entries:
        if entry.kind == "released":
            stack.append(entry)
        elif entry.kind == "rolled_back":
            target = entry.payload["deployment"]
            while stack and stack[-1].payload["deployment"] != target:
                stack.pop()
            if not stack:
                raise LedgerBroken(f"ledger row {entry.seq} rolls back to {target}, which was never released as {entry.name}")
    return stack


def undone_by(entries: list[Entry], released: Entry) -> Entry | None:
    """The rollback after which the release `released` no longer stood; None while it stands, or stands below a later one."""
    for number, entry in enumerate(entries):
        later = entry.kind == "rolled_back" and entry.seq > released.seq
        if later and released.seq not in {kept.seq for kept in champions(entries[: number + 1])}:
            return entry
    return None


def champion_of(entries: list[Entry]) -> str | None:
    stack = champions(entries)
    return stack[-1].payload["deployment"] if stack else None


def candidate_of(entries: list[Entry]) -> str | None:
    """The deployment proposed last, whatever became of it."""
    proposed = [entry for entry in entries if entry.kind == "candidate"]
    return proposed[-1].payload["deployment"] if proposed else None


def canary_of(entries: list[Entry]) -> str | None:
    """The deployment whose canary runs, or passed and waits for its release."""
    shown: str | None = None
    for entry in entries:
        if entry.kind in ("canary_started", "canary_passed"):
            shown = entry.payload["deployment"]
        elif entry.kind in ("canary_aborted", "released", "rolled_back"):
            shown = None
    return shown


ALIASES: Mapping[str, Callable[[list[Entry]], str | None]] = {"candidate": candidate_of, "canary": canary_of, "champion": champion_of}
"""Alias → which deployment the rows of one name give it, or None."""


def verify_chain(entries: list[Entry]) -> int:
    """Recomputes a whole ledger, given from its first row on; raises LedgerBroken naming the first broken row."""
    previous, at = GENESIS, ""
    for number, entry in enumerate(entries, start=1):
        if entry.seq != number:
            raise LedgerBroken(f"ledger row {number} is missing: row {entry.seq} follows row {number - 1}")
        if entry.previous != previous:
            raise LedgerBroken(f"ledger row {number} names {entry.previous} as the hash before it, row {number - 1} has {previous}")
        if entry.hash != (seen := entry.expected_hash()):
            raise LedgerBroken(f"ledger row {number} ({entry.kind}) was changed: its content gives {seen}, it says {entry.hash}")
        if entry.at < at:
            raise LedgerBroken(f"ledger row {number} is dated {entry.at}, before the row that it follows ({at})")
        previous, at = entry.hash, entry.at
    return len(entries)


class Ledger:
    """Reading the ledger, and appending to it."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def append(self, kind: str, payload: Mapping[str, Any], actor: str, *, name: str = "", subject: str = "") -> Entry:
        """Appends one row that is not a release event; those are written by `Releases`, which checks their conditions."""
        if kind in RELEASE_KINDS:
            raise StoreError(f"ledger: {kind} is written by Releases, which checks its conditions, not by hand")
        with self._db.write("ledger") as connection:
            return append_entry(connection, self._db.now(), NewEntry(kind, payload, actor, name, subject))

    def verify(self) -> int:
        """Recomputes the whole chain and gives the number of rows.

        Raises:
            LedgerBroken: naming the first row that does not hold, and why.
        """
        return verify_chain(self._select())

    def head(self) -> dict[str, Any]:
        """{"seq", "hash"} of the newest row: exported with every release, so that a cut chain shows."""
        with self._db.read() as connection:
            row = connection.execute(sa.select(ledger.c.seq, ledger.c.hash).order_by(ledger.c.seq.desc()).limit(1)).first()
        return {"seq": 0, "hash": GENESIS} if row is None else {"seq": row.seq, "hash": row.hash}

    def verify_head(self, head: Mapping[str, Any]) -> None:
        """Checks an exported head against the ledger: LedgerBroken when its row is not there, or is another one."""
        if head["seq"] == 0:
            return
        found = self._select(ledger.c.seq == head["seq"])
        if not found:
            raise LedgerBroken(f"ledger row {head['seq']} of an exported head is gone: the end of the ledger was cut off")
        if found[0].hash != head["hash"]:
            raise LedgerBroken(
                f"ledger row {head['seq']} has {found[0].hash}, an exported head says {head['hash']}: the ledger was rewritten"
            )

    def entries(self, name: str | None = None, kind: str | None = None, subject: str | None = None) -> list[Entry]:
        wanted = {"name": name, "kind": kind, "subject": subject}
        return self._select(*(ledger.c[column] == value for column, value in wanted.items() if value is not None))

    def history(self, name: str) -> list[Entry]:
        """Every row about the model `name`, oldest first."""
        return self.entries(name=name)

    def champion(self, name: str) -> str | None:
        """The deployment that is champion now, or None."""
        return champion_of(self.history(name))

    def champion_at(self, name: str, instant: datetime) -> str | None:
        """The deployment that was champion at `instant` (a release at that very moment counts), or None."""
        return champion_of(self._select(ledger.c.name == name, ledger.c.at <= stamp(instant)))

    def candidate(self, name: str) -> str | None:
        """The deployment proposed last, whatever became of it."""
        return candidate_of(self.history(name))

    def canary(self, name: str) -> str | None:
        """The deployment whose canary runs, or passed and waits for its release."""
        return canary_of(self.history(name))

    def aliases(self, name: str) -> dict[str, str | None]:
        """What the registry's aliases have to say: alias → deployment or None."""
        entries = self.history(name)
        return {alias: given_to(entries) for alias, given_to in ALIASES.items()}

    def full_ref(self, ref: str) -> str:
        """`ref` with a bare alias, such as ``champion``, completed where only one name has one; raises NotFound where none or several have."""
        if ref not in ALIASES:
            return ref
        names = [name for name in self.names() if self.aliases(name)[ref]]
        if len(names) != 1:
            raise NotFound(f"{ref} of which name? {', '.join(names) or 'no name has one yet'}")
        return f"{ref}:{names[0]}"

    def names(self) -> list[str]:
        """Every model name that the ledger knows."""
        with self._db.read() as connection:
            return list(connection.execute(sa.select(ledger.c.name).where(ledger.c.name != "").distinct().order_by("name")).scalars())

    def _select(self, *where: sa.ColumnElement[bool]) -> list[Entry]:
        with self._db.read() as connection:
            return read_entries(connection, *where)
