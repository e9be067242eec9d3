"""What a subclass of the operator hands over before a job is submitted, and what travels until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_slurm.receipts import Claim, Owner, Receipt, ReceiptStore, load_store
from airflow_slurm.settings import task_address
from airflow_slurm.site.preemptible import Preemptible
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.script import own_exits
from airflow_slurm.spec import JobSpec, check_below
from airflow_slurm.watch.lines import Lines
from airflow_slurm.watch.waiting import Wait
from airflow_slurm.work.stop import StopPolicy
from airflow_slurm.work.submit import LookUp, Submitted, Work

if TYPE_CHECKING:
    from airflow.sdk import Context

NO_POLICY = Preemptible()


@dataclass(frozen=True)
class Done:
    """The work has been done before: nothing is submitted, and this is the task's result.

    :ivar key: of the work that is done. A job that this task asked for under another key is given up; without a key, any is.
    """

    result: Any = None
    key: str | None = None


@dataclass(frozen=True)
class JobRequest:
    """A piece of work and how to wait for it. Times are seconds.

    :ivar key: names the work. Equal keys share one job, over tasks, tries and DAG runs.
    :ivar spec: the job, or what makes it from the submission's number.
    :ivar receipts: dotted path of the receipt store's class. :ivar receipts_config: its keyword arguments, JSON.
    :ivar job_name: gives a name, unique to key and number, made of ``A-Z a-z 0-9 . _ -``.
    :ivar stage_in: puts files beside the job of submission ``n``, right before it is sent; in a thread, perhaps twice.
    :ivar max_unknown_s: how long an outcome may stay unknown before :class:`~airflow_slurm.errors.UnknownOutcome`.
    :ivar max_wait_s: how long a job may wait for its first start; None for ever.
    :ivar max_submit_s: how long a submission is tried while the queue is full or nobody answers.
    :ivar max_resubmits: how often ``accept`` may ask for another submission within one try of the task.
    :ivar look_up_s: how long a job whose answer got lost is looked for before it is sent again.
    :ivar stop: how the job is ended when it is given up.
    :ivar expected_output: remote path that the job is to make, if one is to be held against ``root``.
    :ivar lines: a file of lines that the job writes, handed to the application while it runs; not of an array.
    :ivar carry: small JSON of the caller's, back as ``request_state["carry"]``.
    """

    key: str
    spec: JobSpec | Callable[[int], JobSpec]
    receipts: str
    receipts_config: Mapping[str, Any]
    job_name: Callable[[int], str] | None = None
    stage_in: Callable[[int], None] = lambda n: None
    max_unknown_s: float = 3600.0
    max_wait_s: float | None = None
    max_submit_s: float = 6 * 3600.0
    max_resubmits: int = 20
    look_up_s: float = 30.0
    stop: StopPolicy = field(default_factory=StopPolicy)
    carry: Mapping[str, Any] = field(default_factory=dict)
    expected_output: str | None = None
    lines: Lines | None = None

    def work(self, on_claim: Callable[[Claim, str], None], root: str | None = None, preemptible: Preemptible = NO_POLICY) -> Work:
        """The same for the submission protocol.

        :param root: the cluster's remote root; it confines the job's paths. A root that the job names lies below it and narrows it.
        :param preemptible: what the site does with jobs that may be preempted.
        """

        def spec_for(n: int) -> JobSpec:
            spec = preemptible.apply(self._spec_of(n))
            if spec.root is not None:
                check_below("root", spec.root, root)
            confined = replace(spec, root=root) if root and spec.root is None else spec
            if confined.root and self.expected_output:
                check_below("expected_output", self.expected_output, confined.root)
            if self.lines is not None:
                check_below("lines", self.lines.path, confined.root)
            return confined

        return Work(self.key, spec_for, self.name_of, self.stage_in, on_claim)

    def _spec_of(self, n: int) -> JobSpec:
        return self.spec if isinstance(self.spec, JobSpec) else self.spec(n)

    def name_of(self, n: int) -> str:
        """The job name of submission ``n``."""
        return self.job_name(n) if self.job_name else job_name_for(self.key, n)

    def look_up(self) -> LookUp:
        """The same for the submission protocol."""
        return LookUp(total_s=self.look_up_s, pause_s=min(5.0, max(0.5, self.look_up_s / 6)))

    def store(self) -> ReceiptStore:
        """The receipt store."""
        return load_store(self.receipts, self.receipts_config)

    def wait(self, done: Submitted, owner: Owner, follow_log: bool, deadline: float | None = None) -> Wait:
        """What the trigger has to know. ``deadline``: when the task's time is over, in seconds since the epoch."""
        return Wait(
            key=self.key,
            n=done.n,
            job_id=done.receipt.job_id,
            job_name=done.receipt.job_name,
            since=done.since,
            owner=owner,
            receipts=self.receipts,
            receipts_config=dict(self.receipts_config),
            cluster=done.receipt.cluster,
            submitted_at=done.receipt.submitted_at,
            queued_at=done.receipt.queued_at,
            log_path=done.receipt.log_path,
            follow_log=follow_log,
            max_unknown_s=self.max_unknown_s,
            max_wait_s=self.max_wait_s,
            stop=vars(self.stop).copy(),
            array=done.receipt.array,
            deadline=deadline,
            page=output_address(owner, done.n, done.receipt),
            returns=done.receipt.requeue is not False,
            lines=self.lines.to_json() if self.lines and not done.receipt.array else {},
            exits={str(code): cause for code, cause in own_exits(self._spec_of(done.n)).items()},
        )

    def state(self, done: Submitted, owner: Owner, resubmits: int) -> dict[str, Any]:
        """What is handed to ``accept``; JSON, since another process resumes the task."""
        return {
            "key": self.key,
            "n": done.n,
            "job_id": done.receipt.job_id,
            "job_name": done.receipt.job_name,
            "cluster": done.receipt.cluster,
            "log_path": done.receipt.log_path,
            "conn_id": done.receipt.conn_id,
            "receipts": self.receipts,
            "receipts_config": dict(self.receipts_config),
            "owner": owner,
            "since": done.since,
            "resubmits": resubmits,
            "max_resubmits": self.max_resubmits,
            "stop": vars(self.stop).copy(),
            "array": done.receipt.array,
            "carry": dict(self.carry),
        }


