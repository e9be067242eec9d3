"""A job that waits in a hold and may have run all the same, as its controller was started anew: what it made decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_slurm.errors import JobFailed, Resubmit
from airflow_slurm.receipts import JobEnd, load_store
from airflow_slurm.requests import who
from airflow_slurm.truth.holds import ROLLED_BACK
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.waiting import HELD_AGAIN
from airflow_slurm.work.earlier import settle_hold

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_slurm.work.steps import JobSteps


def done_in_its_hold(task: JobSteps, context: Context, state: dict[str, Any], view: JobView, *, again: bool) -> Any:
    """Its nodes have reported, so nothing of an earlier run is left on them: it made what it should, and is cancelled there, or waits on.

    :param again: nobody holds it: it runs again, as after Slurm's own requeue.
    """
    try:
        result = task.accept(context, state, view)
    except (JobFailed, Resubmit) as error:
        return _not_done(task, context, state, view, error, again)
    # Closed first: to a try that finds the job cancelled, and the submission open, it would look like a person's doing.
    task._close(state, JobEnd("succeeded", view=view, closed_by=who(state["owner"])))
    settle_hold(state, lift=False)
    return result


def _not_done(task: JobSteps, context: Context, state: dict[str, Any], view: JobView, error: Exception, again: bool) -> Any:
    if not again:
        task.log.warning(
            "Job %s is held (%s), and has not made all it should: %s Whoever holds it decides.", view.job_id, view.reason, error
        )
        load_store(state["receipts"], state["receipts_config"]).incident(
            state["key"], int(state["n"]), HELD_AGAIN, {"job_id": view.job_id, "restarts": view.restarts}
        )
        return task._start(context, {"resubmits": state["resubmits"]})
    if (resubmits := int(state["resubmits"]) + 1) > int(state["max_resubmits"]):
        words = f"{view.describe()}: its controller brought it back {resubmits} times in one try of the task."
        task._close(state, JobEnd("failed", ROLLED_BACK, words, view, who(state["owner"])))
        settle_hold(state, lift=False)  # whoever lifted it later would start it beside its successor
        raise JobFailed(words, cause=ROLLED_BACK) from error
    task.log.warning("The controller lost the run of job %s, and it did not make all it should: %s It runs again.", view.job_id, error)
    settle_hold(state, lift=True)
    return task._start(context, {"resubmits": resubmits})
