"""Stage runs by key, and the commit: one attempt of a key wins, in one statement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import check_digest
from include.domain.errors import IntegrityError
from include.domain.layout import AttemptName, RunDir
from include.domain.manifest import Manifest
from include.domain.outcomes import Outcome
from include.domain.spec import Report, RunSpec
from include.stores.catalog.artifacts import insert_artifact, insert_location
from include.stores.catalog.database import Database, Row, insert_new, insert_once
from include.stores.catalog.tables_work import artifacts, attempts, edges, run_inputs, run_outputs, stage_runs, submissions
from include.stores.errors import NotFound, StoreError


@dataclass(frozen=True)
class Run:
    """A stage run as it was asked for."""

    key: str
    stage: str
    spec: RunSpec
    committed_attempt: str | None
    created_at: str


@dataclass(frozen=True)
class Output:
    """One committed artifact of a run; `path` is relative to the store's root."""

    digest: str
    kind: str
    path: str
    size_bytes: int


@dataclass(frozen=True)
class Committed:
    """The attempt that won its key. `won` is False for a caller whose own attempt lost."""

    key: str
    attempt: str
    won: bool
    report: Report
    outputs: Mapping[str, Output]
    store: str
    committed_at: str


LOST_STATES = ("REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
"""Ends that Slurm gives a run, whatever its program did."""


@dataclass(frozen=True)
class AttemptRow:
    """One incarnation of one Slurm job of a key."""

    name: str
    cluster: str
    state: str
    started_at: str | None
    ended_at: str | None
    gpu_seconds: float
    report: Report | None

    @property
    def lost(self) -> bool:
        """Whether Slurm ended it before the program had: its GPU-seconds since the last checkpoint are lost."""
        return self.state in LOST_STATES


def attempt_ref(key: str, attempt: str) -> str:
    """How edges name a writing attempt: its folder, relative to the store."""
    return RunDir(key).attempt(attempt)


class Runs:
    """The tables stage_runs, run_inputs, run_outputs and attempts."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def plan(self, spec: RunSpec) -> Run:
        """Makes the run and what it reads known before it starts; the same spec twice is one run."""
        key = spec.key
        with self._db.write("runs") as connection:
            row = {"key": key, "stage": spec.stage, "program": spec.program, "spec": spec.to_json(), "created_at": self._db.now()}
            insert_new(connection, stage_runs, row)
            insert_once(connection, run_inputs, [{"key": key, "role": role, "parent": d} for role, d in spec.inputs.items()])
        found = self.get(key)
        if found is None:
            raise StoreError(f"stage run {key} vanished from {self._db.shown} right after it was written")
        return found

    def get(self, key: str) -> Run | None:
        with self._db.read() as connection:
            row = connection.execute(sa.select(stage_runs).where(stage_runs.c.key == key)).mappings().first()
        return None if row is None else _run(row)

    def newest(self, stage: str | None = None, limit: int = 100) -> list[Run]:
        """The newest runs, newest first."""
        query = sa.select(stage_runs).order_by(stage_runs.c.created_at.desc(), stage_runs.c.key).limit(limit)
        if stage is not None:
            query = query.where(stage_runs.c.stage == stage)
        with self._db.read() as connection:
            return [_run(row) for row in connection.execute(query).mappings()]

    def producing(self, digest: str) -> list[Run]:
        """The committed runs that gave the artifact `digest`, newest first."""
        made = sa.select(run_outputs.c.key).where(run_outputs.c.digest == digest)
        query = sa.select(stage_runs).where(stage_runs.c.key.in_(made)).order_by(stage_runs.c.committed_at.desc(), stage_runs.c.key)
        with self._db.read() as connection:
            return [_run(row) for row in connection.execute(query).mappings()]

    def committed(self, key: str) -> Committed | None:
        """The committed attempt of a key with its outputs, or None."""
        with self._db.read() as connection:
            return _committed(connection, key, mine=None)

    def commit_attempt(
        self, key: str, attempt_name: str, report_json: Mapping[str, Any], outputs: Mapping[str, Mapping[str, Any]], base_uri: str
    ) -> Committed:
        """Makes `attempt_name` the result of `key`, where there is none yet.

        Args:
            report_json: the attempt's report.json; its outcome must be complete.
            outputs: artifact name → manifest, of output/manifest.json.
            base_uri: the store's name; paths are relative to it.

        Returns:
            The winner: this attempt (also when the same call came before), or the one that was first, with won False.

        Raises:
            IntegrityError: report, manifests and key contradict each other.
            NotFound: the key was never planned.
        """
        report, manifests = _checked(key, attempt_name, report_json, outputs)
        with self._db.write("runs") as connection:
            now = self._db.now()
            free = sa.and_(stage_runs.c.key == key, stage_runs.c.committed_attempt.is_(None))
            values = {"committed_attempt": attempt_name, "committed_at": now, "report": report.to_json(), "store": base_uri}
            if connection.execute(sa.update(stage_runs).where(free).values(**values)).rowcount == 1:
                _record_outputs(connection, key, attempt_name, manifests, base_uri, now)
            _save_report(connection, key, attempt_name, report)
            winner = _committed(connection, key, mine=attempt_name)
            if winner is None:
                raise NotFound(f"stage run {key} is not in the catalog {self._db.shown}: plan it before committing {attempt_name}")
        return winner

    def record_report(self, key: str, attempt_name: str, report_json: Mapping[str, Any]) -> None:
        """Keeps the report of an attempt that is not committed (interrupted, failed).

        Raises:
            IntegrityError: it is the report of another key or attempt.
        """
        report = _report_of(key, attempt_name, report_json)
        with self._db.write("runs") as connection:
            _save_report(connection, key, attempt_name, report)

    def last_closed(self, key: str) -> str | None:
        """When the newest submission of a key was closed; None while one is open, or where there was none."""
        query = sa.select(submissions.c.closed_at).where(submissions.c.key == key).order_by(submissions.c.n.desc()).limit(1)
        with self._db.read() as connection:
            found: str | None = connection.execute(query).scalar()
        return found

    def unreported(self, since: str, limit: int = 100) -> list[tuple[str, int]]:
        """(key, n) of submissions closed after `since` of which no attempt's report is known, the newest first."""
        known = sa.select(attempts.c.key).where(
            attempts.c.key == submissions.c.key, attempts.c.n == submissions.c.n, attempts.c.report.is_not(None)
        )
        query = (
            sa.select(submissions.c.key, submissions.c.n)
            .join(stage_runs, stage_runs.c.key == submissions.c.key)
            .where(submissions.c.closed_at >= since, ~known.exists())
            .order_by(submissions.c.closed_at.desc(), submissions.c.key)
            .limit(limit)
        )
        with self._db.read() as connection:
            return [(key, int(n)) for key, n in connection.execute(query)]

    def attempts(self, key: str) -> list[AttemptRow]:
        with self._db.read() as connection:
            rows = connection.execute(sa.select(attempts).where(attempts.c.key == key).order_by("n", "job_id", "restart")).mappings()
            return [_attempt(row) for row in rows]


def _run(row: Row) -> Run:
    return Run(row["key"], row["stage"], RunSpec.from_json(row["spec"]), row["committed_attempt"], row["created_at"])


def _attempt(row: Row) -> AttemptRow:
    report = None if row["report"] is None else Report.from_json(row["report"])
    times = row["started_at"], row["ended_at"]
    return AttemptRow(row["name"], row["cluster"], row["state"], *times, row["gpu_seconds"], report)


def _report_of(key: str, attempt_name: str, report_json: Mapping[str, Any]) -> Report:
    report = Report.from_json(report_json)
    if report.key != key or report.attempt != attempt_name:
        raise IntegrityError(f"the report of {attempt_name} says key {report.key}, attempt {report.attempt}; expected key {key}")
    return report


def _checked(
    key: str, attempt_name: str, report_json: Mapping[str, Any], outputs: Mapping[str, Mapping[str, Any]]
) -> tuple[Report, dict[str, Manifest]]:
    check_digest(key, "key")
    AttemptName.parse(attempt_name)
    report = _report_of(key, attempt_name, report_json)
    if report.outcome != Outcome.COMPLETE:
        raise IntegrityError(f"{attempt_name} of {key} ended {report.outcome!r} ({report.stop_reason}): only complete can be committed")
    manifests = {name: Manifest.from_json(value) for name, value in outputs.items()}
    stated, seen = dict(report.outputs), {name: manifest.digest for name, manifest in manifests.items()}
    if stated != seen:
        raise IntegrityError(f"{attempt_name} of {key}: the report names outputs {stated}, output/manifest.json {seen}")
    return report, manifests


def _record_outputs(connection: sa.Connection, key: str, attempt: str, manifests: Mapping[str, Manifest], base_uri: str, now: str) -> None:
    writer = attempt_ref(key, attempt)
    inputs = connection.execute(sa.select(run_inputs.c.role, run_inputs.c.parent).where(run_inputs.c.key == key)).all()
    for name, manifest in manifests.items():
        path = f"{writer}/output/{name}"
        insert_artifact(connection, manifest, writer, now)
        insert_location(connection, manifest.digest, base_uri, path)
        insert_new(connection, run_outputs, {"key": key, "name": name, "digest": manifest.digest, "path": path})
        edge = {"child": manifest.digest, "writer": writer, "created_at": now}
        insert_once(connection, edges, [{**edge, "parent": parent, "role": role} for role, parent in inputs])
    _bind_adapters(connection, manifests, writer, now)


def _bind_adapters(connection: sa.Connection, manifests: Mapping[str, Manifest], writer: str, now: str) -> None:
    """A model that is written beside adapters holds them merged: it came from them too."""
    adapters = {name: m.digest for name, m in manifests.items() if m.kind == "adapter"}
    models = [m.digest for m in manifests.values() if m.kind == "model"]
    rows = [{"child": child, "parent": parent, "role": role} for child in models for role, parent in adapters.items()]
    insert_once(connection, edges, [{**row, "writer": writer, "created_at": now} for row in rows])


def _save_report(connection: sa.Connection, key: str, name: str, report: Report) -> None:
    parsed = AttemptName.parse(name)
    row = {"key": key, "name": name, **vars(parsed), "cluster": "", "state": "", "gpu_seconds": 0.0}
    insert_new(connection, attempts, row)
    mine = sa.and_(attempts.c.key == key, attempts.c.name == name)
    connection.execute(sa.update(attempts).where(mine, attempts.c.report.is_(None)).values(report=report.to_json()))


def _committed(connection: sa.Connection, key: str, mine: str | None) -> Committed | None:
    row = connection.execute(sa.select(stage_runs).where(stage_runs.c.key == key)).mappings().first()
    if row is None or row["committed_attempt"] is None:
        return None
    query = (
        sa.select(run_outputs.c.name, run_outputs.c.digest, artifacts.c.kind, run_outputs.c.path, artifacts.c.size_bytes)
        .join(artifacts, artifacts.c.digest == run_outputs.c.digest)
        .where(run_outputs.c.key == key)
    )
    outputs = {name: Output(*rest) for name, *rest in connection.execute(query)}
    attempt = row["committed_attempt"]
    won = mine is None or mine == attempt
    return Committed(key, attempt, won, Report.from_json(row["report"]), outputs, row["store"], row["committed_at"])
