"""A worker may die after it accepted a job and before Airflow learnt of it: its retry takes that job and runs nothing again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_slurm.receipts import history_of
from airflow_slurm.requests import JobRequest, is_other_work
from airflow_slurm.truth.view import JobView
from airflow_slurm.work.submit import Submitted

if TYPE_CHECKING:
    from airflow.sdk import Context

#: In what a task keeps about its work: in which round of tries it claimed it.
ROUND = "max_tries"


def round_of(context: Context) -> dict[str, Any]:
    """Which round of tries this is: clearing a task raises its highest number of tries, a retry does not."""
    most = getattr(context["ti"], ROUND, None)
    return {ROUND: most} if isinstance(most, int) else {}


def accepted_before(context: Context, previous: Any, request: JobRequest) -> tuple[Submitted, JobView] | None:
    """The submission that this task claimed in this round of tries, with the last view of its job, if it was closed as succeeded and
    none came after it.

    :param previous: what the task keeps about the work that it claimed last.
    """
    now = round_of(context)
    if not now or not isinstance(previous, Mapping) or previous.get(ROUND) != now[ROUND] or is_other_work(previous, request):
        return None
    last = next(reversed(history_of(request.store(), request.key)), None)
    if last is None or last.n != previous.get("n") or last.end is None or last.end.outcome != "succeeded":
        return None
    if last.receipt is None or last.end.view is None:
        return None
    return Submitted(last.n, last.receipt, last.since, adopted=True), last.end.view
