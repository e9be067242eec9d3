"""Whether the tasks that wait for a job still do, as Airflow says: in a task, by what Airflow gives every task."""

from __future__ import annotations

from airflow.sdk import get_current_context

from airflow_slurm.receipts import Owner

#: States of a task in which nobody waits for its job any more.
TERMINAL_STATES = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})


def is_owner_alive(owner: Owner) -> bool:
    """Whether the task that owns a job may still want it. Called in a running task, from any of its threads.

    A state that cannot be read, or is none (it was cleared), counts as alive: nothing is ended on a guess. A DAG run that was deleted wants
    nothing any more. Only this Airflow is asked: a store of receipts that two of them share needs an answer that knows both.
    """
    ti = get_current_context()["ti"]
    states = ti.get_task_states(dag_id=owner["dag_id"], task_ids=[owner["task_id"]], run_ids=[owner["run_id"]])
    of_run = states.get(owner["run_id"])
    if of_run is None:
        return ti.get_dr_count(dag_id=owner["dag_id"], run_ids=[owner["run_id"]]) > 0
    index = owner.get("map_index", -1)
    name = owner["task_id"] if index in (-1, None) else f"{owner['task_id']}_{index}"
    state = of_run.get(name, of_run.get(owner["task_id"]))
    return state is None or str(getattr(state, "value", state)) not in TERMINAL_STATES
