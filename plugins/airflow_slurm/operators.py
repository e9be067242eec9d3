"""The operator: submit a job once, wait for it, accept what it made. How that is done, step by step, is in :mod:`airflow_slurm.work.steps`.

Subclass :class:`SlurmJobOperator` and override :meth:`~SlurmJobOperator.prepare` and :meth:`~SlurmJobOperator.accept`.
Nothing that happens in one method is remembered on the instance: every step may run in another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_slurm.errors import JobFailed, Resubmit, UnknownOutcome
from airflow_slurm.hook import SlurmHook
from airflow_slurm.links import SlurmJobLink, SlurmOutputLink
from airflow_slurm.receipts import history_of, load_store
from airflow_slurm.requests import Done, JobRequest, owner_of
from airflow_slurm.settings import DEFAULT_RECEIPTS, configured_receipts
from airflow_slurm.slurm.states import Phase
from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.holds import output_decides
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.shards import first_of_round
from airflow_slurm.truth.view import JobView
from airflow_slurm.work.steps import STATE_KEY, JobSteps
from airflow_slurm.work.stop import StopPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["STATE_KEY", "Done", "JobRequest", "SlurmJobOperator", "owner_of"]


#: Seconds that the clocks of worker, cluster and file server may be apart when an output's age is judged; munge allows as many within a cluster.
CLOCKS_DIFFER_S = 300.0
TOO_OLD = (
    "was last written before this work was submitted: the program wrote nothing, or keeps the times of files. "
    "If that is right, set fresh_output=False."
)


class SlurmJobOperator(JobSteps):
    """Runs one batch job and is done when what it made has been accepted.

    Retrying or clearing the task finds the job of the same key again, running or ended; it never submits it twice.

    :param slurm_conn_id: an Airflow connection of type ``slurm``. (templated)
    :param spec: fields of :class:`airflow_slurm.spec.JobSpec`. (templated)
    :param key: names the work; tasks with equal keys share a job. By default this task of this DAG run. (templated)
    :param expected_output: remote path that has to exist for the job to count as done. (templated)
    :param fresh_output: that path has to have been written since the work was first submitted in this round of tries (give or take
        :data:`CLOCKS_DIFFER_S`): a program that ends well and writes nothing is not done because of what an earlier run left there. False for
        one that rightly leaves an old file alone, or keeps the times of files that it copies.
    :param visibility_deadline_s: how long that path is looked for: shared file systems show files late.
    :param receipts: dotted path of the receipt store's class. :param receipts_config: its arguments. (templated) Without
        either, the store that the section ``[slurm]`` of Airflow's configuration names.
    :param deferrable: wait in the triggerer, whatever ``default_deferrable`` says; else in the worker, with the same code.
    :param follow_log: copy the job's output into the task's log while it runs.
    :param execution_timeout: as with any task, also while it is deferred; its job is given up then.
    :param loss_retries: how often, within one try of the task, a job that Slurm lost and did not bring back (preempted, its node failed,
        its launch failed) is submitted again; after that it is the task's next try that does.
    :param max_wait_s: how long the job may wait for its start. :param max_unknown_s: see :class:`JobRequest`.
    :param stop_signal: what asks the program to save and end. :param stop_grace_s: how long it may take for that.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "spec", "key", "expected_output", "receipts_config")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    operator_extra_links = (SlurmJobLink(), SlurmOutputLink())
    ui_color = "#dfe9f5"

    def __init__(
        self,
        *,
        slurm_conn_id: str = SlurmHook.default_conn_name,
        spec: Mapping[str, Any] | None = None,
        key: str | None = None,
        expected_output: str | None = None,
        fresh_output: bool = True,
        visibility_deadline_s: float = 120.0,
        receipts: str | None = None,
        receipts_config: Mapping[str, Any] | None = None,
        deferrable: bool = True,
        follow_log: bool = True,
        loss_retries: int = 2,
        max_wait_s: float | None = None,
        max_unknown_s: float = 3600.0,
        stop_signal: str = "USR1",
        stop_grace_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.slurm_conn_id = slurm_conn_id
        self.spec = dict(spec or {})
        self.key = key
        self.expected_output = expected_output
        self.fresh_output = fresh_output
        self.visibility_deadline_s = visibility_deadline_s
        self.receipts = receipts
        self.receipts_config = dict(receipts_config or {})
        self.deferrable = deferrable
        self.follow_log = follow_log
        self.loss_retries = loss_retries
        self.max_wait_s = max_wait_s
        self.max_unknown_s = max_unknown_s
        self.stop_signal = stop_signal
        self.stop_grace_s = stop_grace_s

    def prepare(self, context: Context) -> JobRequest | Done:
        """Say what to run. Called in every try and before every resubmission; no question to Slurm belongs in here."""
        owner = owner_of(context)
        key = self.key or f"{owner['dag_id']}/{owner['run_id']}/{owner['task_id']}/{owner['map_index']}"
        if self.expected_output is None and type(self).accept is SlurmJobOperator.accept:
            self.log.warning("This task names no expected_output: that Slurm says COMPLETED is all that tells whether its job is done.")
        named = self.receipts is not None or self.receipts_config
        path, config = (self.receipts or DEFAULT_RECEIPTS, self.receipts_config) if named else configured_receipts()
        return JobRequest(
            key=key,
            spec=self.job_spec(),
            receipts=path,
            receipts_config=config,
            max_wait_s=self.max_wait_s,
            max_unknown_s=self.max_unknown_s,
            stop=StopPolicy(self.stop_signal, self.stop_grace_s),
            expected_output=self.expected_output,
        )

    def job_spec(self) -> JobSpec:
        """The job that :meth:`prepare` asks for, from the operator's arguments."""
        return JobSpec.from_mapping(self.spec)

    def accept(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        """Decide about a job that ended. Called at least once, perhaps more often, perhaps by several tasks of one key.

        :returns: the task's result.
        :raises Resubmit: to submit the next attempt within this try. :raises JobFailed: if it failed.
        :raises UnknownOutcome: if nobody can say; the submission then stays open.
        """
        if not view.succeeded and not (self.expected_output and output_decides(view)):
            if self._submits_again(request_state, view):
                raise Resubmit(view.cause, f"{view.describe()}: Slurm lost it, and it is submitted again.")
            raise JobFailed(f"{view.describe()}: {view.cause}", retryable=view.retryable, cause=view.cause)
        # What nobody saw run was waited for long enough when nobody knew what had become of it.
        deadline_s = 0.0 if view.cause == FORGOTTEN else self.visibility_deadline_s
        there = SlurmHook(request_state.get("conn_id") or self.slurm_conn_id)
        since = self._written_since(request_state) if view.succeeded else float(request_state["since"])
        if self.expected_output and there.missing([self.expected_output], deadline_s, since):
            if not view.succeeded:
                words = f"{view.describe()}: {view.cause}, and {self.expected_output} is not there"
                raise JobFailed(words, retryable=view.retryable, cause=view.cause)
            if since is not None and not there.missing([self.expected_output], 0.0):
                raise JobFailed(f"Slurm says {view.state}, and {self.expected_output} {TOO_OLD}", retryable=False, cause="output_stale")
            raise JobFailed(
                f"Slurm says {view.state}, and {self.expected_output} is not there after {self.visibility_deadline_s:.0f} s.",
                cause="output_missing",
            )
        return {"job_id": view.job_id, "n": request_state["n"], "state": view.state, "elapsed_s": view.elapsed_s}

    def _written_since(self, request_state: Mapping[str, Any]) -> float | None:
        """Where Slurm says COMPLETED: from when on its output counts; None for ever, or in a store that can't say when the work began.

        A later submission may find that an earlier one of the same round had made it, and leave it.
        """
        if not self.fresh_output:
            return None
        store = load_store(request_state["receipts"], request_state["receipts_config"])
        before = [record for record in history_of(store, request_state["key"]) if record.n <= int(request_state["n"])]
        first = first_of_round(record for record in before if record.n < int(request_state["n"]))
        began = [(record.receipt and record.receipt.queued_at) or record.since for record in before if record.n >= first]
        return min(began) - CLOCKS_DIFFER_S if began else None

    def _submits_again(self, request_state: Mapping[str, Any], view: JobView) -> bool:
        """Whether this try does. What a controller forgot is :mod:`~airflow_slurm.work.steps`' to judge, and a doubtful loss the next try's: the
        program may have run to its end."""
        lost = view.phase is Phase.LOST and view.retryable and not output_decides(view)
        return lost and int(request_state["resubmits"]) < self.loss_retries

    def accept_unknown(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        """Decide about a job whose outcome stayed unknown: by default, call a person. Override it where files can tell.

        Of a run that a controller lost when it died, none is left once its nodes have reported; if it made its expected output, it is done.
        """
        if self.expected_output and output_decides(view):
            with suppress(JobFailed, Resubmit):
                return self.accept(context, request_state, replace(view, phase=Phase.LOST))
        raise outcome_unknown(request_state, view)


def outcome_unknown(request_state: Mapping[str, Any], view: JobView) -> UnknownOutcome:
    """The error that calls a person; nothing is closed and nothing submitted until then."""
    return UnknownOutcome(
        f"Job {view.job_id} (key {request_state['key']}, submission {request_state['n']}): {view.cause}. "
        "It may still be running, so nothing is submitted until somebody closes the submission."
    )
