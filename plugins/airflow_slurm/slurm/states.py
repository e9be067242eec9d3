"""All job states of Slurm 22.05 to 24.11 in one table: phase, cause, and whether another try makes sense.

The names are those of ``squeue`` and ``sacct`` (manual pages of both, section JOB STATE CODES). A state that is not in
the table is *unknown*: it is neither success nor failure, and nothing is submitted because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a state means for whoever waits."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether the job has ended for good."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.LOST)


@dataclass(frozen=True)
class StateInfo:
    """One row of the table.

    :ivar phase: the phase, if this state is the job's last word.
    :ivar cause: one word for records and messages; empty while nothing went wrong.
    :ivar retryable: whether the same request may end better another time.
    :ivar may_return: Slurm itself may put the job back into the queue under the same id.
    """

    phase: Phase
    cause: str = ""
    retryable: bool = False
    may_return: bool = False


TABLE: dict[str, StateInfo] = {
    "PENDING": StateInfo(Phase.WAITING),
    "CONFIGURING": StateInfo(Phase.WAITING),
    "POWER_UP_NODE": StateInfo(Phase.WAITING),
    "RESV_DEL_HOLD": StateInfo(Phase.WAITING, "reservation_deleted"),
    "REQUEUE_FED": StateInfo(Phase.WAITING),
    "REQUEUE_HOLD": StateInfo(Phase.WAITING, "requeue_hold"),
    "REQUEUED": StateInfo(Phase.LOST, "requeued", retryable=True, may_return=True),
    "SPECIAL_EXIT": StateInfo(Phase.WAITING, "special_exit"),
    "RUNNING": StateInfo(Phase.RUNNING),
    "SUSPENDED": StateInfo(Phase.RUNNING, "suspended"),
    "STOPPED": StateInfo(Phase.RUNNING, "stopped"),
    "RESIZING": StateInfo(Phase.RUNNING),
    "SIGNALING": StateInfo(Phase.RUNNING),
    "LAUNCH_FAILED": StateInfo(Phase.LOST, "launch_failed", retryable=True, may_return=True),
    "RECONFIG_FAIL": StateInfo(Phase.LOST, "launch_failed", retryable=True, may_return=True),
    "UPDATE_DB": StateInfo(Phase.ENDING),
    "COMPLETING": StateInfo(Phase.ENDING),
    "STAGE_OUT": StateInfo(Phase.ENDING),
    "EXPEDITING": StateInfo(Phase.WAITING),
    "COMPLETED": StateInfo(Phase.SUCCEEDED),
    "FAILED": StateInfo(Phase.FAILED, "failed", retryable=True),
    "TIMEOUT": StateInfo(Phase.FAILED, "time_limit", retryable=True),
    "DEADLINE": StateInfo(Phase.FAILED, "deadline"),
    "OUT_OF_MEMORY": StateInfo(Phase.FAILED, "out_of_memory"),
    "CANCELLED": StateInfo(Phase.FAILED, "cancelled"),
    "REVOKED": StateInfo(Phase.FAILED, "revoked"),
    "PREEMPTED": StateInfo(Phase.LOST, "preempted", retryable=True, may_return=True),
    "NODE_FAIL": StateInfo(Phase.LOST, "node_fail", retryable=True, may_return=True),
    "BOOT_FAIL": StateInfo(Phase.LOST, "boot_fail", retryable=True, may_return=True),
}

_UNKNOWN = StateInfo(Phase.UNKNOWN, "unknown_state")


@dataclass(frozen=True)
class State:
    """A state as Slurm wrote it, split into the word, the table's row and the user who cancelled, where it says so."""

    name: str
    info: StateInfo
    cancelled_by_uid: int | None = None


def parse_state(text: str) -> State:
    """Read a state field in any of the forms Slurm prints.

    ``CANCELLED by 51234`` (sacct names the user), ``CANCELLED+`` (cut to a column's width), ``NODE_FAI`` (cut without a
    mark), ``COMPLETED,COMPLETING`` or ``RUNNING,SIGNALING`` (24.11 lists flags after the base state). A transitional
    flag after a base state wins over it: a job that is ``COMPLETED,COMPLETING`` is still ending.
    """
    words = [word.strip() for word in text.replace("|", ",").split(",") if word.strip()]
    if not words:
        return State("", _UNKNOWN)
    flags = [_resolve(word) for word in words[1:]]
    for name in flags:
        if name in ("COMPLETING", "STAGE_OUT", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"):
            return State(name, TABLE[name])
    base, _, uid = words[0].partition(" by ")
    name = _resolve(base)
    return State(name, TABLE.get(name, _UNKNOWN), int(uid) if uid.strip().isdigit() else None)


def _resolve(word: str) -> str:
    """The full name of a possibly truncated state; the word itself where none or several fit."""
    bare = word.strip().rstrip("+").upper()
    if bare in TABLE:
        return bare
    fits = [name for name in TABLE if len(bare) >= 4 and name.startswith(bare)]
    return fits[0] if len(fits) == 1 else bare
