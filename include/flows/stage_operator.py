"""A stage of the chain as an Airflow task: planned here, run by Slurm, done only when the catalog has committed it.

The work itself is in `stage_work`, imported when a task runs: parsing a DAG file loads none of it.
"""

import os
from collections.abc import Mapping
from typing import Any

from airflow.sdk.definitions.context import Context

from airflow_slurm.errors import JobFailed, SlurmError
from airflow_slurm.operators import Done, JobRequest, SlurmJobOperator
from airflow_slurm.truth.view import JobView

HELD_AT_MOST_S = 7 * 86400.0
"""How long a task waits for a key that another array works on."""


class Held(SlurmError):
    """Another array works on the same key: its result will be this task's too."""


class StageOperator(SlurmJobOperator):
    """Runs one stage.

    :param stage: base_import, sft, generate, reward_model, policy, evaluate or shadow.
    :param run: what `resolve` returned (templated).
    :param given: earlier results that the stage needs, by name (templated).

    The result is a ``StageResult`` as JSON. The same inputs reuse the committed attempt without a job; a living job of the same key is
    adopted, from whichever DAG run it came.
    """

    template_fields = (*SlurmJobOperator.template_fields, "run", "given")
    ui_color = "#d7e8f7"

    def __init__(self, *, stage: str, run: Any, given: Mapping[str, Any], **kwargs: Any) -> None:
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("pool", os.environ.get("ALIGN_SUBMISSION_POOL") or "slurm_submissions")
        super().__init__(**kwargs)
        self.stage = stage
        self.run = run
        self.given = given

    def execute(self, context: Context) -> Any:
        self._take_connection()
        return super().execute(context)

    def submit_again(self, context: Context, event: dict[str, Any] | None, progress: dict[str, Any] | None = None) -> Any:
        self._take_connection()
        return super().submit_again(context, event, progress)

    def execute_complete(self, context: Context, event: dict[str, Any], request_state: dict[str, Any] | None = None) -> Any:
        self._take_connection()
        try:
            return super().execute_complete(context, event, request_state)
        except JobFailed:
            from include.flows.live_run import settle

            settle((request_state or event["request_state"])["key"])
            raise

    def prepare(self, context: Context) -> JobRequest | Done:
        from include.flows import stage_work

        return stage_work.prepare(self.stage, self.run, self.given)

    def accept(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        from include.flows import stage_work

        return stage_work.accept(stage_work.Ended.of(request_state, view), self.run)

    def accept_unknown(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        from include.flows import stage_work

        return stage_work.accept_unknown(stage_work.Ended.of(request_state, view), self.run)

    def _start(self, context: Context, progress: dict[str, Any]) -> Any:
        from include.stores.errors import KeyHeld

        try:
            return super()._start(context, progress)
        except KeyHeld as error:
            return self._later(context, progress, Held(f"{error}. Waiting for it."), HELD_AT_MOST_S)

    def _take_connection(self) -> None:
        """Which cluster is asked is the deployment's to say, not the DAG file's; nothing of it survives a deferral on its own."""
        from include.settings.catalogue import cluster

        where = cluster()
        self.slurm_conn_id = where.slurm_conn_id
        if self.pool != where.pool:
            self.log.warning(
                "Cluster %s wants submissions in the pool %r and this task runs in %r: give ALIGN_SUBMISSION_POOL to the DAG processor too.",
                where.name, where.pool, self.pool,
            )  # fmt: skip
