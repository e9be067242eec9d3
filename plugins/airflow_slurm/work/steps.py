"""The operator step by step: submit, wait, take the end, submit again, give up. What is run and what counts as done, a subclass says.

Every step may run in another process: what one has to tell the next travels in the task's state store or with the trigger.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_slurm.errors import (
    JobFailed,
    JobFailedForGood,
    LoginRefused,
    NoConnection,
    OutputUnreadable,
    Resubmit,
    SlurmError,
    SubmissionUncertain,
    SubmitBusy,
    UnknownOutcome,
    Unreachable,
    UnreadableAnswer,
)
from airflow_slurm.hook import SlurmHook
from airflow_slurm.lineage import facts_of, lineage_of
from airflow_slurm.links import keep_links
from airflow_slurm.receipts import Claim, JobEnd, Owner, load_store
from airflow_slurm.requests import Done, JobRequest, deadline_of, is_other_work, owner_of, pointer_to, who
from airflow_slurm.slurm.states import Phase
from airflow_slurm.triggers import SlurmJobTrigger, SubmitLaterTrigger, as_json, first_event
from airflow_slurm.truth.arrays import never_ran
from airflow_slurm.truth.holds import ROLLED_BACK
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.waiting import HELD_AGAIN
from airflow_slurm.work.accepted import accepted_before, round_of
from airflow_slurm.work.earlier import given_up, gives_up, leave_earlier, left_a_log
from airflow_slurm.work.elsewhere import left_open
from airflow_slurm.work.held import done_in_its_hold
from airflow_slurm.work.killed import leave
from airflow_slurm.work.later import pause
from airflow_slurm.work.left import take_up
from airflow_slurm.work.stop import NotEnded
from airflow_slurm.work.submit import Submitted, submit

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Under this name the task's state store keeps which work this task asked for last, over tries and clears.
STATE_KEY = "slurm_submission"
#: So long a job that ended waits for somebody to look at what it made; and so long after Airflow's own alarm a wait in the worker ends.
ACCEPT_WITHIN_S, ALARM_FIRST_S = 3600.0, 60.0
_LATER = (SubmitBusy, SubmissionUncertain, Unreachable, UnreadableAnswer, NotEnded)


class JobSteps(BaseOperator):
    """See the module.

    :ivar slurm_conn_id: the connection. :ivar deferrable: wait in the triggerer. :ivar follow_log: copy the job's output into the task's log.
    """

    slurm_conn_id: str
    deferrable: bool
    follow_log: bool
    #: What this very process claimed and waits for: another process has its own, or none. And whether its task was found to be over.
    _claim: dict[str, Any] | None = None
    _over = False

    # -- what a subclass says

    def prepare(self, context: Context) -> JobRequest | Done:
        """Say what to run."""
        raise NotImplementedError

    def accept(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        """Decide about a job that ended."""
        raise NotImplementedError

    def accept_unknown(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        """Decide about a job whose outcome stayed unknown."""
        raise NotImplementedError

    # -- what Airflow calls

    def execute(self, context: Context) -> Any:
        """Submit, or find what was submitted, and wait."""
        return self._start(context, {})

    def submit_again(self, context: Context, event: dict[str, Any] | None, progress: dict[str, Any] | None = None) -> Any:
        """Go on after a wait for the queue."""
        return self._start(context, progress or (event or {}).get("progress") or {})

    def execute_complete(self, context: Context, event: dict[str, Any], request_state: dict[str, Any] | None = None) -> Any:
        """Go on when the trigger had something to say."""
        request_state = event["request_state"] if request_state is None else request_state
        view = JobView.from_json(event["view"])
        request_state["tasks"] = event.get("tasks", {})
        if view.ended:
            self._claim = None  # there is nothing to end: a next try takes what it made
        self._seen = facts_of(request_state, view)
        self.log.info("Slurm: %s", view.describe())
        if event["status"] in ("waited_too_long", "never_starts", "timed_out"):
            return self._not_waited_for(context, event, request_state, view)
        try:
            if event["status"] in (ROLLED_BACK, HELD_AGAIN):
                lost = replace(view, phase=Phase.LOST, cause=ROLLED_BACK, retryable=True)
                return done_in_its_hold(self, context, request_state, lost, again=event["status"] == ROLLED_BACK)
            result = self._taken(context, request_state, view, known=event["status"] == "ended")
        except LoginRefused:
            raise
        except Unreachable as error:
            return self._accept_later(context, event, request_state, error)
        except (UnknownOutcome, OutputUnreadable, NoConnection) as error:
            raise left_open(request_state, error) from error
        except Resubmit as request:
            return self._again(context, request_state, view, request)
        except JobFailed as error:
            self._close(request_state, JobEnd("failed", error.cause, str(error), view, who(request_state["owner"])))
            if error.retryable:
                raise
            raise JobFailedForGood(str(error), retryable=False, cause=error.cause) from error
        self._close(request_state, JobEnd("succeeded", view=view, closed_by=who(request_state["owner"])))
        return result

    def accept_later(self, context: Context, event: Any, ended: dict[str, Any], request_state: dict[str, Any]) -> Any:
        """Go on with a job about which the trigger had something to say (``ended``) while the cluster did not answer."""
        return self.execute_complete(context, ended, request_state)

    def on_kill(self) -> None:
        """This process is told to end, or its ``execution_timeout`` is over: asks for the end of the job that it waits for. See :mod:`.killed`."""
        if self._claim is not None:
            leave(self._claim, timed_out=isinstance(sys.exc_info()[1], AirflowTaskTimeout), over=lambda: setattr(self, "_over", True))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """For OpenLineage's provider, in the process in which the task has just ended, well or not."""
        return lineage_of(getattr(self, "_seen", None))

    # -- how it is done

    def _start(self, context: Context, progress: dict[str, Any]) -> Any:
        self._refuse_if_over()
        request, owner, kept = self.prepare(context), owner_of(context), context["task_state_store"]
        previous = kept.get(STATE_KEY)
        try:
            if isinstance(previous, dict):
                leave_earlier(previous, request, owner)
                if is_other_work(previous, request):
                    kept.delete(STATE_KEY)
            if isinstance(request, Done):
                return request.result
            if (before := accepted_before(context, previous, request)) is not None:
                try:
                    return self._accepted(context, request, *before)
                except (JobFailed, Resubmit, UnknownOutcome) as error:
                    self.log.warning("Submission %d had been accepted, and is not any more: %s", before[0].n, error)
            over = str(previous["conn_id"]) if isinstance(previous, dict) and not is_other_work(previous, request) else None
            kept.set(STATE_KEY, pointer_to(request, over or self.slurm_conn_id, 1))
            done = self._submit(context, request, owner, bool(progress.get("nothing_sent")), over)
        except LoginRefused:
            raise
        except _LATER as error:
            return self._later(context, progress, error, request.max_submit_s if isinstance(request, JobRequest) else 3600.0)
        return self._wait(context, request, done, owner, int(progress.get("resubmits", 0)))

    def _refuse_if_over(self) -> None:
        if self._over:
            raise JobFailed("The task was ended: nothing is submitted any more.", cause="given_up")

    def _accepted(self, context: Context, request: JobRequest, done: Submitted, view: JobView) -> Any:
        """The result of a submission that was closed as succeeded, and whose result Airflow never got."""
        state = request.state(done, owner_of(context), 0) | {"tasks": {}}
        self._seen = facts_of(state, view)
        result = self._accept_again(context, state, view)
        keep_links(context, request.key, done)
        self.log.info("Job %s (submission %d) was accepted before the worker died; nothing is submitted.", view.job_id, done.n)
        return result

    def _accept_again(self, context: Context, state: dict[str, Any], view: JobView) -> Any:
        return self.accept(context, state, view)

    def _submit(self, context: Context, request: JobRequest, owner: Owner, nothing_sent: bool, asked_over: str | None) -> Submitted:
        store, kept = request.store(), context["task_state_store"]
        # Before anything is sent, the task's own record names what it will have to give up if it comes back for other work.
        site = SlurmHook(self.slurm_conn_id).config()
        if site.pool and site.pool != self.pool:
            self.log.warning("Connection %s names the pool %r; this task runs in %r.", self.slurm_conn_id, site.pool, self.pool)

        def claimed(claim: Claim, conn_id: str) -> None:
            self._refuse_if_over()
            pointer = pointer_to(request, conn_id, claim.n)
            self._claim = pointer | {"owner": owner, "token": claim.token}
            kept.set(STATE_KEY, pointer | round_of(context))

        work = replace(request.work(claimed, site.root, site.preemptible), asked_over=asked_over)

        async def once() -> Submitted:
            async with SlurmHook(self.slurm_conn_id).get_client() as client:
                return await submit(client, store, work, owner, look_up=request.look_up(), stop=request.stop, nothing_sent=nothing_sent)

        done = asyncio.run(once())
        if done.adopted:
            take_up(store, request.key, done.n)
        how, job = "found again" if done.adopted else "submitted", done.receipt
        self.log.info("Job %s (%s) %s as submission %d of %s.", job.job_id, job.job_name, how, done.n, request.key)
        if job.conn_id != self.slurm_conn_id:
            words = "Job %s lives at connection %s: it is watched and ended there. %s, which this task names, is for the next submission."
            self.log.warning(words, job.job_id, job.conn_id, self.slurm_conn_id)
        return done

    def _wait(self, context: Context, request: JobRequest, done: Submitted, owner: Owner, resubmits: int) -> Any:
        keep_links(context, request.key, done)
        state = request.state(done, owner, resubmits)
        # In the worker Airflow's alarm comes first, and interrupts nothing that way.
        deadline = deadline_of(context, self.execution_timeout, 0.0 if self.deferrable else ALARM_FIRST_S)
        wait = request.wait(done, owner, self.follow_log, deadline)
        trigger = SlurmJobTrigger(done.receipt.conn_id, as_json(wait), state)
        if self.deferrable:
            self.defer(trigger=trigger, method_name="execute_complete", kwargs={"request_state": state})
        try:
            event = asyncio.run(first_event(trigger))
        except AirflowTaskTimeout:
            # Airflow's alarm rings once: from here on there is the time that a deferred task has for this.
            view = JobView(state["job_id"], state["cluster"])
            return self._not_waited_for(context, {"status": "timed_out", "view": view.to_json()}, state, view)
        return self.execute_complete(context, event, state)

    def _later(self, context: Context, progress: dict[str, Any], error: SlurmError, max_submit_s: float) -> Any:
        later = pause(progress | {"nothing_sent": isinstance(error, SubmitBusy)}, max_submit_s, error)
        self.log.warning("%s", later)
        if self.deferrable:
            wait = SubmitLaterTrigger(later.seconds, later.progress)
            self.defer(trigger=wait, method_name="submit_again", kwargs={"progress": later.progress})
        time.sleep(later.seconds)
        return self._start(context, later.progress)

    def _accept_later(self, context: Context, event: dict[str, Any], state: dict[str, Any], error: SlurmError) -> Any:
        later = pause(event.get("later") or {}, ACCEPT_WITHIN_S, error)
        self.log.warning("Nobody can look at the job, or at what it made. %s", later)
        ended = event | {"later": later.progress}
        if self.deferrable:
            kwargs = {"ended": ended, "request_state": state}
            self.defer(trigger=SubmitLaterTrigger(later.seconds), method_name="accept_later", kwargs=kwargs)
        time.sleep(later.seconds)
        return self.execute_complete(context, ended, state)

    def _again(self, context: Context, state: dict[str, Any], view: JobView, request: Resubmit) -> Any:
        self._close(state, JobEnd("interrupted", request.cause, view=view, closed_by=who(state["owner"])))
        if (resubmits := int(state["resubmits"]) + 1) > int(state["max_resubmits"]):
            raise JobFailed(f"{view.describe()}: interrupted {resubmits} times in one try of the task.", cause=request.cause)
        if request.words:
            self.log.warning("%s", request.words)
        self.log.info("Submission %s ended as %s; submitting the next.", state["n"], request.cause)
        return self._start(context, {"resubmits": resubmits})

    def _not_waited_for(self, context: Context, event: dict[str, Any], state: dict[str, Any], view: JobView) -> Any:
        try:
            said = gives_up(event, state, view)
        except LoginRefused:
            raise
        except NoConnection as error:
            raise left_open(state, error) from error
        except (Unreachable, UnreadableAnswer) as error:
            return self._accept_later(context, event, state, error)
        if not said:
            raise given_up(view, event["status"])
        self.log.info("Slurm: %s: waiting on.", said)
        return self._start(context, {"resubmits": state["resubmits"]})

    def _taken(self, context: Context, state: dict[str, Any], view: JobView, *, known: bool) -> Any:
        """What the subclass makes of the end; a job that is forgotten, and is not done, is sent again unless it had started."""
        decide = self.accept if known else self.accept_unknown
        try:
            return decide(context, state, view)
        except JobFailed as error:
            if not never_ran(view, state["tasks"]):
                raise
            if not left_a_log(state, view):
                raise Resubmit(FORGOTTEN) from error
            raise JobFailed(f"{error} It had started: its log {state['log_path']} is there.", retryable=True, cause="lost") from error

    def _close(self, state: dict[str, Any], end: JobEnd) -> None:
        load_store(state["receipts"], state["receipts_config"]).close(state["key"], int(state["n"]), end)
