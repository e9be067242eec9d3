"""A stage run as MLflow shows it: a child run for each attempt; once one is committed, the merged series too.

A run that failed or that a guard stopped is told with its reason. Its series stand with its attempts alone: where a later attempt
goes on from a checkpoint, what was done past it is no part of the run's own curves.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from include.domain.canonical import canonical_bytes, digest
from include.domain.spec import Report, RunSpec
from include.stores.catalog.runs import Committed
from include.stores.errors import RegistryError
from include.stores.mlflow_runs import (
    KEY_TAG,
    LOGGED_TAG,
    POINTS_A_CALL,
    TAG_LENGTH,
    one_run,
    parameters_of,
    points_of,
    shown,
    stage_name,
    tags_of_spec,
)
from include.stores.series import AttemptLog, Row, merged
from include.stores.tracking import Tracking, quoted, tags_of


@dataclass(frozen=True)
class Stopped:
    """How the newest attempt of a run ended that is not committed. at: an ISO moment."""

    attempt: str
    stop_reason: str
    message: str
    at: str
    guard: str = ""


@dataclass(frozen=True)
class StageLog:
    """What is told of a run that is committed, or `stopped`. config: the whole configuration; it is kept as an artifact, with its hash."""

    spec: RunSpec
    committed: Committed | None
    attempts: Sequence[AttemptLog] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    stopped: Stopped | None = None

    def __post_init__(self) -> None:
        if (self.committed is None) == (self.stopped is None):
            raise RegistryError(f"{self.spec.key}: a run that is told of is committed or stopped, one of the two")

    @property
    def attempt(self) -> str:
        """The one that ended the run."""
        return self.committed.attempt if self.committed else str(self.stopped and self.stopped.attempt)

    @property
    def ended_at(self) -> str:
        return self.committed.committed_at if self.committed else str(self.stopped and self.stopped.at)

    @property
    def outcome(self) -> dict[str, str]:
        """How it ended; every name each time, so that what an earlier end said does not stay."""
        if self.committed is not None:
            return {"outcome": "complete", "stop_reason": self.committed.report.stop_reason, "guard": "none", "message": "none"}
        told = self.stopped
        assert told is not None, "one of the two, as __post_init__ has seen to it"
        return {"outcome": "failed", "stop_reason": told.stop_reason, "guard": told.guard or "none", "message": told.message}

    @property
    def rows(self) -> list[Row]:
        """The run's own series: none while nothing is committed."""
        return merged(self.attempts, self.committed.attempt) if self.committed else []

    @property
    def config_digest(self) -> str:
        return digest("config", dict(self.config))

    @property
    def digest(self) -> str:
        """Of all that is told, so that what was told half is seen as such."""
        body = {
            "attempt": self.attempt,
            "config": self.config_digest,
            "metrics": [dict(row) for row in self.rows],
            "artifacts": {name: data.hex() for name, data in self.artifacts.items()},
        }
        if self.stopped is not None:
            body |= {"stopped": self.outcome, "attempts": {a.name: [dict(row) for row in a.metrics] for a in self.attempts}}
        return digest("run-log", body)


def finished_run(tracking: Tracking, experiment_id: str, log: StageLog) -> str | None:
    """The run that already says all of `log`, or None."""
    for run in tracking.runs(experiment_id, f"tags.`{KEY_TAG}` = '{quoted(log.spec.key)}'"):
        if tags_of(run["data"]).get(LOGGED_TAG) == log.digest:
            return str(run["info"]["run_id"])
    return None


