"""Slurm submissions kept in the catalog: one live submission a key over all clusters, and who owns it.

Implements the Slurm provider's receipt store by shape; a trigger rebuilds it from its dotted path and a JSON config.
An unknown end closes nothing: the key stays locked until `resolve` says who decided.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from include.domain.canonical import digest
from include.stores.catalog import array_parts
from include.stores.catalog.database import Database, Row, insert_new, stamp, upsert
from include.stores.catalog.facade import Catalog
from include.stores.catalog.ledger import NewEntry, append_entry
from include.stores.catalog.tables_work import attempts, incidents, owners, submission_connections, submissions
from include.stores.errors import NotFound, StoreError

RESOLUTIONS = ("lost", "ended")
"""What a person may say about an unknown end: the job is gone, or was seen to end."""
_CLAIM = "claim"
"""In an owner's record, beside what names it: the token of its last claim."""


@dataclass(frozen=True)
class Receipt:
    """What a submission left behind. Times are seconds since the epoch; `queued_at` is by the cluster's own clock."""

    job_id: str
    job_name: str
    conn_id: str
    cluster: str | None = None
    submitted_at: float | None = None
    released_at: float | None = None
    log_path: str | None = None
    array: str | None = None
    queued_at: float | None = None
    requeue: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Receipt":
        names = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in value.items() if k in names})


@dataclass(frozen=True)
class Claim:
    """The submission number to use.

    `adopted`: it is live already; `ending`: it is being ended, so it must not be adopted; `token`: this claim's, None if it added no owner.
    """

    n: int
    receipt: Receipt | None
    adopted: bool
    since: float
    ending: bool = False
    token: str | None = None


@dataclass(frozen=True)
class Submission:
    """A submission that is not closed."""

    key: str
    n: int
    receipt: Receipt | None
    owners: tuple[dict[str, Any], ...]
    since: float
    ending: bool = False


