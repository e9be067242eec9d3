"""A DAG run as a person reads it: stages (task groups) with state and time. Pure: from the API's answers to lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

TaskInstance = Mapping[str, Any]
"""A task instance as Airflow's API gives it."""

RETRYING = "to be tried again"
_RANKED = (
    ("failed", ("failed",)),
    ("asks a person", ("awaiting_input",)),
    (RETRYING, ("up_for_retry", "up_for_reschedule")),
    ("running", ("running", "restarting")),
    ("waiting", ("deferred",)),
    ("about to start", ("queued", "scheduled")),
)
ENDED = ("done", "failed", "skipped", "not finished")
ANSWER_AFTER_S = 6.0
"""A question is not answered by a program before this: Airflow 3.3's scheduler fails a task whose answer comes before it has read
that the worker paused it (seen at 0.5 s: "finished with state success, but the task instance's state attribute is queued")."""


@dataclass(frozen=True)
class Stage:
    """A task group of the run, or a task outside of any group."""

    name: str
    state: str
    task: str
    """The task that gives the state, such as the one that runs."""
    is_group: bool
    began: datetime | None
    ended: datetime | None

    def seconds(self, now: datetime) -> float:
        return ((self.ended or now) - self.began).total_seconds() if self.began else 0.0

    def line(self, address: str, now: datetime) -> str:
        detail = f" {self.task}" if self.is_group and self.state not in ENDED else ""
        return f"{self.name:14} {self.state + detail:34} {duration(self.seconds(now)):>8}  {address}"


def stages(instances: Sequence[TaskInstance]) -> list[Stage]:
    """The stages that have begun, in the order in which they did."""
    groups: dict[str, list[TaskInstance]] = {}
    for instance in instances:
        groups.setdefault(instance["task_id"].partition(".")[0], []).append(instance)
    found = [_stage(name, members) for name, members in groups.items()]
    begun = [stage for stage in found if stage is not None]
    return sorted(begun, key=lambda stage: stage.began or datetime.max.replace(tzinfo=UTC))


def _stage(name: str, members: Sequence[TaskInstance]) -> Stage | None:
    states = [instance.get("state") for instance in members]
    if all(state in (None, "upstream_failed", "removed") for state in states):
        return None
    state, task = _state(members, states)
    begins = [moment for i in members if (moment := parse_time(i.get("start_date")))]
    ends = [moment for i in members if (moment := parse_time(i.get("end_date")))]
    if state != "skipped" and not begins:
        return None  # nothing of it ran yet
    is_group = any("." in instance["task_id"] for instance in members)
    return Stage(name, state, task, is_group, min(begins, default=None), max(ends, default=None) if state in ENDED else None)


def _state(members: Sequence[TaskInstance], states: Sequence[str | None]) -> tuple[str, str]:
    for said, wanted in _RANKED:
        for instance in members:
            if instance.get("state") in wanted:
                return said, instance["task_id"].rpartition(".")[2]
    if "upstream_failed" in states:
        return "not finished", ""
    if all(state == "skipped" for state in states):
        return "skipped", ""
    if all(state in ("success", "skipped", "removed") for state in states):
        return "done", ""
    return "running", ""  # between two of its tasks


def parse_time(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value.replace("Z", "+00:00")) if value else None


def seconds_since(moment: str) -> float:
    """Since a moment as Airflow's API writes it."""
    return (datetime.now(UTC) - datetime.fromisoformat(moment.replace("Z", "+00:00"))).total_seconds()


def duration(seconds: float) -> str:
    """0 to 59 as `12 s`, from a minute on as `3:05 min`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d} min"


def run_address(base: str, dag_id: str, run_id: str) -> str:
    return f"{base}/dags/{dag_id}/runs/{quote(run_id, safe='')}"


def stage_address(run: str, stage: Stage) -> str:
    return f"{run}/tasks/group/{stage.name}" if stage.is_group else f"{run}/tasks/{stage.name}"


def answer_address(run: str, task_id: str, map_index: int) -> str:
    """The page on which a person answers."""
    mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
    return f"{run}/tasks/{task_id}{mapped}/required_actions"


def first_failure(instances: Sequence[TaskInstance]) -> TaskInstance | None:
    """The task whose failure came first: what failed after it may only follow from it."""
    failed = [i for i in instances if i.get("state") == "failed"]
    return min(failed, key=lambda i: i.get("end_date") or "~", default=None)


def log_lines(content: Any, count: int = 15) -> list[str]:
    """The last lines of a task's log, from the API's structured events or its plain text."""
    if isinstance(content, str):
        return content.splitlines()[-count:]
    lines: list[str] = []
    for event in content or []:
        text = event if isinstance(event, str) else str(event.get("event", ""))
        errors = [] if isinstance(event, str) else event.get("error_detail") or []
        lines += text.splitlines()
        lines += [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in errors]
    return [line for line in lines if line.strip() and not line.startswith("::")][-count:]
