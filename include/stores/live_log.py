"""A stage run in MLflow while it is under way: over REST alone, since whoever calls watches many jobs and must not import mlflow.

Every attempt's run takes all that its attempt says. The stage's run takes each step once: of an attempt that goes on from a checkpoint,
what it repeats stands in its own run alone. Everything may come twice, from two processes too: points carry their rows' times.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from include.domain.spec import RunSpec
from include.stores.mlflow_runs import (
    KEY_TAG,
    TAG_LENGTH,
    last_step,
    log_batch,
    one_run,
    parameters_of,
    points_of,
    stage_name,
    tags_of_spec,
)
from include.stores.series import Row
from include.stores.tracking import Tracking, tags_of

LIVE_TAG, OFFSET_TAG = "align.live", "align.live_offset"
TIMEOUT_S = 5.0
FINISHED = "FINISHED"
ENDS = (FINISHED, "FAILED", "KILLED")


class LiveLog:
    """One attempt of a stage run, as it goes."""

    def __init__(self, tracking: Tracking, experiment_id: str, spec: RunSpec, attempt: str) -> None:
        self._tracking, self._experiment = tracking, experiment_id
        self._spec, self._attempt = spec, attempt
        self._parent = self._child = ""
        self._after = -1

    def begin(self) -> int | None:
        """Makes both runs, RUNNING, where they are not there. How many bytes of the attempt's metrics are told already; None where the stage's
        run is finished: whoever comes late changes nothing."""
        spec, now_ms = self._spec, int(time.time() * 1000)
        parent = one_run(self._tracking, self._experiment, spec.key, stage_name(spec), now_ms, {})
        if parent["info"]["status"] == FINISHED:
            return None
        self._parent = str(parent["info"]["run_id"])
        config = dict(spec.config)
        params = [{"key": key, "value": value} for key, value in parameters_of(config).items()]
        tags = tags_of_spec(spec, config) | {"align.attempt": self._attempt, LIVE_TAG: json.dumps(self._begun(parent))}
        self._tracking.post("runs/log-batch", run_id=self._parent, params=params, tags=_listed(tags))
        tags = {"mlflow.parentRunId": self._parent, "align.attempt": self._attempt}
        child = one_run(self._tracking, self._experiment, f"{spec.key}/{self._attempt}", f"attempt {self._attempt}", now_ms, tags)
        self._child = str(child["info"]["run_id"])
        for run in (parent, child):
            if run["info"]["status"] != "RUNNING":
                self._tracking.post("runs/update", run_id=run["info"]["run_id"], status="RUNNING")
        told = tags_of(child["data"]).get(OFFSET_TAG, "0")
        return int(told) if told.isdigit() else 0

    def _begun(self, parent: Mapping[str, Any]) -> dict[str, int]:
        """Attempt → the step up to which the stage's run was told by earlier ones; what it says of this one stays as it was at first."""
        try:
            begun = {str(name): int(step) for name, step in json.loads(tags_of(parent["data"]).get(LIVE_TAG, "{}")).items()}
        except (ValueError, AttributeError, TypeError):
            begun = {}
        step = last_step(dict(parent))
        self._after = begun.setdefault(self._attempt, -1 if step is None else step)
        return dict(list(begun.items())[-40:])

    def tell(self, rows: Sequence[Row], offset: int) -> None:
        """Writes the rows that end at byte `offset` of the attempt's metrics; the offset last, so that nothing is left out."""
        points = points_of(rows)
        log_batch(self._tracking, self._parent, [point for point in points if point["step"] > self._after])
        log_batch(self._tracking, self._child, points, {OFFSET_TAG: str(offset)})


def end_run(tracking: Tracking, run: Mapping[str, Any] | None, status: str) -> bool:
    """Ends a run that is RUNNING; whether it was."""
    if run is None or run["info"]["status"] in ENDS:
        return False
    tracking.post("runs/update", run_id=run["info"]["run_id"], status=status, end_time=int(time.time() * 1000))
    return True


def show_figures(
    tracking: Tracking, experiment_id: str, named: tuple[str, str], figures: Mapping[str, float], tags: Mapping[str, str]
) -> str:
    """A run of figures alone, by its key and name; one that is finished stays as it was told first."""
    now_s = time.time()
    run = one_run(tracking, experiment_id, *named, int(now_s * 1000), tags)
    if run["info"]["status"] != FINISHED:
        log_batch(tracking, str(run["info"]["run_id"]), points_of([{"step": 0, "time": now_s, **figures}]))
        end_run(tracking, run, FINISHED)
    return str(run["info"]["run_id"])


def running_keys(tracking: Tracking, experiment_id: str) -> list[str]:
    """The keys of stage runs that MLflow shows as running, without those of attempts."""
    found = tracking.runs(experiment_id, f"attributes.status = 'RUNNING' and tags.`{LIVE_TAG}` LIKE '%'")
    return [tags_of(run["data"])[KEY_TAG] for run in found]


def _listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value[:TAG_LENGTH]} for key, value in tags.items()]