class CatalogReceipts:
    """Receipts, owners and incidents in the catalog at `url`.

    Args:
        url: the catalog's database.
        gpus: GPUs of the jobs it claims, kept with the submission, for GPU-seconds (elapsed time × gpus) of each incarnation of which
            accounting does not say what it was given.
        parts: of an array: the keys of its tasks, by their numbers. Claiming the array claims those of them that are free.
    """

    def __init__(self, url: str, gpus: int = 0, parts: Mapping[str, str] | None = None) -> None:
        self._db: Database = Catalog.open(url).database
        self._gpus = gpus
        self._parts = {int(task): key for task, key in (parts or {}).items()}

    def claim(self, key: str, owner: Mapping[str, Any]) -> Claim:
        """The live submission's number with this owner added, or the next number.

        Raises:
            KeyHeld: an array works on this key; or this is an array, and nothing of it is free.
        """
        with self._db.write("receipts") as connection:
            row = _live(connection, key)
            if row is not None:
                array_parts.refuse_part(connection, key, row["n"])
            if row is not None and row["ending"]:
                return _claim(row, adopted=True)
            token = _add_owner(connection, key, owner, self._db.now())
            if row is not None:
                return _claim(row, adopted=True, token=token)
            last = connection.execute(sa.select(sa.func.max(submissions.c.n)).where(submissions.c.key == key)).scalar() or 0
            new = {"key": key, "n": last + 1, "since": self._db.now(), "gpus": self._gpus, "receipt": None, "view": None, "ending": False}
            connection.execute(sa.insert(submissions).values(**new))
            if self._parts:
                array_parts.take_parts(connection, (key, last + 1), self._parts, new)
            return _claim(new, adopted=False, token=token)

    def held(self, key: str, n: int) -> dict[int, tuple[str, int]]:
        """Of an array's submission: task number → (key, its own n)."""
        with self._db.read() as connection:
            return array_parts.parts_of(connection, key, n)

    def record(self, key: str, n: int, receipt: Any) -> None:
        """Keeps the receipt; the last write wins, and after `close` nothing changes."""
        with self._db.write("receipts") as connection:
            _update(connection, key, n, {"receipt": receipt.to_json()})
            for task, part in array_parts.parts_of(connection, key, n).items():
                _update(connection, *part, {"receipt": array_parts.receipt_of_task(receipt.to_json(), task)})

    def sent_over(self, key: str, n: int, conn_id: str | None = None) -> str | None:
        """Over which connection the submission is sent; keeps `conn_id` if none is kept yet. None if none is."""
        table = submission_connections
        if conn_id is not None:
            with self._db.write("receipts") as connection:
                insert_new(connection, table, {"key": key, "n": n, "conn_id": conn_id})
        with self._db.read() as connection:
            return connection.execute(sa.select(table.c.conn_id).where(table.c.key == key, table.c.n == n)).scalar()

    def observe(self, key: str, n: int, view: Any) -> None:
        """Keeps the last known state, for people, and each incarnation's state and GPU-seconds."""
        with self._db.write("receipts") as connection:
            _update(connection, key, n, {"view": view.to_json()})
            _keep_incarnations(connection, key, n, view.to_json())

    def close(self, key: str, n: int, end: Any) -> None:
        """The submission is over; the first close wins, and its owners are forgotten."""
        with self._db.write("receipts") as connection:
            self._close(connection, key, n, end.to_json())

    def _close(self, connection: sa.Connection, key: str, n: int, end: Mapping[str, Any]) -> bool:
        mine = sa.and_(submissions.c.key == key, submissions.c.n == n, submissions.c.closed_at.is_(None))
        values = {"closed_at": self._db.now(), "end": dict(end), "closed_by": str(end.get("closed_by") or "")}
        if connection.execute(sa.update(submissions).where(mine).values(**values)).rowcount != 1:
            return False
        if end.get("view"):
            _keep_incarnations(connection, key, n, end["view"])
        active = sa.and_(owners.c.key == key, owners.c.dropped_at.is_(None))
        connection.execute(sa.update(owners).where(active).values(dropped_at=self._db.now()))
        for part in array_parts.tasks_closed(end, array_parts.parts_of(connection, key, n)):
            self._close(connection, *part)
        return True

    def get(self, key: str) -> Submission | None:
        """The live submission of the key, or None."""
        with self._db.read() as connection:
            row = _live(connection, key)
            return None if row is None else _submission(row, _owners(connection, key))

    def token_of(self, key: str, owner: Mapping[str, Any]) -> str | None:
        """The token of the owner's last claim; None if it holds none, or claimed before there were tokens."""
        with self._db.read() as connection:
            return _token(connection, key, owner)

    def drop_owner(self, key: str, owner: Mapping[str, Any], token: str | None = None) -> int:
        """Takes the owner away and gives how many are left; with the last one the live submission is marked as ending.

        Given a token, an owner that has claimed anew since then stays.
        """
        with self._db.write("receipts") as connection:
            mine = _held_by(key, owner)
            if token is None or token == _token(connection, key, owner):
                connection.execute(sa.update(owners).where(mine).values(dropped_at=self._db.now()))
            left = len(_owners(connection, key))
            if left == 0:
                live = sa.and_(submissions.c.key == key, submissions.c.closed_at.is_(None))
                connection.execute(sa.update(submissions).where(live).values(ending=True))
            return left

    def incident(self, key: str, n: int, what: str, detail: Mapping[str, Any]) -> None:
        """Keeps something that should not have happened; the same one is kept once."""
        body = {"key": key, "n": n, "what": what, "detail": dict(detail)}
        with self._db.write("receipts") as connection:
            insert_new(connection, incidents, {"incident_id": digest("incident", body), **body, "at": self._db.now()})

    def incidents(self, key: str) -> list[dict[str, Any]]:
        """What went wrong with this key, oldest first."""
        with self._db.read() as connection:
            query = sa.select(incidents).where(incidents.c.key == key).order_by("at", "incident_id")
            return [dict(row) for row in connection.execute(query).mappings()]

    def live(self) -> list[Submission]:
        """Every submission that is not closed, over all clusters; an array stands for its tasks."""
        with self._db.read() as connection:
            query = sa.select(submissions).where(submissions.c.closed_at.is_(None), ~array_parts.is_part()).order_by("key")
            rows = connection.execute(query).mappings().all()
            return [_submission(row, _owners(connection, row["key"])) for row in rows]

    def claimed_keys(self) -> list[str]:
        """Every key that was ever claimed: the reconciler asks before it takes a job in the queue for one of ours."""
        with self._db.read() as connection:
            return list(connection.execute(sa.select(submissions.c.key).distinct().order_by("key")).scalars())

    def history(self, key: str) -> list[dict[str, Any]]:
        """All submissions of a key, oldest first, closed ones too; for the page of a task. Owners are the key's, those that gave it up included."""
        with self._db.read() as connection:
            rows = connection.execute(sa.select(submissions).where(submissions.c.key == key).order_by("n")).mappings().all()
            query = sa.select(owners.c.owner).where(owners.c.key == key).order_by("added_at", "owner_id")
            holders = [_without_token(owner) for (owner,) in connection.execute(query)]
        noted = self.incidents(key)
        return [
            {name: row[name] for name in ("key", "n", "receipt", "view", "end")}
            | {"since": _epoch(row["since"]), "owners": holders, "incidents": [note for note in noted if note["n"] == row["n"]]}
            for row in rows
        ]

    def resolve(self, key: str, how: str, who: str, why: str) -> Submission:
        """A person says how an unknown end ended; the key is free again, and the ledger holds who decided.

        Raises:
            StoreError: `how` is not lost or ended, or nobody, or no reason, is named.
            NotFound: the key has no live submission.
        """
        if how not in RESOLUTIONS:
            raise StoreError(f"resolve {key}: {how!r} is none of {', '.join(RESOLUTIONS)}")
        if not who.strip() or not why.strip():
            raise StoreError(f"resolve {key}: name who decides, and why")
        with self._db.write("ledger") as connection:
            row = _live(connection, key)
            if row is None:
                raise NotFound(f"{key} has no live submission to resolve")
            array_parts.refuse_part(connection, key, row["n"])
            found = _submission(row, _owners(connection, key))
            end = {"outcome": how, "cause": f"resolved_{how}", "detail": why, "view": row["view"], "closed_by": who}
            if not self._close(connection, key, row["n"], end):
                raise NotFound(f"submission {row['n']} of {key} was closed by another just now")
            payload = {"key": key, "n": row["n"], "resolution": how, "why": why, "receipt": row["receipt"]}
            append_entry(connection, self._db.now(), NewEntry("submission_resolved", payload, who, subject=key))
        return found


