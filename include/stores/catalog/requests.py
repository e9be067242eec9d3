"""Requests for alignment runs: idempotent by key, with the person who asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import digest
from include.stores.catalog.database import Database, Row
from include.stores.catalog.tables_work import requests
from include.stores.errors import Conflict, NotFound, StoreError

STATES = ("queued", "running", "waiting", "cancelling", "succeeded", "failed", "cancelled")
FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Request:
    """One request. `fresh`: it was accepted by this very call."""

    run_id: str
    idempotency_key: str
    body: Mapping[str, Any]
    asked_by: str
    state: str
    dag_run_id: str | None
    created_at: str
    changed_at: str
    fresh: bool = False


class Requests:
    """The table requests."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def accept(self, idempotency_key: str, body: Mapping[str, Any], asked_by: str) -> Request:
        """Accepts a request, or gives back the one with this key.

        Raises:
            Conflict: the key was used with another body, or by another person.
        """
        if not idempotency_key.strip() or not asked_by.strip():
            raise StoreError("a request needs an idempotency key and the person who asks")
        with self._db.write("requests") as connection:
            mine = requests.c.idempotency_key == idempotency_key
            if row := connection.execute(sa.select(requests).where(mine)).mappings().first():
                if digest("request", row["body"]) != digest("request", dict(body)) or row["asked_by"] != asked_by:
                    raise Conflict(f"idempotency key {idempotency_key!r} was used for another request, {_run_id(row['number'])}")
                return _request(row)
            number = (connection.execute(sa.select(sa.func.max(requests.c.number))).scalar() or 0) + 1
            now = self._db.now()
            new = {"number": number, "idempotency_key": idempotency_key, "body": dict(body), "asked_by": asked_by, "state": "queued"}
            new |= {"dag_run_id": None, "created_at": now, "changed_at": now}
            connection.execute(sa.insert(requests).values(**new))
            return _request(new, fresh=True)

    def get(self, run_id: str) -> Request:
        with self._db.read() as connection:
            row = connection.execute(sa.select(requests).where(requests.c.number == _number(run_id))).mappings().first()
        if row is None:
            raise NotFound(f"request {run_id} is not in the catalog")
        return _request(row)

    def by_key(self, idempotency_key: str) -> Request | None:
        """The request that was accepted under this key, or None."""
        with self._db.read() as connection:
            query = sa.select(requests).where(requests.c.idempotency_key == idempotency_key)
            row = connection.execute(query).mappings().first()
        return None if row is None else _request(row)

    def config_digest(self, reference: str) -> str | None:
        """The digest that a configuration (name@version) had in the first request that used it, or None."""
        with self._db.read() as connection:
            for body in connection.execute(sa.select(requests.c.body).order_by(requests.c.number)).scalars():
                if (config := body.get("config")) and isinstance(config, Mapping) and config.get("reference") == reference:
                    return str(config["digest"])
        return None

    def set_state(self, run_id: str, state: str, dag_run_id: str | None = None) -> Request:
        """Moves a request on; a final state stays, and what is being cancelled only ends."""
        if state not in STATES:
            raise StoreError(f"request {run_id}: state {state!r} is none of {', '.join(STATES)}")
        with self._db.write("requests") as connection:
            values: dict[str, Any] = {"state": state, "changed_at": self._db.now()}
            if dag_run_id is not None:
                values["dag_run_id"] = dag_run_id
            stays = FINAL if state in (*FINAL, "cancelling") else (*FINAL, "cancelling")
            movable = sa.and_(requests.c.number == _number(run_id), requests.c.state.not_in(stays))
            connection.execute(sa.update(requests).where(movable).values(**values))
        return self.get(run_id)

    def newest(self, limit: int = 100) -> list[Request]:
        """The newest requests, newest first."""
        with self._db.read() as connection:
            query = sa.select(requests).order_by(requests.c.number.desc()).limit(limit)
            return [_request(row) for row in connection.execute(query).mappings()]


def _run_id(number: int) -> str:
    return f"align-{number}"


def _number(run_id: str) -> int:
    head, _, digits = run_id.partition("-")
    if head != "align" or not digits.isdigit():
        raise NotFound(f"{run_id!r} is not a request; they are called align-1, align-2 …")
    return int(digits)


def _request(row: Row, *, fresh: bool = False) -> Request:
    rest = {k: v for k, v in row.items() if k != "number"}
    return Request(run_id=_run_id(row["number"]), fresh=fresh, **rest)
