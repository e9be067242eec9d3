"""Measurements and gate reports: never overwritten, the first complete one binds, repeats are counted."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import check_digest, digest
from include.stores.catalog.database import Database, Row, insert_new
from include.stores.catalog.tables_evidence import gate_reports, measurements
from include.stores.errors import Conflict, NotFound


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Measurement:
    """One measurement: its values per item lie in the file `items_uri`, whose sha256 is `items_digest`."""

    key: MeasurementKey
    run_key: str
    attempt: str
    items_uri: str
    items_digest: str
    n: int
    summary: Mapping[str, Any] = field(default_factory=dict)
    measured_at: str = ""

    @property
    def measurement_id(self) -> str:
        body = {"key": asdict(self.key), "run_key": self.run_key, "attempt": self.attempt, "items": self.items_digest}
        return digest("measurement", body)


@dataclass(frozen=True)
class GateReportRow:
    """A gate report as it was judged. `ordinal` 1 is the first for its deployment, policies and purpose, and binds."""

    digest: str
    purpose: str
    deployment: str
    verdict: str
    gate_code: str
    policies_digest: str
    body: Mapping[str, Any]
    as_of: str | None
    ordinal: int
    created_at: str


class Measurements:
    """The tables measurements and gate_reports."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def record(self, measured: Measurement) -> str:
        """Keeps a measurement, once, and gives its id."""
        check_digest(measured.key.deployment, "measurement.deployment")
        check_digest(measured.items_digest, "measurement.items_digest")
        with self._db.write("measurements") as connection:
            row = {**asdict(measured.key), **{k: v for k, v in vars(measured).items() if k != "key"}}
            row |= {"measurement_id": measured.measurement_id, "measured_at": self._db.now(), "summary": dict(measured.summary)}
            insert_new(connection, measurements, row)
        return measured.measurement_id

    def all(self, key: MeasurementKey) -> list[Measurement]:
        """Every measurement of exactly this key, the first one first."""
        return self._select(*(measurements.c[name] == value for name, value in asdict(key).items()))

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

    def record_gate_report(self, report: GateReportRow) -> GateReportRow:
        """Keeps a gate report under its digest and purpose; `ordinal` and `created_at` are given here.

        Raises:
            Conflict: the digest is known with another verdict or body.
        """
        check_digest(report.digest, "gate_report.digest")
        with self._db.write("measurements") as connection:
            same = sa.and_(gate_reports.c.digest == report.digest, gate_reports.c.purpose == report.purpose)
            if row := connection.execute(sa.select(gate_reports).where(same)).mappings().first():
                return _same_report(GateReportRow(**row), report)
            counted = (
                sa.select(sa.func.count()).select_from(gate_reports).where(*_lot(report.deployment, report.policies_digest, report.purpose))
            )
            new = {**vars(report), "body": dict(report.body), "created_at": self._db.now()}
            new["ordinal"] = (connection.execute(counted).scalar() or 0) + 1
            connection.execute(sa.insert(gate_reports).values(**new))
            return GateReportRow(**new)

    def gate_report(self, digest_: str, purpose: str = "release") -> GateReportRow:
        with self._db.read() as connection:
            same = sa.and_(gate_reports.c.digest == digest_, gate_reports.c.purpose == purpose)
            row = connection.execute(sa.select(gate_reports).where(same)).mappings().first()
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


def _same_report(known: GateReportRow, report: GateReportRow) -> GateReportRow:
    if known.verdict != report.verdict or digest("body", dict(known.body)) != digest("body", dict(report.body)):
        raise Conflict(f"gate report {report.digest} is in the catalog with other content: an earlier verdict is never overwritten")
    return known


def _measurement(row: Row) -> Measurement:
    names = MeasurementKey.__dataclass_fields__
    key = MeasurementKey(**{name: row[name] for name in names})
    return Measurement(key, **{k: v for k, v in row.items() if k not in names and k != "measurement_id"})
