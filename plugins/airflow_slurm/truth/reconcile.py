"""From queue, accounting and what was known before to one truth about a job. Pure: no clock, no Slurm.

- A job in the queue is what the queue says, until that says it ended.
- Ended for good is believed at once. States after which Slurm itself may bring the job back (preempted, node failure)
  are believed only when it did not come back for ``return_grace_s``: accounting keeps showing the old end first. A job that the queue
  itself shows as preempted is not being put back (that shows it as waiting in the same moment), nor is one that was submitted so.
- A job that left the queue is looked up in accounting; the newest incarnation counts. Accounting lags, so a job that
  accounting still calls running, or doesn't know, is *ending* for ``missing_grace_s`` and then *unknown*.
- Whoever could not be asked says nothing: the last view stays, and after the grace the phase is *unknown*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase, parse_state
from airflow_slurm.truth.view import Incarnation, JobView

#: ``JobView.cause`` of a job that a controller forgot when it died, before it had run.
FORGOTTEN = "forgotten"
#: The reason with which Slurm holds a job that a node would not, or could not, start.
LAUNCH_FAILED_HELD = "launch failed requeued held"
LAUNCH_FAILED = "launch_failed"
_PUSHED_OUT = "PREEMPTED"
#: ``JobView.cause`` of a job that left the queue of a site that keeps no accounting: there is nobody left to ask.
NO_ACCOUNTING = "no_accounting"


@dataclass(frozen=True)
class Graces:
    """How long each kind of doubt is waited for, in seconds.

    :ivar return_grace_s: for a preempted job, or one whose node failed, to come back into the queue. Slurm waits
        ``cred_expire`` (120 s by default) before it lets a requeued job start, but queues it at once.
    :ivar missing_grace_s: for accounting to catch up with a job that left the queue (seen: 10 s after slurmdbd was down).
    :ivar unreachable_grace_s: for a controller that does not answer, before the phase is called unknown.
    :ivar returns: whether Slurm may put the job back: False for one with ``--no-requeue``.
    """

    return_grace_s: float = 300.0
    missing_grace_s: float = 120.0
    unreachable_grace_s: float = 120.0
    returns: bool = True


DEFAULT_GRACES = Graces()


@dataclass(frozen=True)
class Observation:
    """What one look at the cluster gave for one job.

    :ivar queue: its row; None if it isn't in the queue.
    :ivar queue_read: whether the queue could be read at all.
    :ivar accounting: its rows, oldest incarnation first; None if accounting wasn't asked or didn't answer.
    :ivar accounting_kept: False at a site that keeps no accounting.
    :ivar beside: ids of the other jobs of its name that are queued or run, where that was looked at.
    """

    at: float
    queue: QueueRow | None = None
    queue_read: bool = True
    accounting: Sequence[AccountingRow] | None = None
    accounting_kept: bool = True
    trouble: str = ""
    beside: tuple[str, ...] = ()


def judge(before: JobView, seen: Observation, graces: Graces = DEFAULT_GRACES) -> JobView:
    """The view after an observation.

    A view that has ended stays as it is.
    """
    if before.ended:
        return before
    if not seen.queue_read:
        return _unasked(before, seen, graces)
    if seen.queue is not None:
        return _in_queue(before, seen, seen.queue, graces)
    if not seen.accounting_kept:
        return _missing(before, seen, graces, NO_ACCOUNTING)
    if seen.accounting is None:
        return _missing(before, seen, graces, "accounting does not answer" + (f": {seen.trouble}" if seen.trouble else ""))
    return _in_accounting(before, seen, seen.accounting, graces)


def wants_accounting(row: QueueRow | None) -> bool:
    """Whether a job's queue row (None: not there) leaves something that only accounting can tell."""
    return row is None or row.state.info.phase.ended


def may_be_forgotten(view: JobView, seen: Observation) -> bool:
    """Whether all that is known fits a job that its controller lost before it ran, or before it ran again: both were asked, past the grace, and
    nobody has seen a run of it since its submission, or since Slurm put it back."""
    if view.phase is not Phase.UNKNOWN or not seen.queue_read or seen.queue is not None or not seen.accounting_kept:
        return False
    rows = seen.accounting
    if rows is None:
        return False
    now = max(view.restarts, _put_back(rows))
    ran = [change.restarts for change in view.history if not _waits(change.state)] + [run.restart for run in view.incarnations]
    if view.start_time is not None:
        ran.append(view.restarts)
    later = [row for number, row in enumerate(rows) if number >= now or not _before(row, view.put_back_at)]
    return all(number < now for number in ran) and all(row.state.info.phase is Phase.WAITING for row in later)


