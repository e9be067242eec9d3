"""What is known of one job at one moment: a plain value that travels as JSON through triggers, events and stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from airflow_slurm.slurm.reasons import in_words
from airflow_slurm.slurm.states import Phase, parse_state


@dataclass(frozen=True)
class Incarnation:
    """One run of a job id: a requeued job keeps its id and gets another of these. Times are seconds since the epoch.

    :ivar gpus: that it was given; None where accounting doesn't say.
    """

    restart: int
    state: str
    start_time: float | None = None
    end_time: float | None = None
    elapsed_s: float | None = None
    nodes: int = 0
    node_list: str = ""
    gpus: int | None = None

    @property
    def gpu_seconds(self) -> float | None:
        """GPUs times seconds; None where either is not known."""
        return None if self.gpus is None or self.elapsed_s is None else self.gpus * self.elapsed_s

    @property
    def lost(self) -> bool:
        """Whether Slurm ended the run before the program had: preempted, put back, its node failed, or its time limit was over."""
        state = parse_state(self.state)
        return state.info.phase is Phase.LOST or state.name == "TIMEOUT"


@dataclass(frozen=True)
class Change:
    """A state in which the job was first seen at a time, in seconds since the epoch."""

    at: float
    state: str
    reason: str = ""
    restarts: int = 0
    node_list: str = ""


#: Changes that a view keeps: the newest.
#: Seconds by which an estimated start has to move to be news.
ESTIMATE_STEP_S = 600.0
KEPT_CHANGES = 50


@dataclass(frozen=True)
class JobView:
    """The newest incarnation of a job, judged from queue and accounting together.

    :ivar phase: see :class:`airflow_slurm.slurm.states.Phase`; ``unknown`` is neither success nor failure.
    :ivar state: Slurm's own word, such as ``RUNNING``; the last one seen while nothing newer is known.
    :ivar reason: Slurm's reason for waiting, or for the end.
    :ivar cause: one word for what went wrong, from the table of states; for ``unknown`` why nothing is known.
    :ivar retryable: whether the same request may end better another time.
    :ivar exit_code: of the batch script; None until it ended, or where Slurm doesn't say.
    :ivar restarts: how often Slurm has put the job back; counts incarnations from 0.
    :ivar estimated_start: when the controller thinks a waiting job will start; None if it doesn't say.
    :ivar reason_looks: in how many looks in a row the job has been seen waiting for this reason, and ``reason_since``: since
        when (seconds since the epoch).
    :ivar incarnations: all runs that accounting knows of, oldest first; filled when the job left the queue.
    :ivar history: the states it was seen in, oldest first; the newest 50.
    :ivar tasks: of an array: its task numbers by state, such as ``{"COMPLETED": "0-3", "RUNNING": "4,6"}``.
    :ivar doubtful: of one that ended: this end may be no more than what a restarted controller makes of a run that it lost.
    :ivar log_offset: up to which byte its output is in the task's log.
    :ivar missing_since: since when the job has not been where it should be; None while all is well.
    :ivar unknown_since: since when the truth about it can't be known; None while it is.
    :ivar looked_at: when somebody who waits for it looked last, whatever that showed.
    :ivar put_back_at: when Slurm put it back last, by the cluster's clock; None if it never did, or nobody saw it.
    """

    job_id: str
    cluster: str | None = None
    phase: Phase = Phase.WAITING
    state: str = ""
    reason: str = ""
    cause: str = ""
    retryable: bool = False
    exit_code: int | None = None
    signal: int | None = None
    nodes: int = 0
    node_list: str = ""
    restarts: int = 0
    submit_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    elapsed_s: float | None = None
    estimated_start: float | None = None
    cancelled_by_uid: int | None = None
    incarnations: tuple[Incarnation, ...] = ()
    observed_at: float | None = None
    missing_since: float | None = None
    unknown_since: float | None = None
    history: tuple[Change, ...] = ()
    tasks: Mapping[str, str] = field(default_factory=dict)
    reason_looks: int = 0
    reason_since: float | None = None
    doubtful: bool = False
    log_offset: int = 0
    looked_at: float | None = None
    put_back_at: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the job has ended for good, well or not."""
        return self.phase.ended

    @property
    def succeeded(self) -> bool:
        """Whether Slurm says COMPLETED. That alone is no success of a task: see the operator's ``accept``."""
        return self.phase is Phase.SUCCEEDED

    def describe(self) -> str:
        """One line for a log."""
        parts = [f"job {self.job_id}", self.state or "not seen yet"]
        if self.reason and self.reason != "None":
            parts.append(f"({self.reason})")
        if self.estimated_start is not None and self.phase is Phase.WAITING:
            parts.append(f"expected to start {datetime.fromtimestamp(self.estimated_start, UTC):%Y-%m-%d %H:%M} UTC")
        if self.node_list:
            parts.append(f"on {self.node_list}")
        if self.restarts:
            parts.append(f"restart {self.restarts}")
        if self.exit_code is not None and self.ended:
            parts.append(f"exit {self.exit_code}" + (f" signal {self.signal}" if self.signal else ""))
        if self.doubtful:
            parts.append("(a restarted controller's word: it had lost the run)")
        if self.tasks:
            parts.append("tasks: " + ", ".join(f"{state} {indices}" for state, indices in self.tasks.items()))
        if self.phase is Phase.UNKNOWN:
            parts.append(f"outcome unknown: {self.cause}")
        return " ".join(parts)

    def explained(self) -> str:
        """The same, with what the reason of a waiting job means and whether it goes away."""
        return self.describe() + (f": {self.reason_in_words}" if self.reason_in_words else "")

    @property
    def reason_in_words(self) -> str:
        """What the reason of a waiting job means and whether it goes away; empty for a job that doesn't wait."""
        return in_words(self.reason) if self.phase is Phase.WAITING else ""

    def differs(self, told: JobView) -> bool:
        """Whether a person who was told the other would want to hear of this one.

        The controller's estimate of a start moves with every look: less than ten minutes are no news.
        """
        mine = (self.phase, self.state, self.reason, self.restarts, self.tasks)
        if mine != (told.phase, told.state, told.reason, told.restarts, told.tasks):
            return True
        old, new = told.estimated_start, self.estimated_start
        if old is None or new is None:
            return self.phase is Phase.WAITING and old is not new
        return self.phase is Phase.WAITING and abs(new - old) >= ESTIMATE_STEP_S

    def remembering(self, before: JobView) -> JobView:
        """This view with the history of an earlier one, and itself added if it differs."""
        if (self.phase, self.state, self.reason, self.restarts) == (before.phase, before.state, before.reason, before.restarts):
            return replace(self, history=before.history)
        last = before.history[-1] if before.history else None
        if last is not None and (last.state, last.reason, last.restarts) == (self.state or self.phase.value, self.reason, self.restarts):
            return replace(self, history=before.history)
        change = Change(self.observed_at or 0.0, self.state or self.phase.value, self.reason, self.restarts, self.node_list)
        return replace(self, history=(*before.history, change)[-KEPT_CHANGES:])

    def taking_up(self, before: JobView, at: float) -> JobView:
        """The first view of a process that begins to look, at a time, given the last of an earlier one: what that waited for goes on.

        An end is judged anew, since nobody acted on it. Of a doubt only the time counts in which somebody looked.
        """
        if before.ended:
            return replace(self, history=before.history, log_offset=before.log_offset)
        # A view of an earlier version does not say when the last look was: not before anything that it shows.
        looks = (before.looked_at,) if before.looked_at is not None else (before.observed_at, before.missing_since, before.unknown_since)
        unwatched_s = max(0.0, at - max((look for look in looks if look is not None), default=at))
        return replace(
            before,
            job_id=self.job_id,
            cluster=self.cluster,
            submit_time=_known(self.submit_time, before.submit_time),
            missing_since=_later(before.missing_since, unwatched_s),
            unknown_since=_later(before.unknown_since, unwatched_s),
        )

    @property
    def lost_gpu_seconds(self) -> float | None:
        """GPUs times seconds of the runs that Slurm ended before the program had; None where none was, or nobody knows their GPUs."""
        lost = [run.gpu_seconds for run in self.incarnations if run.lost and run.gpu_seconds is not None]
        return sum(lost) if lost else None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` takes back."""
        lists = {"incarnations": [asdict(i) for i in self.incarnations], "history": [asdict(c) for c in self.history]}
        return asdict(self) | {"phase": self.phase.value} | lists

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobView:
        """The view that was written; fields of a newer version are passed over."""
        kept = _of(cls, value)
        kept["phase"] = Phase(kept["phase"])
        kept["incarnations"] = tuple(Incarnation(**_of(Incarnation, i)) for i in kept.get("incarnations", ()))
        kept["history"] = tuple(Change(**_of(Change, c)) for c in kept.get("history", ()))
        return cls(**kept)


def _known(first: float | None, second: float | None) -> float | None:
    return second if first is None else first


def _later(since: float | None, by_s: float) -> float | None:
    return None if since is None else since + by_s


def _of(cls: type[JobView | Incarnation | Change], value: Mapping[str, Any]) -> dict[str, Any]:
    known = {f.name for f in fields(cls)}
    return {name: item for name, item in value.items() if name in known}
