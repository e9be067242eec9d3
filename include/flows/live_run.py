"""A stage's run in MLflow while its job runs: its figures as they come, and its end, whatever that is.

The job talks to no server. Whoever watches it for Airflow brings the lines of its `metrics.jsonl` (`airflow_slurm.watch.lines`), and calls
`LiveRun` from a thread of its own. What is not told here, because MLflow was away, is told when the attempt is committed or has failed.
"""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from airflow_slurm.receipts import history_of
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.lines import Lines
from include.domain.errors import AlignmentError
from include.domain.layout import RunDir
from include.flows import services
from include.flows.after_commit import stage_log
from include.flows.errors import FlowError
from include.stores.catalog.database import stamp

if TYPE_CHECKING:
    from include.stores.live_log import LiveLog

TAKER = "include.flows.live_run.LiveRun"
GOES_ON_WITHIN = timedelta(hours=7)
"""So long after an interrupted attempt the next may be submitted: a full queue is tried again for six hours."""
_INTERRUPTED_EXIT = 75
_WENT_WRONG = ("FAILED", "OUT_OF_MEMORY", "BOOT_FAIL")

log = logging.getLogger(__name__)


def lines_of(key: str, root: str) -> Lines:
    """The figures of a key's attempts, below the store's root, for the trigger that watches the job."""
    return Lines(f"{root}/{RunDir(key).attempts}/{{n}}-{{job_id}}.{{restarts}}/metrics.jsonl", TAKER, {"key": key})


class LiveRun:
    """Takes the figures of one stage's attempts to MLflow. See `airflow_slurm.watch.lines.Taker`."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._logs: dict[str, LiveLog] = {}

    def begin(self, file: str) -> int | None:
        attempt = _attempt(file)
        run = services.catalog().runs.get(self._key)
        if run is None:
            raise FlowError(f"{self._key} is not in the catalog that this process opens")
        made = services.live_registry().live(run.spec, attempt)
        self._logs[attempt] = made
        return made.begin()

    def take(self, file: str, lines: Sequence[str], end: int) -> None:
        self._logs[_attempt(file)].tell(rows_of(lines), end)

    def ended(self, file: str, view: JobView, given_up: bool) -> None:
        services.live_registry().end_attempt(self._key, _attempt(file), status_of(view))
        if given_up:
            settle(self._key)


def rows_of(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The objects among lines of JSON; what is none of them, such as half a line of a job that was killed, is no figure."""
    rows = []
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            rows.append(found)
    return rows


def status_of(view: JobView) -> str:
    """MLflow's word for the end of an attempt, from Slurm's: KILLED is what was ended from outside, or saved and wants to go on."""
    if view.succeeded:
        return "FINISHED"
    return "FAILED" if view.state in _WENT_WRONG and view.exit_code != _INTERRUPTED_EXIT else "KILLED"


def settle(key: str) -> str | None:
    """Ends what MLflow shows as running of a key on which nobody works: FINISHED, FAILED or KILLED, or None where it goes on, or had ended.

    Never raises: it comes after a task's own end, which must stay as it is, and the reconciler comes by again.
    """
    try:
        if (status := _status(key)) is None:
            return None
        if status == "FINISHED":
            _tell_committed(key)
        return status if services.registry().end_run(key, status) else None
    except Exception as error:  # noqa: BLE001 - the catalog's database and MLflow's client raise errors of their own
        log.warning("MLflow does not show yet how %s ended: %s", key, error)
        return None


def settle_all() -> list[dict[str, str]]:
    """The same for every run that MLflow shows as running; what was put right, in words."""
    found = []
    try:
        for key in services.registry().running():
            if (status := settle(key)) is not None:
                print(f"MLflow: {key} was shown as running; it is {status}")
                found.append({"key": key, "status": status})
    except (AlignmentError, OSError) as error:
        print(f"MLflow does not say which runs it shows as running: {error}")
    return found


def _status(key: str) -> str | None:
    from airflow_slurm.receipts import load_store

    runs = services.catalog().runs
    if runs.get(key) is None:
        return None  # another control plane's, in the same experiment
    if runs.committed(key) is not None:
        return "FINISHED"
    receipts = load_store(services.RECEIPTS, services.receipts_config())
    ends = [record.end for record in history_of(receipts, key)]
    if receipts.get(key) is not None or not ends or (last := ends[-1]) is None:
        return None
    if last.outcome == "failed":
        return "FAILED"
    if last.outcome == "cancelled" or (runs.last_closed(key) or "") < stamp(datetime.now(UTC) - GOES_ON_WITHIN):
        return "KILLED"
    return None


def _tell_committed(key: str) -> None:
    runs = services.catalog().runs
    run, done = runs.get(key), runs.committed(key)
    if run is not None and done is not None:
        services.registry().log_run(stage_log(run.spec, done))


def _attempt(file: str) -> str:
    return PurePosixPath(file).parent.name
