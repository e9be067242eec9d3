"""The model judge as a task: a job where a gate of the recipe reads what it says, and nothing where none does."""

from typing import Any

from airflow.sdk.definitions.context import Context

from airflow_slurm.operators import Done, JobRequest
from include.flows.stage_operator import StageOperator


class JudgeOperator(StageOperator):
    """Runs the judge on the answers that an evaluation gave; the result is {} where there is nothing to judge.

    :param run: what `resolve` returned (templated).
    :param given: `wanted` and `measured` of the evaluation (templated).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(stage="judge", **kwargs)

    def prepare(self, context: Context) -> JobRequest | Done:
        from include.flows.model_judge import something_to_judge

        if not something_to_judge(self.run, self.given["wanted"], self.given["measured"]):
            return Done({})
        return super().prepare(context)
