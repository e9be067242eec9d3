"""Measurements and gate reports: never overwritten, the first complete one binds, repeats are counted."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Required, TypedDict, Unpack

import sqlalchemy as sa

from include.domain.canonical import check_digest, digest
from include.stores.catalog.database import Database, Row, insert_new
from include.stores.catalog.tables_evidence import gate_reports, measurements
from include.stores.errors import Conflict, NotFound


@dataclass(frozen=True, kw_only=True)
class MeasurementKey:
    """What makes two measurements comparable, and the deployment that was measured.

    scorer: digest of the scorer's import closure. generation: digest of the generation settings.
    hardware: hardware class, for latency and throughput only; empty otherwise.
    """

    deployment: str
    suite_digest: str
    metric: str
    scorer: str
    generation: str
    backend: str
    hardware: str = ""


@dataclass(frozen=True, kw_only=True)
class Measurement(MeasurementKey):
    """One measurement: its values per item lie in the file `items_uri`; `items_digest` is the file's, or its artifact's."""

    run_key: str
    attempt: str
    items_uri: str
    items_digest: str
    n: int
    summary: Mapping[str, Any] = field(default_factory=dict)
    measured_at: str = ""

    @property
    def key(self) -> MeasurementKey:
        return MeasurementKey(**{name: getattr(self, name) for name in KEY_FIELDS})

    @property
    def measurement_id(self) -> str:
        body = {"key": asdict(self.key), "run_key": self.run_key, "attempt": self.attempt, "items": self.items_digest}
        return digest("measurement", body)


KEY_FIELDS = tuple(field_.name for field_ in fields(MeasurementKey))


class Judged(TypedDict, total=False):
    """What goes with a gate report: `as_of` is the instant whose champion was judged (backfill)."""

    verdict: Required[str]
    gate_code: Required[str]
    policies_digest: Required[str]
    purpose: str
    as_of: str | None


@dataclass(frozen=True)
class GateReportRow:
    """A gate report as it was judged. `ordinal` 1 is the first for its deployment, policies and purpose, and binds."""

    digest: str
    purpose: str
    as_of: str
    deployment: str
    verdict: str
    gate_code: str
    policies_digest: str
    body: Mapping[str, Any]
    ordinal: int
    created_at: str


class Measurements:
    """The tables measurements and gate_reports."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def record(self, measured: Measurement) -> str:
        """Keeps a measurement, once, and gives its id."""
        check_digest(measured.deployment, "measurement.deployment")
        check_digest(measured.items_digest, "measurement.items_digest")
        with self._db.write("measurements") as connection:
            row = {**vars(measured), "measurement_id": measured.measurement_id, "measured_at": self._db.now()}
            insert_new(connection, measurements, row)
        return measured.measurement_id

    def all(self, key: MeasurementKey) -> list[Measurement]:
        """Every measurement of exactly this key, the first one first."""
        return self._select(*(measurements.c[name] == getattr(key, name) for name in KEY_FIELDS))

    def first(self, key: MeasurementKey) -> Measurement | None:
        """The one that binds, or None."""
        found = self.all(key)
        return found[0] if found else None

    def repeats(self, key: MeasurementKey) -> int:
        """How often it was measured again after the first time."""
        return max(0, len(self.all(key)) - 1)

    def of(self, deployment: str) -> list[Measurement]:
        """Everything measured on a deployment, oldest first."""
        return self._select(measurements.c.deployment == deployment)

    def _select(self, *where: sa.ColumnElement[bool]) -> list[Measurement]:
        with self._db.read() as connection:
            query = sa.select(measurements).where(*where).order_by("measured_at", "measurement_id")
            return [_measurement(row) for row in connection.execute(query).mappings()]

    def record_gate_report(self, digest_: str, deployment: str, body: Mapping[str, Any], **judged: Unpack[Judged]) -> GateReportRow:
        """Keeps a gate report under its digest, purpose (``release`` unless said) and instant; the same one once.

        Raises:
            Conflict: the digest is known with another verdict or body.
        """
        check_digest(digest_, "gate_report.digest")
        given: dict[str, Any] = {"purpose": "release", **judged, "as_of": judged.get("as_of") or ""}
        given |= {"digest": digest_, "deployment": deployment, "body": dict(body)}
        with self._db.write("measurements") as connection:
            same = [gate_reports.c[name] == given[name] for name in ("digest", "purpose", "as_of")]
            if row := connection.execute(sa.select(gate_reports).where(*same)).mappings().first():
                return _same_report(GateReportRow(**row), given)
            lot = _lot(deployment, given["policies_digest"], given["purpose"])
            counted = connection.execute(sa.select(sa.func.count()).select_from(gate_reports).where(*lot)).scalar() or 0
            new = {**given, "ordinal": counted + 1, "created_at": self._db.now()}
            connection.execute(sa.insert(gate_reports).values(**new))
            return GateReportRow(**new)

    def gate_report(self, digest_: str, purpose: str = "release") -> GateReportRow:
        with self._db.read() as connection:
            same = sa.and_(gate_reports.c.digest == digest_, gate_reports.c.purpose == purpose)
            row = connection.execute(sa.select(gate_reports).where(same).order_by("ordinal")).mappings().first()
        if row is None:
            raise NotFound(f"gate report {digest_} ({purpose}) is not in the catalog")
        return GateReportRow(**row)

    def first_verdict(self, deployment: str, policies_digest: str, purpose: str = "release") -> GateReportRow | None:
        """The verdict that binds: the first complete one of these policies on this deployment."""
        found = self.verdicts(deployment, policies_digest, purpose)
        return found[0] if found else None

    def verdicts(self, deployment: str, policies_digest: str, purpose: str = "release") -> list[GateReportRow]:
        """All of them, by ordinal; more than one means that it was judged again."""
        with self._db.read() as connection:
            query = sa.select(gate_reports).where(*_lot(deployment, policies_digest, purpose)).order_by("ordinal")
            return [GateReportRow(**row) for row in connection.execute(query).mappings()]

    def reports_of(self, deployment: str) -> list[GateReportRow]:
        """Every gate report of a deployment for any purpose, oldest first."""
        with self._db.read() as connection:
            query = sa.select(gate_reports).where(gate_reports.c.deployment == deployment).order_by("created_at", "digest")
            return [GateReportRow(**row) for row in connection.execute(query).mappings()]


def _lot(deployment: str, policies_digest: str, purpose: str) -> tuple[sa.ColumnElement[bool], ...]:
    table = gate_reports.c
    return table.deployment == deployment, table.policies_digest == policies_digest, table.purpose == purpose


def _same_report(known: GateReportRow, given: Mapping[str, Any]) -> GateReportRow:
    if known.verdict != given["verdict"] or digest("body", dict(known.body)) != digest("body", given["body"]):
        raise Conflict(f"gate report {known.digest} is in the catalog with other content: an earlier verdict is never overwritten")
    return known


def _measurement(row: Row) -> Measurement:
    return Measurement(**{k: v for k, v in row.items() if k != "measurement_id"})
