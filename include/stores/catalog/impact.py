"""What came from this: the reverse index from a label, batch, dataset or artifact to models, deployments and releases."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from include.stores.catalog.graph import aliases_of, chunks, datasets_with, descendants, labels_in, runs_reading
from include.stores.catalog.ledger import champions, read_entries
from include.stores.catalog.releases import tainted_by
from include.stores.catalog.tables_evidence import deployments, dossiers, gate_reports, ledger, measurements
from include.stores.catalog.tables_work import artifacts, dataset_versions, stage_runs


@dataclass(frozen=True)
class Impact:
    """Everything that came from `ref`, sorted; nothing that did not.

    runs: (key, stage, state) of stage runs that read an affected thing, also those not committed yet.
    champions: names whose present champion is affected.
    rollbacks: (name, deployment) of those champions: the newest earlier one that is neither affected nor tainted, None where there is none.
    """

    ref: str
    labels: tuple[str, ...]
    datasets: tuple[str, ...]
    artifacts: tuple[tuple[str, str], ...]
    runs: tuple[tuple[str, str, str], ...]
    deployments: tuple[tuple[str, str], ...]
    measurements: tuple[str, ...]
    gate_reports: tuple[str, ...]
    dossiers: tuple[str, ...]
    ledger_rows: tuple[int, ...]
    champions: tuple[str, ...]
    rollbacks: tuple[tuple[str, str | None], ...]
    other: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Nothing but the thing itself."""
        return not (self.datasets or self.artifacts or self.runs or self.deployments or self.champions or self.other)

    def to_json(self) -> dict[str, Any]:
        return {k: [list(i) if isinstance(i, tuple) else i for i in v] if isinstance(v, tuple) else v for k, v in vars(self).items()}


def impact_of(connection: sa.Connection, ref: str, start: str) -> Impact:
    """Walks forward from `start`: a node of the graph, ``label:ID``, ``batch:ID`` or ``rubric:VERSION``."""
    return _impact(connection, ref, start, labels_in(connection, start))


def impact_of_labels(connection: sa.Connection, ref: str, labels: set[str]) -> Impact:
    """Walks forward from all of these labels at once."""
    return _impact(connection, ref, ref, labels)


def _impact(connection: sa.Connection, ref: str, start: str, labels: set[str]) -> Impact:
    begin = {start} | datasets_with(connection, labels) | {f"label:{label}" for label in labels}
    reached = descendants(connection, begin)
    reached -= {start, *(f"label:{label}" for label in labels)} | aliases_of(connection, [start])  # no consequence of itself
    versions = _rows(connection, dataset_versions, dataset_versions.c.content_hash, reached)
    transports = {row["artifact"] for row in versions}
    found = _rows(connection, artifacts, artifacts.c.digest, reached - transports)
    placed = _rows(connection, deployments, deployments.c.digest, reached)
    hit = {row["digest"] for row in placed}
    judged = _rows(connection, gate_reports, gate_reports.c.deployment, hit) + _rows(
        connection, gate_reports, gate_reports.c.digest, reached
    )
    reports = {row["digest"] for row in judged}
    known = {row["content_hash"] for row in versions} | transports | {row["digest"] for row in found} | hit | reports
    runs = _rows(connection, stage_runs, stage_runs.c.key, runs_reading(connection, reached | begin))
    rows = _rows(connection, dossiers, dossiers.c.deployment, hit)
    names = connection.execute(sa.select(ledger.c.name).where(ledger.c.kind == "released").distinct()).scalars().all()
    entries = {name: read_entries(connection, ledger.c.name == name) for name in names}
    stacks = {name: [row.payload["deployment"] for row in champions(told)] for name, told in sorted(entries.items())}
    fallen = {name: stack for name, stack in stacks.items() if stack and stack[-1] in hit | {start}}
    return Impact(
        ref=ref,
        labels=tuple(sorted(labels)),
        datasets=tuple(sorted(f"{row['dataset_id']}@{row['version']}" for row in versions)),
        artifacts=tuple(sorted((row["digest"], row["kind"]) for row in found)),
        runs=tuple(sorted((row["key"], row["stage"], "committed" if row["committed_attempt"] else "not committed") for row in runs)),
        deployments=tuple(sorted((row["digest"], row["name"]) for row in placed)),
        measurements=tuple(sorted(row["measurement_id"] for row in _rows(connection, measurements, measurements.c.deployment, hit))),
        gate_reports=tuple(sorted(reports)),
        dossiers=tuple(sorted(row["digest"] for row in rows)),
        ledger_rows=tuple(sorted(e.seq for found_ in entries.values() for e in found_ if e.payload.get("deployment") in hit)),
        champions=tuple(fallen),
        rollbacks=tuple((name, _newest_whole(connection, stack, hit | {start})) for name, stack in fallen.items()),
        other=tuple(sorted(reached - known)),
    )


def _newest_whole(connection: sa.Connection, stack: list[str], affected: set[str]) -> str | None:
    return next((d for d in reversed(stack) if d not in affected and tainted_by(connection, d) is None), None)


def _rows(connection: sa.Connection, table: sa.Table, column: sa.Column[Any], values: set[str]) -> list[Any]:
    found: list[Any] = []
    for piece in chunks(values):
        found += connection.execute(sa.select(table).where(column.in_(piece))).mappings().all()
    return found
