"""A controller that dies comes back with what it had saved: maybe a job in the very hold that we had lifted, whether it had started or not.

Such a job is left alone for a while, in which the nodes report what they run: what a controller has as waiting it ends there. Lifted
at once, the hold would start the job beside itself, which Slurm refuses as *launch failed requeued held*. After that

- nobody has seen it run, and accounting, asked with its steps, knows of no run: the hold is lifted again;
- it ran, or may have run: only what it made can tell more, and its task decides (:data:`ROLLED_BACK`): the job is done and is cancelled in its
  hold, or it runs again. Of an array, the tasks that ran are cancelled; what made nothing is submitted again as a forgotten one.

A job that runs no more for the first time may be held as well: by Slurm, which could not launch it, or by somebody. After the same while the first
is cancelled there, and lost with that; of the second its task looks at what it made, if the controller was started anew, and else waits for that
person (:class:`airflow_slurm.watch.brought_back.BroughtBack`).

If the release had been saved and the start had not, the controller itself ends the run that it does not know of: see :func:`as_doubted`.

Nothing here costs a command of its own for each job: whether a hold is the first comes with the next look's squeue, a run with its sacct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from airflow_slurm.slurm.parse import AccountingRow, Controller, QueueRow
from airflow_slurm.slurm.states import Phase, parse_state
from airflow_slurm.truth.reconcile import FORGOTTEN, LAUNCH_FAILED_HELD, Observation, started_anew
from airflow_slurm.truth.view import JobView

#: Status and cause of a job that a controller brought back as never started, though it had run or may have.
ROLLED_BACK = "rolled_back"
#: Cause of an unknown outcome: the controller was started anew since the submission and has not got the job, which was seen to run, any more.
GONE = "the controller was started anew and does not know it any more"
#: Ends that Slurm also gives a run which its controller has lost, however that really ended.
MISTAKEN = frozenset({"CANCELLED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
#: Why Slurm drains a node that was to start a job which it runs already.
DUPLICATE = "Duplicate jobid"
#: slurmctld asks all nodes what they run within a third of SlurmdTimeout (100 s by default) of its start, and what it ends there has KillWait (30 s).
NODES_REPORT_WITHIN_S = 150.0
#: Within so many seconds of its start a controller finds that a run is gone from its node: SlurmdTimeout is 300 s by default, and may be set to more.
FINDS_WITHIN_S = 600.0
#: So often a hold is lifted, and so often accounting is asked in vain, before what may have run counts as having run.
LIFTS, QUESTIONS = 3, 3


class Step(Enum):
    """What has to be done about a job now."""

    NOTHING = "nothing"
    LIFT = "lift"
    DECIDE = "decide"


@dataclass
class FirstHold:
    """What one follower remembers of one job, or array, in a hold.

    :ivar grace_s: how long the nodes are given to report, in seconds.
    :ivar asks_hold: whether the next squeue has to tell holds apart. :ivar asks_run: whether the next sacct has to show steps.
    """

    grace_s: float = NODES_REPORT_WITHIN_S
    asks_hold: bool = False
    asks_run: bool = False
    _since: float | None = None
    _somebodys: bool = False
    _lifts: int = LIFTS
    _questions: int = QUESTIONS

    def step(self, row: QueueRow | None, ran: bool | None, at: float) -> Step:
        """After a look in which the queue was read.

        :param row: of the job, if it is in the queue. :param ran: whether it has been seen to run; None if accounting did not answer.
        """
        if row is None or not row.held_by_us:
            self._since, self.asks_hold, self.asks_run, self._somebodys = None, False, False, False
            return Step.NOTHING
        if self._somebodys:
            return Step.NOTHING
        if row.first_hold is False:
            # Held later than at its submission, or waiting for another job as well: it is, or may be, somebody's hold.
            self._somebodys, self.asks_hold, self.asks_run = True, False, False
            return Step.NOTHING
        self._since = at if self._since is None else self._since
        self.asks_hold = True
        if row.first_hold is None or at - self._since < self.grace_s:
            return Step.NOTHING
        return self._settled(ran)

    def _settled(self, ran: bool | None) -> Step:
        if not self.asks_run:
            self.asks_run = True
            return Step.NOTHING
        if ran is None and self._questions:
            self._questions -= 1
            return Step.NOTHING
        if ran is not False:
            return Step.DECIDE
        if not self._lifts:
            return Step.NOTHING
        self._lifts -= 1
        return Step.LIFT


#: Reasons with which a job is held that has run before.
HOLDS = ("JobHeld", "JobHold", "job requeued in held state", LAUNCH_FAILED_HELD)


def has_stood(view: JobView, row: QueueRow | None, at: float, grace_s: float) -> bool:
    """Whether a job that was put back has been held for so long, in one look after the other, that all nodes have reported what they run."""
    if row is None or view.phase is not Phase.WAITING or not row.restarts or not row.reason.startswith(HOLDS):
        return False
    return view.reason_looks > 1 and view.reason_since is not None and at - view.reason_since >= grace_s


def seen_running(view: JobView) -> bool:
    """Whether anybody who looked saw a run of the job."""
    return any(
        change.state not in (*Phase, "") and parse_state(change.state).info.phase not in (Phase.WAITING, Phase.UNKNOWN)
        for change in view.history
    )


def has_run(view: JobView) -> bool:
    """Whether the state in which the queue, or accounting, shows a job now says that it runs or ran."""
    return bool(view.state) and parse_state(view.state).info.phase not in (Phase.WAITING, Phase.UNKNOWN)


def known_to_run(rows: Sequence[AccountingRow] | None, kept: bool) -> bool | None:
    """Whether accounting, asked with steps, knows of a run; None if it was not asked, does not answer, or there is none."""
    if rows is None or not rows or not kept:
        return None
    return any(row.ran for row in rows)


def may_be_gone(view: JobView, seen: Observation) -> bool:
    """Whether a job whose outcome is unknown is one that its controller has not got any more: both were asked and know no better."""
    return view.phase is Phase.UNKNOWN and seen.queue_read and seen.queue is None and seen.accounting is not None and seen.accounting_kept


def as_gone(view: JobView) -> JobView:
    """The same, if the controller was started anew since the submission: nothing of it is left on the nodes once they have reported."""
    return replace(view, cause=GONE)


def may_be_mistaken(view: JobView) -> bool:
    """Whether an end is one that :func:`as_doubted` has to know more about: a job that never had a node has made nothing."""
    return view.ended and not view.doubtful and view.state in MISTAKEN and bool(view.node_list or seen_running(view))


def as_doubted(
    view: JobView, controller: Controller, submitted_at: float | None, reasons: Sequence[str] = (), *, ended_by_us: bool
) -> JobView:
    """The end of a job, marked as doubtful if it may be a restarted controller's mistake; what it made decides then: :func:`output_decides`.

    A controller killed within seconds of a start comes back with the job as waiting, and starts it beside itself: slurmd refuses, and Slurm cancels
    the job and drains the node as *Duplicate jobid* (seen with 22.05); without that word of its node, a cancel is one. One that has the job as running,
    when its node does not any more, says ``NODE_FAIL`` within minutes of its start. Either way the run itself may have ended well.

    A controller that had lost a job may also give its number away again. The later one is refused by the node in the same way, in the second in
    which it starts: nothing of it has run. Refused beside a run of its own, the job is lost unless that made its output.

    Whoever is named as its end is believed: with ``CANCELLED by 1000`` a person cancelled it. Only root and the users of Slurm's daemons are no
    persons here, nor is nobody (``squeue`` names none, and accounting may be late or not kept).

    :param submitted_at: in seconds since the epoch, by the cluster's clock. :param reasons: why its nodes are drained, where :func:`asks_nodes`.
    :param ended_by_us: whether the submission was given up, or is closed.
    """
    if ended_by_us or not may_be_mistaken(view) or _ended_by_somebody(view, controller):
        return view
    restarted, refused = started_anew(controller.booted_at, submitted_at), DUPLICATE in reasons
    view = replace(view, doubtful=restarted and (refused if view.state == "CANCELLED" else _soon_after(controller, view)))
    if not refused or not _at_its_start(view):
        return view
    return replace(view, phase=Phase.LOST, cause="launch_failed" if view.doubtful else FORGOTTEN, retryable=True)


def asks_nodes(view: JobView, controller: Controller, submitted_at: float | None) -> bool:
    """Whether its nodes have to be asked why somebody unnamed cancelled it."""
    unnamed = view.state == "CANCELLED" and bool(nodes_of(view)) and not _ended_by_somebody(view, controller)
    return unnamed and (_at_its_start(view) or started_anew(controller.booted_at, submitted_at))


def nodes_of(view: JobView) -> str:
    """Where it ran, as Slurm lists nodes; empty if nobody saw that."""
    return view.node_list or next((change.node_list for change in reversed(view.history) if change.node_list), "")


def _soon_after(controller: Controller, view: JobView) -> bool:
    """Whether the end is one that the controller found as it started."""
    ended_at = view.end_time or view.observed_at
    return controller.booted_at is not None and ended_at is not None and ended_at - controller.booted_at <= FINDS_WITHIN_S


def _at_its_start(view: JobView) -> bool:
    """Whether a job was ended in the second in which it got its nodes."""
    return bool(view.node_list) and view.elapsed_s is not None and view.elapsed_s <= 1.0


def _ended_by_somebody(view: JobView, controller: Controller) -> bool:
    """Whether accounting names a person as who cancelled the job."""
    return view.cancelled_by_uid is not None and view.cancelled_by_uid not in controller.own_uids


def output_decides(view: JobView) -> bool:
    """Whether Slurm's word about a job's end is none, as its controller lost the run, or the job: then what it was to make, if that is there and
    whole, is the only evidence, and it is a success. Without it, the end stays what Slurm says, and an unknown one unknown."""
    return view.doubtful or view.cause in (ROLLED_BACK, GONE, FORGOTTEN)
