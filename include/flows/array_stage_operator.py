"""A stage that may be made in parts, as one Airflow task: the parts as one array, then the job of the whole, which takes what they gave.

A stage whose recipe does not ask for parts runs as with `StageOperator`.
"""

from dataclasses import replace
from typing import Any

from airflow.sdk.definitions.context import Context

from airflow_slurm.operators import STATE_KEY, Done, JobRequest
from airflow_slurm.receipts import JobEnd
from airflow_slurm.truth.view import JobView
from include.flows.stage_operator import StageOperator


class ArrayStageOperator(StageOperator):
    """Runs one stage, in parts where its settings say so (`shards`, `members`, `parts`).

    Parts that are committed are used again. The others are sent as one array, and of these only those that failed or were
    interrupted are sent again. The result is that of the whole.
    """

    ui_color = "#d3e4f7"

    def prepare(self, context: Context) -> JobRequest | Done:
        from include.flows import stage_parts

        return stage_parts.prepare(self.stage, self.run, self.given)

    def execute_complete(self, context: Context, event: dict[str, Any], request_state: dict[str, Any] | None = None) -> Any:
        from include.flows.stage_parts import GO_ON

        result = super().execute_complete(context, event, request_state)
        if result != GO_ON:
            return result
        context["task_state_store"].delete(STATE_KEY)  # the array is closed: there is nothing to give up
        return self._start(context, {})

    def accept(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        from include.flows import stage_parts

        return stage_parts.accept(request_state) if _is_array(request_state) else super().accept(context, request_state, view)

    def accept_unknown(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        from include.flows import stage_parts

        if _is_array(request_state):
            return stage_parts.accept_unknown(request_state)
        return super().accept_unknown(context, request_state, view)

    def _accept_again(self, context: Context, state: dict[str, Any], view: JobView) -> Any:
        """An array that was accepted, and some of whose parts are not committed all the same: they are sent again."""
        from airflow_slurm.errors import Resubmit

        if _is_array(state):
            raise Resubmit("parts_missing")
        return super()._accept_again(context, state, view)

    def _close(self, request_state: dict[str, Any], end: JobEnd) -> None:
        super()._close(request_state, replace(end, shards=request_state.get("shards", {})))


def _is_array(request_state: dict[str, Any]) -> bool:
    return "parts" in request_state["carry"]
