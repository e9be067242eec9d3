"""What a worker that is told to end does about the job it waits for, in the second or so that it has.

Airflow says so when a person marks the task or its run, when the task is cleared, and when nothing but the worker is stopped. So the task's
state decides, as in the trigger; what can't be done in time the reconciler does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from airflow_slurm.owners import TERMINAL_STATES
from airflow_slurm.triggers import task_state
from airflow_slurm.work.earlier import let_go

log = structlog.get_logger(__name__)

#: How long the process is held up for it, in seconds: Airflow kills it five seconds after it was told.
WITHIN_S = 1.0


def leave(claim: Mapping[str, Any], *, timed_out: bool, over: Callable[[], None]) -> None:
    """Give up what this process claimed, if its task is over. Goes on beside the caller when the second is up.

    :param claim: as :func:`~airflow_slurm.requests.pointer_to`, with an ``owner`` and the ``token`` of the claim, so that a next try's is none of it.
    :param timed_out: the task's ``execution_timeout`` is over, whatever Airflow still says of its state.
    :param over: told when it is known that the task is over, before anything is ended.
    """
    # In a thread: this comes in a signal's handler, perhaps while the process's own event loop runs.
    thread = threading.Thread(target=_leave, args=(claim, timed_out, over), name="slurm-on-kill", daemon=True)
    thread.start()
    thread.join(WITHIN_S)


def _leave(claim: Mapping[str, Any], timed_out: bool, over: Callable[[], None]) -> None:
    try:
        state = None if timed_out else task_state(claim["owner"])
        if not timed_out and state not in TERMINAL_STATES:
            log.info("the task is not over: its job is left alone", state=state, key=claim["key"])
            return
        over()
        view = let_go(claim)
        log.info("the task is over, and its job was given up", key=claim["key"], job=view.describe() if view else "others wait for it")
    except Exception:
        # Nobody waits for this: without a word here the failure would be invisible.
        log.exception("the job could not be ended now; the reconciler will", key=claim["key"])
