"""The operator for sharded work: one submission for many tasks of an array, and only those that failed are submitted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_slurm.errors import BadConnection, InvalidSpec, JobFailed, Resubmit
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator, outcome_unknown
from airflow_slurm.receipts import JobEnd, KeepsHistory, history_of, load_store
from airflow_slurm.requests import Done, JobRequest
from airflow_slurm.spec import JobSpec, task_path
from airflow_slurm.truth.arrays import expression, indices_of
from airflow_slurm.truth.holds import output_decides
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.shards import ShardEnd, ends_since, first_of_round, merge, remaining, settle, wanted_shards
from airflow_slurm.truth.view import JobView

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Under this name the task's state store keeps with which submission its present round of the work began.
ROUND_KEY = "slurm_round"


class SlurmArrayOperator(SlurmJobOperator):
    """Runs many like tasks as one job array, and is done when every one of them has been accepted.

    Each task finds its number in ``SLURM_ARRAY_TASK_ID``. When all have ended and some failed, the next submission holds only
    those: at once, up to ``shard_retries`` times, and after that in the task's next try. Everything else is as with
    :class:`~airflow_slurm.operators.SlurmJobOperator`. The result is a list with the end of every shard, by its number.

    :param spec: as there, without ``array``; its ``output`` holds ``%a``, the task's number. (templated)
    :param shards: how many tasks, or their numbers as a list or as ``0-3,9``. (templated)
    :param max_parallel: how many may run at once.
    :param expected_output: remote path that has to exist for a shard to count as done, with ``%a`` for its number. (templated)
    :param shard_retries: how often the failed ones are submitted again within one try.
    :param follow_log: copy the output of up to four running tasks; the end of a failed one's output is shown anyway.
    """

    template_fields: Sequence[str] = (*SlurmJobOperator.template_fields, "shards")
    ui_color = "#d3e4f7"

    def __init__(
        self, *, shards: int | str | Sequence[int], max_parallel: int | None = None, shard_retries: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.shards = shards
        self.max_parallel = max_parallel
        self.shard_retries = shard_retries

    # -- what a subclass says

    def accept_shard(self, context: Context, request_state: dict[str, Any], index: int, view: JobView) -> Any:
        """Decide about a shard that completed and whose expected output is there. Called at least once, perhaps more often.

        :returns: its result, as JSON. :raises JobFailed: if it did not do its work; it is submitted again if that is retryable.
        """
        return None

    # -- how it is done

    def prepare(self, context: Context) -> JobRequest | Done:
        """The array of what remains to be done; see :meth:`SlurmJobOperator.prepare`."""
        request = super().prepare(context)
        if isinstance(request, Done):
            return request
        wanted, base = wanted_shards(self.shards), self.job_spec()
        store = _with_history(request.receipts, request.receipts_config)
        from_n = self._first_of_round(context, request.key, store)
        known = ends_since(history_of(store, request.key), from_n)
        if known and not remaining(wanted, known):
            return Done(self._result(context, wanted, known), request.key)

        def spec_for(n: int) -> JobSpec:
            earlier = ends_since(history_of(store, request.key), from_n, n)
            return replace(base, array=expression(remaining(wanted, earlier) or wanted, self.max_parallel))

        return replace(request, spec=spec_for, carry={**request.carry, "wanted": expression(wanted), "from_n": from_n})

    def job_spec(self) -> JobSpec:
        """The array of all shards."""
        if self.spec.get("array") is not None:
            raise InvalidSpec("array", "the tasks of an array are given as shards and max_parallel of the operator")
        return JobSpec.from_mapping({**self.spec, "array": expression(wanted_shards(self.shards), self.max_parallel)})

    def accept(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        """Decide shard by shard; see the class."""
        wanted = indices_of(request_state["carry"]["wanted"])
        views = {int(index): JobView.from_json(value) for index, value in request_state["tasks"].items()}
        ends = self._ends(context, request_state, {index: view for index, view in views.items() if index in wanted})
        request_state["shards"] = {str(index): end.to_json() for index, end in ends.items()}
        store = _with_history(request_state["receipts"], request_state["receipts_config"])
        known = ends_since(history_of(store, request_state["key"]), request_state["carry"]["from_n"], request_state["n"])
        merge(known, ends.values())
        settle(list(ends.values()), "shards", used=self._retries_used(store, request_state), most=self.shard_retries)
        if remaining(wanted, known):
            raise Resubmit("shards_missing")
        return self._result(context, wanted, known)

    def accept_unknown(self, context: Context, request_state: dict[str, Any], view: JobView) -> Any:
        """Tasks that are gone with their controller's memory and have made their expected output are done, and then nothing is unknown."""
        unknown = {int(i): found for i, value in request_state["tasks"].items() if not (found := JobView.from_json(value)).ended}
        proven = self.expected_output is not None and all(output_decides(found) for found in unknown.values())
        if not proven or self._missing(request_state, list(unknown), self.visibility_deadline_s, float(request_state["since"])):
            raise outcome_unknown(request_state, view)
        return self.accept(context, request_state, view)

    def _accept_again(self, context: Context, state: dict[str, Any], view: JobView) -> Any:
        """From what each submission of the round was closed with; the shards' own views are gone."""
        n, store = int(state["n"]), _with_history(state["receipts"], state["receipts_config"])
        history = history_of(store, state["key"])
        known = ends_since(history, first_of_round(record for record in history if record.n < n), n + 1)
        wanted = wanted_shards(self.shards)
        if remaining(wanted, known):
            raise Resubmit("shards_missing")
        return self._result(context, wanted, known)

    def _retries_used(self, store: KeepsHistory, state: dict[str, Any]) -> int:
        """How often shards that had run were submitted again in this try; what a controller forgot had not run."""
        n, resubmits = int(state["n"]), int(state["resubmits"])
        ends = [r.end for r in history_of(store, state["key"]) if n - resubmits <= r.n < n and r.end is not None]
        return resubmits - sum(end.cause == FORGOTTEN for end in ends)

    def _ends(self, context: Context, state: dict[str, Any], views: Mapping[int, JobView]) -> dict[int, ShardEnd]:
        looked_at = [index for index, view in views.items() if self._has_to_show(view)]
        ended = [index for index in looked_at if views[index].succeeded]
        forgotten = [index for index in looked_at if views[index].cause == FORGOTTEN]
        doubtful = sorted({*looked_at} - {*ended} - {*forgotten})
        since = float(state["since"])  # where the output alone decides, it has to be this submission's own
        deadline_s = self.visibility_deadline_s
        missing = (
            self._missing(state, ended, deadline_s, self._written_since(state))
            | self._missing(state, doubtful, deadline_s, since)
            | self._missing(state, forgotten, 0.0, since)
        )
        return {index: self._end(context, state, index, view, index in missing) for index, view in sorted(views.items())}

    def _has_to_show(self, view: JobView) -> bool:
        """Whether it depends on its expected output if the shard is done."""
        return view.succeeded or (self.expected_output is not None and output_decides(view))

    def _end(self, context: Context, state: dict[str, Any], index: int, view: JobView, missing: bool) -> ShardEnd:
        end = ShardEnd.of(index, int(state["n"]), view)
        if not self._has_to_show(view) or (missing and not view.succeeded):
            return replace(end, detail=f"exit {view.exit_code}" if view.exit_code else "")
        if missing:
            path = task_path(self.expected_output or "", index)
            age = " now, or was last written before this work was submitted (see fresh_output)" if self.fresh_output else ""
            return replace(end, cause="output_missing", retryable=True, detail=f"COMPLETED, and {path} is not there{age}")
        try:
            result = self.accept_shard(context, state, index, view)
        except JobFailed as error:
            return replace(end, cause=error.cause, retryable=error.retryable, detail=str(error))
        return replace(end, outcome="succeeded", cause="", result=result)

    def _missing(self, state: Mapping[str, Any], indices: Sequence[int], within_s: float, since: float | None) -> set[int]:
        """Shards whose expected output does not appear in time; one connection asks for all."""
        if self.expected_output is None or not indices:
            return set()
        paths = {index: task_path(self.expected_output, index) for index in indices}
        missing = SlurmHook(state.get("conn_id") or self.slurm_conn_id).missing(set(paths.values()), within_s, since)
        return {index for index, path in paths.items() if path in missing}

    def _first_of_round(self, context: Context, key: str, store: KeepsHistory) -> int:
        """Kept with the task, so that one that comes late to a round that another run has finished takes its results."""
        kept = context["task_state_store"]
        known = kept.get(ROUND_KEY)
        if isinstance(known, dict) and known.get("key") == key:
            return int(str(known["from_n"]))
        from_n = first_of_round(history_of(store, key))
        kept.set(ROUND_KEY, {"key": key, "from_n": from_n})
        return from_n

    def _result(self, context: Context, wanted: Sequence[int], known: Mapping[int, ShardEnd]) -> list[dict[str, Any]]:
        context["task_state_store"].delete(ROUND_KEY)
        return [known[index].to_json() for index in wanted]

    def _close(self, request_state: dict[str, Any], end: JobEnd) -> None:
        super()._close(request_state, replace(end, shards=request_state.get("shards", {})))


def _with_history(path: str, config: Mapping[str, Any]) -> KeepsHistory:
    store = load_store(path, config)
    if not isinstance(store, KeepsHistory):
        raise BadConnection(f"Receipt store {path!r} keeps no history, and an array needs one: it lacks the method `history`.")
    return store
