"""What a thing has cost: the jobs of every stage run that it came from and, of a deployment, of those that measured it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from include.stores.catalog.database import Database, Row
from include.stores.catalog.graph import ancestors, chunks
from include.stores.catalog.lineage import resolve
from include.stores.catalog.tables_evidence import measurements
from include.stores.catalog.tables_work import attempts, memberships, run_outputs, stage_runs


@dataclass(frozen=True)
class RunCost:
    """Of one stage run. Seconds are those that Slurm counted; a running attempt counts nothing yet.

    job_seconds, gpu_seconds: of all attempts, GPUs times seconds. earlier_job_seconds, earlier_gpu_seconds: the part of them that
    attempts took whose work was handed on to a later one, or lost. tokens: that the committed report counts (answers of
    generation and PPO, else tokens learnt from).
    """

    key: str
    stage: str
    committed: bool
    attempts: int
    job_seconds: float
    gpu_seconds: float
    earlier_job_seconds: float
    earlier_gpu_seconds: float
    tokens: float


@dataclass(frozen=True)
class Cost:
    """Of a thing: its stage runs in the order in which they were planned, and how many labels its datasets hold."""

    ref: str
    runs: tuple[RunCost, ...]
    labels: int

    def total(self, field: str, stages: Sequence[str] = ()) -> float:
        """The sum of a field of `RunCost`, of these stages or of all."""
        return float(sum(getattr(run, field) for run in self.runs if not stages or run.stage in stages))

    def to_json(self) -> dict[str, Any]:
        names = ("job_seconds", "gpu_seconds", "earlier_job_seconds", "earlier_gpu_seconds")
        return {
            "ref": self.ref,
            "labels": self.labels,
            "runs": [dict(vars(run)) for run in self.runs],
            "total": {name: self.total(name) for name in names},
        }


class Costs:
    """Sums over attempts, along the lineage."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def of(self, ref: str) -> Cost:
        """The cost of what `Lineage.trace` takes; a stage run that several things share counts whole for each.

        Raises:
            NotFound: nothing of this name is in the catalog.
        """
        with self._db.read() as connection:
            start = resolve(connection, ref)
            behind = ancestors(connection, [start])
            keys = set(_all(connection, run_outputs.c.key, run_outputs.c.digest, behind))
            keys |= set(_all(connection, measurements.c.run_key, measurements.c.deployment, [start]))
            runs = [_run_cost(connection, row) for row in _runs(connection, keys)]
            labels = len(set(_all(connection, memberships.c.label_id, memberships.c.content_hash, behind)))
            return Cost(ref, tuple(runs), labels)


def _all(connection: sa.Connection, wanted: sa.Column[str], column: sa.Column[str], values: Iterable[str]) -> list[str]:
    found: list[str] = []
    for piece in chunks(values):
        found += connection.execute(sa.select(wanted).where(column.in_(piece))).scalars()
    return found


def _runs(connection: sa.Connection, keys: Iterable[str]) -> list[Row]:
    found: list[Row] = []
    for piece in chunks(keys):
        found += connection.execute(sa.select(stage_runs).where(stage_runs.c.key.in_(piece))).mappings()
    return sorted(found, key=lambda row: (row["created_at"], row["key"]))


def _run_cost(connection: sa.Connection, run: Row) -> RunCost:
    rows = connection.execute(sa.select(attempts).where(attempts.c.key == run["key"])).mappings().all()
    spent = {row["name"]: (_seconds(row), float(row["gpu_seconds"])) for row in rows}
    earlier = [cost for name, cost in spent.items() if name != run["committed_attempt"]]
    report = run["report"] or {}
    return RunCost(
        key=run["key"],
        stage=run["stage"],
        committed=run["committed_attempt"] is not None,
        attempts=len(rows),
        job_seconds=sum(job for job, _ in spent.values()),
        gpu_seconds=sum(gpu for _, gpu in spent.values()),
        earlier_job_seconds=sum(job for job, _ in earlier),
        earlier_gpu_seconds=sum(gpu for _, gpu in earlier),
        tokens=float((report.get("metrics") or {}).get("tokens") or 0.0),
    )


def _seconds(row: Row) -> float:
    if row["started_at"] is None or row["ended_at"] is None:
        return 0.0
    return max(0.0, (datetime.fromisoformat(row["ended_at"]) - datetime.fromisoformat(row["started_at"])).total_seconds())


def render_cost(cost: Cost) -> str:
    """A table of stages, the sums, and what a thousand preferences and a million tokens took."""
    lines = [f"{'stage':<16} {'runs':>4} {'attempts':>8} {'job hours':>10} {'GPU hours':>10} {'of earlier attempts':>20} {'tokens':>12}"]
    for stage in dict.fromkeys(run.stage for run in cost.runs):
        lines.append(_line(cost, stage, [run for run in cost.runs if run.stage == stage]))
    lines.append(_line(cost, "all", list(cost.runs)))
    unit, field = ("GPU", "gpu_seconds") if cost.total("gpu_seconds") else ("job", "job_seconds")
    if cost.labels and (spent := cost.total(field, ("generate",))):
        lines.append(f"{cost.labels} preferences: {1000 * spent / 3600 / cost.labels:.3g} {unit} hours of generation for a thousand")
    for stage, what in (("generate", "candidates"), ("ppo", "rollouts")):
        if tokens := cost.total("tokens", (stage,)):
            lines.append(f"{what}: {1e6 * cost.total(field, (stage,)) / 3600 / tokens:.3g} {unit} hours for a million tokens")
    return "\n".join(lines)


def _line(cost: Cost, name: str, runs: Sequence[RunCost]) -> str:
    part = Cost(cost.ref, tuple(runs), cost.labels)
    hours = {field: part.total(field) / 3600 for field in ("job_seconds", "gpu_seconds", "earlier_job_seconds", "earlier_gpu_seconds")}
    again = f"{hours['earlier_job_seconds']:.3f} ({hours['earlier_gpu_seconds']:.3f} GPU)"
    tokens = f"{part.total('tokens'):,.0f}" if name != "all" else ""
    return (
        f"{name:<16} {len(runs):>4} {int(part.total('attempts')):>8} {hours['job_seconds']:>10.3f} {hours['gpu_seconds']:>10.3f} "
        f"{again:>20} {tokens:>12}"
    ).rstrip()
