"""What is left to a person: a submission of which nobody can say how it ended, or whose output can't be read. The reconciler leaves it alone too.

Kept as incidents of the submission, so that any process that reads the store's history knows it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_slurm.receipts import ReceiptStore, history_of, load_store

#: The incident of a task that failed and left its open submission to a person; and of one that was cleared, and waits for it again.
LEFT, TAKEN_UP = "left_to_a_person", "taken_up_again"


def leave_to_a_person(state: Mapping[str, Any], why: Exception) -> None:
    """Note it once, before the task fails: a failed task wants nothing any more, and its job would be ended.

    :param state: as :meth:`airflow_slurm.requests.JobRequest.state`.
    """
    note_left(load_store(state["receipts"], state["receipts_config"]), state["key"], int(state["n"]), why)


def note_left(store: ReceiptStore, key: str, n: int, why: Exception) -> None:
    """The same of one submission of a store."""
    if not left_why(store, key, n):
        store.incident(key, n, LEFT, {"why": str(why), "at": time.time()})


def take_up(store: ReceiptStore, key: str, n: int) -> None:
    """A task waits for it again: when that is over as any task is, so is what was left."""
    if left_why(store, key, n):
        store.incident(key, n, TAKEN_UP, {"at": time.time()})


def left_why(store: ReceiptStore, key: str, n: int) -> str:
    """Why a submission is left to a person; empty if it is not, or in a store that keeps no history."""
    notes = [
        note for record in history_of(store, key) if record.n == n for note in record.incidents if note.get("what") in (LEFT, TAKEN_UP)
    ]
    last = max(notes, key=lambda note: float(note["detail"]["at"]), default=None)
    return str(last["detail"]["why"]) if last is not None and last["what"] == LEFT else ""