def still_waits(rows: Sequence[AccountingRow]) -> bool:
    """Whether accounting knows of no run of a job, or of none since Slurm put it back."""
    return all(row.state.info.phase is Phase.WAITING for row in rows[_put_back(rows) :])


def _put_back(rows: Sequence[AccountingRow]) -> int:
    """How often Slurm has put a job back of which accounting says that it waits; 0 where it does not say so."""
    waits = bool(rows) and rows[-1].state.info.phase is Phase.WAITING and rows[-1].start_time is None
    return len(rows) - 1 if waits and all(row.state.info.may_return for row in rows[:-1]) else 0


def _waits(state: str) -> bool:
    # Where Slurm had no word yet, a history holds the phase's. A job that is being put back is shown as COMPLETING with its next number.
    return state in (*Phase, "") or parse_state(state).info.phase in (Phase.WAITING, Phase.ENDING)


def _before(row: AccountingRow, put_back_at: float | None) -> bool:
    """Whether a run that accounting knows is of before a job was put back: with that, Slurm gives it a new time of submission."""
    if row.state.info.may_return:
        return True
    return put_back_at is not None and row.submit_time is not None and row.submit_time < put_back_at


def forgotten(view: JobView, booted_at: float | None, submitted_at: float | None) -> JobView:
    """A job that nobody knows is lost for good if its controller was started anew after the submission; else nothing changes."""
    if not started_anew(booted_at, submitted_at):
        return view
    return replace(view, phase=Phase.LOST, cause=FORGOTTEN, retryable=True, unknown_since=None)


def started_anew(booted_at: float | None, submitted_at: float | None) -> bool:
    """Whether a controller was started after a submission; a time that nobody knows is no proof, nor are two within one second.

    :param submitted_at: by the cluster's clock, like the other: a worker's may be minutes away from it.
    """
    return booted_at is not None and submitted_at is not None and booted_at > submitted_at


def _in_queue(before: JobView, seen: Observation, row: QueueRow, graces: Graces) -> JobView:
    info = row.state.info
    view = replace(
        before,
        phase=info.phase,
        state=row.state.name,
        reason=row.reason,
        cause=info.cause,
        retryable=info.retryable,
        nodes=row.nodes,
        node_list=row.node_list,
        restarts=row.restarts,
        submit_time=_first(before.submit_time, row.submit_time),
        put_back_at=row.submit_time if row.restarts and info.phase is Phase.WAITING else before.put_back_at,
        start_time=None if info.phase is Phase.WAITING else row.start_time,
        estimated_start=row.start_time if info.phase is Phase.WAITING else None,
        observed_at=seen.at,
        missing_since=None,
        unknown_since=None,
        **_reason_seen(before, row, seen.at),
    )
    if info.phase is Phase.WAITING and row.reason == LAUNCH_FAILED_HELD:
        view = replace(view, cause=LAUNCH_FAILED, retryable=True)  # the site's doing, and no word about the program
    if info.phase is Phase.UNKNOWN:
        return replace(view, unknown_since=_first(before.unknown_since, seen.at))
    if not info.phase.ended:
        return replace(view, exit_code=None, signal=None, end_time=None, elapsed_s=None)
    view = replace(
        view,
        exit_code=row.exit_code,
        signal=row.signal,
        end_time=row.end_time,
        elapsed_s=_span(row.start_time, row.end_time),
        cancelled_by_uid=_cancelled_by(row, seen.accounting or ()),
    )
    view = _with_incarnations(view, seen.accounting or ())
    if row.state.name == _PUSHED_OUT and before.state == _PUSHED_OUT and before.missing_since is not None:
        return replace(view, missing_since=None)  # in two looks in a row
    return _until_it_stays_away(before, view, seen.at, graces) if info.may_return else view


def _cancelled_by(row: QueueRow, recorded: Sequence[AccountingRow]) -> int | None:
    """Only accounting names who it was."""
    if row.state.name != "CANCELLED" or not recorded:
        return None
    return recorded[-1].state.cancelled_by_uid


