"""``@task.slurm``: a function that gives the text of a batch script, or an argument vector, and Slurm runs it.

The function itself runs in Airflow. Nothing of Python travels to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import DecoratedOperator, TaskDecorator, determine_kwargs, task_decorator_factory

from airflow_slurm.errors import InvalidSpec
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.requests import Done, JobRequest

if TYPE_CHECKING:
    from airflow.sdk import Context


class _SlurmDecoratedOperator(DecoratedOperator, SlurmJobOperator):
    """Runs what the function returns: a text as the ``body`` of the job, a list of texts as its ``command``, quoted.

    The function is called in every try, and again when a resumed task submits anew: it has to give the same each time. Text
    from outside belongs into ``env`` of the spec, or through :func:`shlex.quote`; a list needs neither.
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *SlurmJobOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **SlurmJobOperator.template_fields_renderers,
    }
    custom_operator_name: str = "@task.slurm"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)

    def prepare(self, context: Context) -> JobRequest | Done:
        """The job with what the function gives."""
        for name in ("command", "body"):
            if name in self.spec:
                raise InvalidSpec(name, "@task.slurm takes it from what the function returns")
        given: Any = {**context, **self.op_kwargs}
        program = self.python_callable(*self.op_args, **determine_kwargs(self.python_callable, self.op_args, given))
        field = "body" if isinstance(program, str) else "command"
        if not program or not isinstance(program, str | list | tuple):
            raise InvalidSpec(field, f"the function returned {program!r}; give the text of a script, or a list of program and arguments")
        asked = self.spec
        self.spec = {**asked, field: program}
        try:
            return super().prepare(context)
        finally:
            self.spec = asked


def slurm_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a task of a function that gives a script; takes the arguments of :class:`~airflow_slurm.operators.SlurmJobOperator`."""
    return task_decorator_factory(python_callable=python_callable, decorated_operator_class=_SlurmDecoratedOperator, **kwargs)