def _keep_incarnations(connection: sa.Connection, key: str, n: int, view: Mapping[str, Any]) -> None:
    gpus = connection.execute(sa.select(submissions.c.gpus).where(submissions.c.key == key, submissions.c.n == n)).scalar() or 0
    for item in view.get("incarnations") or ():
        seconds = max(0.0, float(item.get("elapsed_s") or 0.0))
        job, restart, given = int(view["job_id"]), int(item.get("restart") or 0), item.get("gpus")
        row = {
            "key": key,
            "name": f"{n}-{job}.{restart}",
            "n": n,
            "job_id": job,
            "restart": restart,
            "cluster": str(view.get("cluster") or ""),
            "state": str(item.get("state") or ""),
            "started_at": _time(item.get("start_time")),
            "ended_at": _time(item.get("end_time")),
            "gpu_seconds": seconds * (gpus if given is None else int(given)),
        }
        upsert(connection, attempts, row, keys=("key", "name"))


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else stamp(datetime.fromtimestamp(seconds, UTC))


def _epoch(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _live(connection: sa.Connection, key: str) -> Row | None:
    query = sa.select(submissions).where(submissions.c.key == key, submissions.c.closed_at.is_(None))
    return connection.execute(query).mappings().first()


def _update(connection: sa.Connection, key: str, n: int, values: Mapping[str, Any]) -> None:
    mine = sa.and_(submissions.c.key == key, submissions.c.n == n)
    closed = connection.execute(sa.select(submissions.c.closed_at).where(mine)).first()
    if closed is None:
        raise NotFound(f"submission {n} of {key} is not in the catalog: claim it first")
    connection.execute(sa.update(submissions).where(mine, submissions.c.closed_at.is_(None)).values(**values))


def _claim(row: Row, *, adopted: bool, token: str | None = None) -> Claim:
    receipt = None if row["receipt"] is None else Receipt.from_json(row["receipt"])
    return Claim(row["n"], receipt, adopted, _epoch(row["since"]), bool(row["ending"]), token)


def _submission(row: Row, holders: list[dict[str, Any]]) -> Submission:
    receipt = None if row["receipt"] is None else Receipt.from_json(row["receipt"])
    return Submission(row["key"], row["n"], receipt, tuple(holders), _epoch(row["since"]), bool(row["ending"]))


def _owner_id(owner: Mapping[str, Any]) -> str:
    return digest("owner", dict(owner))


def _add_owner(connection: sa.Connection, key: str, owner: Mapping[str, Any], now: str) -> str:
    token = uuid4().hex
    row = {"key": key, "owner_id": _owner_id(owner), "owner": {**owner, _CLAIM: token}, "added_at": now, "dropped_at": None}
    upsert(connection, owners, row, keys=("key", "owner_id"))
    return token


def _held_by(key: str, owner: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    return sa.and_(owners.c.key == key, owners.c.owner_id == _owner_id(owner), owners.c.dropped_at.is_(None))


def _token(connection: sa.Connection, key: str, owner: Mapping[str, Any]) -> str | None:
    kept = connection.execute(sa.select(owners.c.owner).where(_held_by(key, owner))).scalar()
    return None if kept is None else kept.get(_CLAIM)


def _without_token(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kept.items() if name != _CLAIM}


def _owners(connection: sa.Connection, key: str) -> list[dict[str, Any]]:
    query = sa.select(owners.c.owner).where(owners.c.key == key, owners.c.dropped_at.is_(None)).order_by("added_at", "owner_id")
    return [_without_token(owner) for (owner,) in connection.execute(query)]