class RunWriter:
    """Writes one stage run with an MlflowClient; every step may be repeated after a crash."""

    def __init__(self, client: Any, tracking: Tracking, experiment_id: str) -> None:
        self._client, self._tracking, self._experiment = client, tracking, experiment_id

    def write(self, log: StageLog) -> str:
        ended_ms = _milliseconds(log.ended_at)
        run = one_run(self._tracking, self._experiment, log.spec.key, stage_name(log.spec), ended_ms, {})
        run_id = str(run["info"]["run_id"])
        self._client.log_batch(run_id, params=self._parameters(log), tags=self._tags(log))
        self._merged(run, log, ended_ms)
        if log.committed is not None:
            self._finals(run_id, _final(log.committed.report), log.committed.report.last_step, ended_ms)
        for attempt in log.attempts:
            self._child(run_id, log, attempt, ended_ms)
        self._artifacts(run_id, log)
        self._client.set_tag(run_id, LOGGED_TAG, log.digest)
        self._client.set_terminated(run_id, "FINISHED" if log.committed else "FAILED", end_time=ended_ms)
        return run_id

    def _parameters(self, log: StageLog) -> list[Any]:
        from mlflow.entities import Param

        return [Param(name, value) for name, value in parameters_of(log.config).items()]

    def _tags(self, log: StageLog) -> list[Any]:
        from mlflow.entities import RunTag

        tags = tags_of_spec(log.spec, log.config) | {
            "align.attempt": log.attempt,
            **{f"align.{name}": value for name, value in log.outcome.items()},
            **{f"align.output.{name}": output.digest for name, output in (log.committed.outputs if log.committed else {}).items()},
        }
        return [RunTag(name, value[:TAG_LENGTH]) for name, value in tags.items()]

    def _merged(self, run: Mapping[str, Any], log: StageLog, ended_ms: int) -> None:
        """The run's own series: a step that it was shown while the run was under way is not written a second time."""
        points = points_of(log.rows, ended_ms)
        known = shown(self._tracking, dict(run), {point["key"] for point in points})
        self._points(str(run["info"]["run_id"]), [point for point in points if (point["key"], point["step"]) not in known])

    def _points(self, run_id: str, points: Sequence[Mapping[str, Any]]) -> None:
        from mlflow.entities import Metric

        for start in range(0, len(points), POINTS_A_CALL):
            self._client.log_batch(run_id, metrics=[Metric(**point) for point in points[start : start + POINTS_A_CALL]])

    def _finals(self, run_id: str, metrics: Mapping[str, float], step: int, at_ms: int) -> None:
        row = {f"final.{name}": value for name, value in metrics.items()}
        self._points(run_id, points_of([{"step": step, "time": at_ms / 1000, **row}], at_ms))

    def _child(self, parent: str, log: StageLog, attempt: AttemptLog, committed_ms: int) -> None:
        key = f"{log.spec.key}/{attempt.name}"
        tags = {"mlflow.parentRunId": parent, "align.attempt": attempt.name}
        start_ms = min((int(float(row["time"]) * 1000) for row in attempt.metrics if row.get("time")), default=committed_ms)
        run = one_run(self._tracking, self._experiment, key, f"attempt {attempt.name}", start_ms, tags)
        run_id, report = str(run["info"]["run_id"]), attempt.report
        told = {"outcome": "no report"} if report is None else _told(report)
        told |= {f"placement.{name}": canonical_bytes(value).decode() for name, value in attempt.placement.items()}
        for name, value in told.items():
            self._client.set_tag(run_id, f"align.{name}", value[:TAG_LENGTH])
        self._points(run_id, points_of(attempt.metrics, committed_ms))
        self._client.set_terminated(run_id, _status(report), end_time=max(start_ms, committed_ms))

    def _artifacts(self, run_id: str, log: StageLog) -> None:
        files = {
            "config.json": canonical_bytes(dict(log.config)),
            "spec.json": canonical_bytes(log.spec.to_json()),
            **log.artifacts,
        }
        upload(self._client, run_id, "", files)


def _final(report: Report) -> dict[str, float]:
    """What is told of a run as a whole: its metrics, and what saving and resuming cost."""
    costs = {
        f"{name}.{figure}": float(value)
        for name in ("checkpoints", "resumption")
        if isinstance(told := report.summary.get(name), Mapping)
        for figure, value in told.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    speed = {"tokens_per_s": float(report.summary["tokens_per_s"])} if report.summary.get("tokens_per_s") else {}
    return {**speed, **costs, **report.metrics}


def _status(report: Report | None) -> str:
    """MLflow's word for how an attempt ended: an interrupted one was ended from outside, and the next goes on from it."""
    return {"complete": "FINISHED", "interrupted": "KILLED"}.get(report.outcome if report else "", "FAILED")


def _told(report: Report) -> dict[str, str]:
    """How an attempt ended, as its report says it."""
    told = {"outcome": report.outcome, "stop_reason": report.stop_reason}
    guard, message = report.summary.get("guard"), report.message
    return told | ({"guard": str(guard)} if guard else {}) | ({"message": message} if message else {})


def upload(client: Any, run_id: str, folder: str, files: Mapping[str, bytes]) -> None:
    """Puts small files below a run's artifacts."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in files.items():
            place = Path(scratch) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        client.log_artifacts(run_id, scratch, folder or None)


def _milliseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