def _reason_seen(before: JobView, row: QueueRow, now: float) -> dict[str, Any]:
    """Since when, and how often in a row, a job has been seen waiting for one reason."""
    if row.state.info.phase is not Phase.WAITING:
        return {"reason_looks": 0, "reason_since": None}
    same = before.reason_looks > 0 and before.reason == row.reason and before.restarts == row.restarts
    return {"reason_looks": before.reason_looks + 1 if same else 1, "reason_since": before.reason_since if same else now}


def _in_accounting(before: JobView, seen: Observation, rows: Sequence[AccountingRow], graces: Graces) -> JobView:
    if not rows:
        return _missing(before, seen, graces, "neither queue nor accounting knows it")
    newest = rows[-1]
    info = newest.state.info
    if not info.phase.ended:
        told = before
        if all(run.restart < len(rows) - 1 for run in before.incarnations):
            told = replace(told, incarnations=_earlier(rows, len(rows) - 1))
        if _put_back(rows):
            told = replace(told, put_back_at=newest.submit_time)
        return _missing(told, seen, graces, f"it left the queue, and accounting still says {newest.state.name}")
    view = replace(
        before,
        phase=info.phase,
        state=newest.state.name,
        reason="",
        cause=info.cause,
        retryable=info.retryable,
        exit_code=newest.exit_code,
        signal=newest.signal,
        nodes=newest.nodes,
        node_list=newest.node_list,
        restarts=max(before.restarts, len(rows) - 1),
        submit_time=_first(before.submit_time, newest.submit_time),
        start_time=newest.start_time,
        estimated_start=None,
        end_time=newest.end_time,
        elapsed_s=newest.elapsed_s,
        cancelled_by_uid=newest.state.cancelled_by_uid,
        observed_at=seen.at,
        unknown_since=None,
    )
    view = _with_incarnations(view, rows)
    if info.may_return or _older_than_known(before, rows):
        return _until_it_stays_away(before, view, seen.at, graces)
    return replace(view, missing_since=None)


def _older_than_known(before: JobView, rows: Sequence[AccountingRow]) -> bool:
    """Whether accounting has not heard yet of the incarnation that the queue showed."""
    return before.restarts > len(rows) - 1


def _until_it_stays_away(before: JobView, view: JobView, now: float, graces: Graces) -> JobView:
    since = _first(before.missing_since, now)
    stays = view.state == _PUSHED_OUT and not graces.returns and not view.restarts
    if stays or now - since >= graces.return_grace_s:
        return replace(view, missing_since=None)
    return replace(view, phase=Phase.ENDING, missing_since=since)


def _missing(before: JobView, seen: Observation, graces: Graces, why: str) -> JobView:
    since = _first(before.missing_since, seen.at)
    if seen.at - since < graces.missing_grace_s:
        return replace(before, phase=Phase.ENDING, missing_since=since, unknown_since=None, observed_at=seen.at)
    return replace(before, phase=Phase.UNKNOWN, cause=why, missing_since=since, unknown_since=since, observed_at=seen.at)


def _unasked(before: JobView, seen: Observation, graces: Graces) -> JobView:
    since = _first(before.unknown_since, seen.at)
    if seen.at - since < graces.unreachable_grace_s:
        return replace(before, unknown_since=since)
    return replace(before, phase=Phase.UNKNOWN, cause=seen.trouble or "the controller does not answer", unknown_since=since)


def _with_incarnations(view: JobView, rows: Sequence[AccountingRow]) -> JobView:
    """All runs of the job; the newest as the view has it, since accounting may lag behind the queue."""
    gpus = rows[-1].gpus if len(rows) == view.restarts + 1 else None
    newest = Incarnation(view.restarts, view.state, view.start_time, view.end_time, view.elapsed_s, view.nodes, view.node_list, gpus)
    return replace(view, incarnations=(*_earlier(rows, view.restarts), newest))


def _earlier(rows: Sequence[AccountingRow], before: int) -> tuple[Incarnation, ...]:
    """The runs before the one of a number."""
    return tuple(
        Incarnation(number, row.state.name, row.start_time, row.end_time, row.elapsed_s, row.nodes, row.node_list, row.gpus)
        for number, row in enumerate(rows[:before])
    )


Moment = TypeVar("Moment", float, float | None)


def _first(known: float | None, now: Moment) -> float | Moment:
    return now if known is None else known


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
