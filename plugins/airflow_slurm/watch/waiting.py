"""What whoever waits for a job has to know, as a value that travels as JSON, and when something has to be decided."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from airflow_slurm.receipts import Owner, ReceiptStore, load_store
from airflow_slurm.slurm.reasons import explain
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.holds import NODES_REPORT_WITHIN_S
from airflow_slurm.truth.reconcile import DEFAULT_GRACES, NO_ACCOUNTING, Graces
from airflow_slurm.truth.view import JobView

#: Status, and incident, of a job that somebody holds and whose controller may have lost a run of it.
HELD_AGAIN = "held_again"
#: In how many looks in a row a reason that never clears has to be seen.
LOOKS_TO_BELIEVE = 3
#: For so long past the task's time a job that is about to end may do so, in seconds: longer than any doubt about its end lasts.
ENDING_GRACE_S = 600.0


@dataclass(frozen=True)
class Wait:
    """Everything a trigger has to know, as JSON. Times are seconds; ``since`` and ``submitted_at`` since the epoch.

    :ivar receipts: dotted path of the receipt store; empty for a job of somebody else, of which nothing is kept.
    :ivar foreign: the job may be another user's.
    :ivar array: of an array, the numbers of its tasks, such as ``0-3,7%2``.
    :ivar max_unknown_s: how long an outcome may stay unknown before a person is called.
    :ivar max_wait_s: how long a job may wait for its first start; None for ever.
    :ivar hold_grace_s: how long a job that a controller brought back in its first hold is left alone: see :mod:`airflow_slurm.truth.holds`.
    :ivar return_grace_s: how long Slurm may take to bring back a job that it lost: see :class:`airflow_slurm.truth.reconcile.Graces`.
    :ivar returns: whether Slurm may bring it back at all; False only if it was submitted so that it can't.
    :ivar deadline: when the task's ``execution_timeout`` is over, in seconds since the epoch: Airflow holds it only while a worker is busy.
    :ivar queued_at: when the job was submitted by the cluster's own clock; None if nobody knows.
    :ivar exits: exit codes, as text, of the batch script itself, with the cause of each: see :func:`airflow_slurm.slurm.script.own_exits`.
    :ivar page: address of the page that shows all of its output.
    :ivar stop: how the job is ended, as :class:`airflow_slurm.work.stop.StopPolicy` in JSON.
    :ivar lines: a file of lines to hand over while the job runs, as :class:`airflow_slurm.watch.lines.Lines` in JSON; empty for none.
    """

    key: str
    n: int
    job_id: str
    job_name: str
    since: float
    owner: Owner
    receipts: str
    receipts_config: dict[str, Any]
    cluster: str | None = None
    submitted_at: float | None = None
    log_path: str | None = None
    follow_log: bool = True
    max_unknown_s: float = 3600.0
    max_wait_s: float | None = None
    stop: dict[str, Any] = field(default_factory=dict)
    array: str | None = None
    foreign: bool = False
    deadline: float | None = None
    hold_grace_s: float = NODES_REPORT_WITHIN_S
    return_grace_s: float = DEFAULT_GRACES.return_grace_s
    queued_at: float | None = None
    exits: dict[str, str] = field(default_factory=dict)
    page: str = ""
    returns: bool = True
    lines: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Wait:
        """The value that :func:`dataclasses.asdict` made; fields of a newer version are passed over."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: item for name, item in value.items() if name in known})

    def store(self) -> ReceiptStore:
        """The receipt store."""
        return load_store(self.receipts, self.receipts_config)

    @property
    def graces(self) -> Graces:
        """How long each kind of doubt is waited for."""
        return Graces(return_grace_s=self.return_grace_s, returns=self.returns)


def due(view: JobView, wait: Wait, now: float | None = None) -> str | None:
    """What has to be decided about a job now; None to wait on."""
    now = time.time() if now is None else now
    if view.ended:
        return "ended"
    if view.phase is Phase.UNKNOWN:
        if view.cause == NO_ACCOUNTING or (view.unknown_since is not None and now - view.unknown_since >= wait.max_unknown_s):
            return "unknown"
        return None
    # What has left the queue has ended: how, accounting will say. Only a job that stays like that, such as one that Slurm can't clean up, counts.
    grace_s = ENDING_GRACE_S if view.phase is Phase.ENDING else 0.0
    if wait.deadline is not None and now >= wait.deadline + grace_s:
        return "timed_out"
    if never_starts(view, now):
        return "never_starts"
    waited = now - (wait.submitted_at or wait.since)
    if view.phase is Phase.WAITING and view.restarts == 0 and wait.max_wait_s is not None and waited >= wait.max_wait_s:
        return "waited_too_long"
    return None


def never_starts(view: JobView, now: float) -> bool:
    """Whether a job waits for a reason that will not go away: seen once and confirmed twice, as a reason can flicker."""
    reason = explain(view.reason)
    confirmed = view.reason_looks >= LOOKS_TO_BELIEVE and now - (view.reason_since or now) >= reason.confirm_s
    return view.phase is Phase.WAITING and reason.hopeless and confirmed


def due_of_tasks(views: Iterable[JobView], wait: Wait, now: float) -> str | None:
    """The same for an array: it has ended when all its tasks have, and its time is over while any of them could still be given up, whatever
    is unknown of others. It is unknown when nothing else is left to wait for. It has waited too long when nothing of it runs, and none of its
    tasks has started, or ended, for so long; it never starts when that is true of all that are left."""
    views = list(views)
    found = {due(view, wait, now) for view in views}
    still_open = found - {"ended"}
    if not still_open:
        return "ended"
    if "timed_out" in still_open:
        return "timed_out"
    # What stays unknown stops nobody from deciding about the others.
    left = still_open - {"unknown"} or still_open
    if None in left:
        return None
    if len(left) == 1 and left != {"waited_too_long"}:
        return left.pop()
    # All that are left wait for their start: since the submission, or since the last of the others ended.
    since = max((view.end_time for view in views if view.ended and view.end_time is not None), default=wait.since)
    return "waited_too_long" if now - since >= (wait.max_wait_s or math.inf) else None


def as_json(wait: Wait) -> dict[str, Any]:
    """The trigger's argument."""
    return asdict(wait)
