"""What is left to a person: nothing ends the job of a task that failed because nobody can say how its job ended, until a person decides."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_slurm.errors import FileUnreadable, OutputUnreadable, UnknownOutcome
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.receipts import Receipt
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView
from airflow_slurm.work.left import LEFT, TAKEN_UP

from .crowd import Crowd
from .tasks import OWNER, Make
from .test_reconciler import passed

KEY, JOB = "work", "7"
UNKNOWN = {"status": "unknown", "view": JobView(JOB, phase=Phase.UNKNOWN, cause="accounting does not answer").to_json()}
ENDED = {"status": "ended", "view": JobView(JOB, phase=Phase.SUCCEEDED, state="COMPLETED").to_json()}


def left(make: Make, store: FileReceipts) -> tuple[Any, Crowd]:
    """A task that failed for an unknown outcome, and a cluster on which its job still runs."""
    task = make()
    with pytest.raises(UnknownOutcome):
        task.resume(task.execute(), UNKNOWN)
    crowd = Crowd(jobs={JOB: (job_name_for(KEY, 1), "RUNNING")})
    store.record(KEY, 1, Receipt(JOB, job_name_for(KEY, 1), "nowhere", released_at=1.0))
    return task, crowd


def over(crowd: Crowd, store: FileReceipts, decided: bool = False) -> dict[str, str]:
    """A pass once Airflow says of the task that it is over."""
    return {f.kind: f.detail for f in passed(crowd, store, lambda owner: False, "nowhere", has_decided=lambda owner: decided)}


def test_the_reconciler_ends_no_job_whose_outcome_is_left_to_a_person(make: Make, store: FileReceipts) -> None:
    _, crowd = left(make, store)
    for _ in range(2):
        found = over(crowd, store)
        assert list(found) == ["left_to_a_person"]
        assert "accounting does not answer" in found["left_to_a_person"]
    crowd.jobs.clear()  # it left the queue, and accounting can't say how
    crowd.accounting_down = True
    assert list(over(crowd, store)) == ["left_to_a_person"]
    live = store.get(KEY)
    assert live is not None
    assert (live.n, live.ending, live.owners) == (1, False, (OWNER,))
    assert crowd.count("scancel") == 0
    assert [note["what"] for note in store.incidents(KEY, 1)] == [LEFT]


def test_a_person_who_marks_the_task_has_decided(make: Make, store: FileReceipts) -> None:
    _, crowd = left(make, store)
    assert list(over(crowd, store, decided=True)) == ["ended"]
    assert store.get(KEY) is None


def test_a_cleared_task_waits_for_that_job_again_and_is_a_task_like_any_other(make: Make, store: FileReceipts) -> None:
    task, crowd = left(make, store)
    task.clear()
    deferred = task.execute()
    assert deferred.kwargs["request_state"]["n"] == 1
    assert [note["what"] for note in store.incidents(KEY, 1)] == [LEFT, TAKEN_UP]
    with pytest.raises(UnknownOutcome):
        task.resume(deferred, UNKNOWN)
    assert list(over(crowd, store)) == ["left_to_a_person"]
    task.clear()
    task.execute()
    assert list(over(crowd, store)) == ["ended"]


def test_one_that_was_given_up_is_ended_whatever_was_noted(make: Make, store: FileReceipts) -> None:
    _, crowd = left(make, store)
    store.drop_owner(KEY, OWNER)
    assert list(over(crowd, store)) == ["ended"]


def test_an_output_that_cannot_be_read_keeps_its_job_too(make: Make, store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> set[str]:
        raise OutputUnreadable(FileUnreadable("/out", "c1", "Permission denied"))

    monkeypatch.setattr(SlurmHook, "missing", refuses)
    task = make(expected_output="/out")
    with pytest.raises(OutputUnreadable):
        task.resume(task.execute(), ENDED)
    crowd = Crowd(jobs={JOB: (job_name_for(KEY, 1), "COMPLETING")})
    store.record(KEY, 1, Receipt(JOB, job_name_for(KEY, 1), "nowhere", released_at=1.0))
    assert "/out can't be read" in over(crowd, store)["left_to_a_person"]
    assert crowd.count("scancel") == 0