def output_address(owner: Owner, n: int, receipt: Receipt) -> str:
    """The address of the page that shows all of a job's output; of an array, or where nobody knows its path, the task's own page."""
    page = task_address(owner)
    return page if receipt.array or not receipt.log_path else f"{page}/output/{n}"


def owner_of(context: Context) -> Owner:
    """The owner that a running task is."""
    ti = context["ti"]
    map_index = ti.map_index if ti.map_index is not None else -1
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": map_index}


def deadline_of(context: Context, execution_timeout: timedelta | None, later_s: float = 0.0) -> float | None:
    """When this try's ``execution_timeout`` is over, and ``later_s`` besides; counted from its first start, as a task that resumes keeps that."""
    if execution_timeout is None:
        return None
    start = getattr(context["ti"], "start_date", None)
    return (start.timestamp() if start is not None else time.time()) + execution_timeout.total_seconds() + later_s


def is_other_work(previous: Mapping[str, Any], request: JobRequest | Done) -> bool:
    """Whether a task that asked for ``previous`` (see :func:`pointer_to`) asks for something else now."""
    if isinstance(request, Done):
        return previous.get("key") != request.key
    return previous.get("key") != request.key or previous.get("receipts") != request.receipts


def pointer_to(request: JobRequest, slurm_conn_id: str, n: int) -> dict[str, Any]:
    """What the next try needs in order to give this work up; kept from before the claim on."""
    return {
        "key": request.key,
        "n": n,
        "conn_id": slurm_conn_id,
        "receipts": request.receipts,
        "receipts_config": dict(request.receipts_config),
        "job_name": request.name_of(n),
        "stop": vars(request.stop).copy(),
    }


def who(owner: Owner) -> str:
    """An owner in one word, for records."""
    return f"{owner['dag_id']}/{owner['run_id']}/{owner['task_id']}/{owner['map_index']}"
