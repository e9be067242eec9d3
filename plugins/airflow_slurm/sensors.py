"""Waits for a job that somebody else submitted, by its id or its name; judged as the operators judge their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from airflow_slurm.errors import InvalidSpec, JobFailed, JobFailedForGood, UnknownOutcome
from airflow_slurm.hook import SlurmHook
from airflow_slurm.sensing import SlurmSensorTrigger
from airflow_slurm.slurm.commands import check_job_id
from airflow_slurm.spec import check_job_name
from airflow_slurm.triggers import first_event
from airflow_slurm.truth.view import JobView

if TYPE_CHECKING:
    from airflow.sdk import Context


class SlurmJobSensor(BaseSensorOperator):
    """Is done when a job has ended well. It submits nothing and ends nothing.

    One loop for each cluster looks for all sensors and operators of a triggerer. The job may be another user's, if the site
    shows those. A job that nobody knows yet is waited for.

    :param slurm_conn_id: an Airflow connection of type ``slurm``. (templated)
    :param job_id: Slurm's id, of an array the whole one's or ``5501_4``. (templated)
    :param job_name: its name instead; of several jobs the newest that has not ended, else the newest. (templated)
    :param lookback_s: how long ago it may have been submitted.
    :param must_succeed: fail if the job did; else any end will do.
    :param deferrable: wait in the triggerer; else in the worker, with the same code.
    :param max_unknown_s: how long its outcome may stay unknown before a person is called.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "job_id", "job_name")
    ui_color = "#eaf1f8"

    def __init__(
        self,
        *,
        slurm_conn_id: str = SlurmHook.default_conn_name,
        job_id: str | None = None,
        job_name: str | None = None,
        lookback_s: float = 7 * 86400.0,
        must_succeed: bool = True,
        deferrable: bool = True,
        max_unknown_s: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.slurm_conn_id = slurm_conn_id
        self.job_id = job_id
        self.job_name = job_name
        self.lookback_s = lookback_s
        self.must_succeed = must_succeed
        self.deferrable = deferrable
        self.max_unknown_s = max_unknown_s

    def execute(self, context: Context) -> Any:
        """Wait. The sensor's ``timeout`` counts in the triggerer too."""
        trigger = SlurmSensorTrigger(
            self.slurm_conn_id,
            self._checked_id(),
            self._checked_name(),
            since=time.time() - self.lookback_s,
            deadline=time.time() + self.timeout,
            max_unknown_s=self.max_unknown_s,
        )
        if self.deferrable:
            self.defer(trigger=trigger, method_name="execute_complete")
        return self.execute_complete(context, asyncio.run(first_event(trigger)))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on when the trigger had something to say.

        :returns: the last view of the job, as JSON.
        """
        wanted = f"job {self.job_id}" if self.job_id else f"a job named {self.job_name}"
        if event["status"] == "timeout":
            problem = f"Nobody has seen {wanted} end within {self.timeout:.0f} s; last seen: {event.get('seen') or 'never'}."
            raise AirflowSkipException(problem) if self.soft_fail else AirflowSensorTimeout(problem)
        view = JobView.from_json(event["view"])
        self.log.info("Slurm: %s", view.describe())
        if event["status"] != "ended":
            raise UnknownOutcome(f"{view.describe()}. Nobody can say how {wanted} ended.")
        if self.must_succeed and not view.succeeded:
            problem = f"{view.describe()}: {view.cause}"
            # Another try would find the same end; only a job of the same name could be another one.
            if self.soft_fail:
                raise AirflowSkipException(problem)
            if self.job_id:
                raise JobFailedForGood(problem, retryable=False, cause=view.cause)
            raise JobFailed(problem, retryable=view.retryable, cause=view.cause)
        return view.to_json()

    def _checked_id(self) -> str | None:
        if bool(self.job_id) == bool(self.job_name):
            raise InvalidSpec("job_id", "give either job_id or job_name, and one of them")
        return check_job_id(str(self.job_id)) if self.job_id else None

    def _checked_name(self) -> str | None:
        return check_job_name(self.job_name) if self.job_name else None
