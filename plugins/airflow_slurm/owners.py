"""Whether the tasks that wait for a job still do, as Airflow says: in a task, by what Airflow gives every task."""

from __future__ import annotations

from airflow.sdk import get_current_context

from airflow_slurm.receipts import Owner

#: States of a task in which nobody waits for its job any more.
TERMINAL_STATES = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})


#: Those that a task whose outcome was left to a person has only if a person gave it one: by itself it is ``failed``.
_GIVEN = TERMINAL_STATES - {"failed", "upstream_failed"}


def is_owner_alive(owner: Owner) -> bool:
    """Whether the task that owns a job may still want it. Called in a running task, from any of its threads.

    A state that cannot be read, or is none (it was cleared), counts as alive: nothing is ended on a guess. A DAG run that was deleted wants
    nothing any more. Only this Airflow is asked: a store of receipts that two of them share needs an answer that knows both.
    """
    state = _state_of(owner)
    return state is None or state not in TERMINAL_STATES


def has_decided(owner: Owner) -> bool:
    """Whether a person has since marked a task that failed and left its job to a person (as success, say), or deleted its run."""
    return _state_of(owner) in _GIVEN


def _state_of(owner: Owner) -> str | None:
    """None if there is no state; of a run that was deleted ``removed``."""
    ti = get_current_context()["ti"]
    states = ti.get_task_states(dag_id=owner["dag_id"], task_ids=[owner["task_id"]], run_ids=[owner["run_id"]])
    of_run = states.get(owner["run_id"])
    if of_run is None:
        return None if ti.get_dr_count(dag_id=owner["dag_id"], run_ids=[owner["run_id"]]) > 0 else "removed"
    index = owner.get("map_index", -1)
    name = owner["task_id"] if index in (-1, None) else f"{owner['task_id']}_{index}"
    state = of_run.get(name, of_run.get(owner["task_id"]))
    return None if state is None else str(getattr(state, "value", state))
