"""COMPLETED and a file of the expected name: whose file it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import JobFailed, JobFailedForGood
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import JobEnd, Receipt
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView

from .conftest import OWNER
from .tasks import Make

DONE = JobView("7", phase=Phase.SUCCEEDED, state="COMPLETED")
#: When the cluster queued the job, by its own clock; the worker's is another year.
QUEUED = 1_000_000.0


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """At the process edge: when the files on the cluster were written, by their server's clock."""
    files: dict[str, float] = {}

    def missing(self: SlurmHook, paths: Collection[str], within_s: float, since: float | None = None) -> set[str]:
        return {path for path in paths if path not in files or (since is not None and files[path] < int(since))}

    monkeypatch.setattr(SlurmHook, "missing", missing)
    return files


def state(store: FileReceipts, *ends: str, queued_at: float | None = QUEUED) -> dict[str, Any]:
    """Of the submission that comes after others that ended so; each was queued an hour after the one before."""
    for number, end in enumerate([*ends, ""]):
        claim = store.claim("work", OWNER)
        at = None if queued_at is None else queued_at + 3600 * number
        store.record("work", claim.n, Receipt("7", "a", "nowhere", queued_at=at))
        if end:
            store.close("work", claim.n, JobEnd(end))
    config = {"root": str(store.root)}
    kept = {"receipts": "airflow_slurm.file_receipts.FileReceipts", "receipts_config": config}
    return {"key": "work", "n": claim.n, "since": claim.since, "resubmits": 0, **kept}


@pytest.mark.parametrize("age_s", [301.0, 9e5])
def test_an_output_of_an_earlier_run_is_no_output_of_a_job_that_wrote_nothing(
    make: Make, store: FileReceipts, written: dict[str, float], age_s: float
) -> None:
    written["/out"] = QUEUED - age_s
    task = make(expected_output="/out")
    with pytest.raises(JobFailed, match="was last written before this work was submitted.*fresh_output=False") as caught:
        task.make().accept(task.context, state(store), DONE)
    assert (caught.value.cause, caught.value.retryable) == ("output_stale", False)
    taken = make(expected_output="/out", fresh_output=False).make().accept(task.context, state(store, "failed"), DONE)
    assert taken["state"] == "COMPLETED"


def test_clocks_that_differ_by_minutes_make_no_output_old(make: Make, store: FileReceipts, written: dict[str, float]) -> None:
    written["/out"] = QUEUED - 299
    task = make(expected_output="/out")
    assert task.make().accept(task.context, state(store), DONE)["job_id"] == "7"


@pytest.mark.parametrize(
    ("ends", "fresh"), [(("interrupted", "failed"), True), (("succeeded",), False), (("interrupted", "succeeded"), False)]
)
def test_what_an_earlier_submission_of_the_same_round_made_counts_and_of_a_round_before_not(
    make: Make, store: FileReceipts, written: dict[str, float], ends: tuple[str, ...], fresh: bool
) -> None:
    """A program that is submitted again may find its work done, and leave it."""
    written["/out"] = QUEUED + 60.0
    task, now = make(expected_output="/out"), state(store, *ends)
    if fresh:
        assert task.make().accept(task.context, now, DONE)["n"] == len(ends) + 1
    else:
        with pytest.raises(JobFailed, match="last written before"):
            task.make().accept(task.context, now, DONE)


def test_where_the_cluster_did_not_say_when_a_job_was_queued_its_claim_counts(
    make: Make, store: FileReceipts, written: dict[str, float]
) -> None:
    now = state(store, queued_at=None)
    task = make(expected_output="/out")
    written["/out"] = now["since"] - 200.0
    assert task.make().accept(task.context, now, DONE)["n"] == 1
    written["/out"] = now["since"] - 400.0
    with pytest.raises(JobFailed, match="last written before"):
        task.make().accept(task.context, now, DONE)


def test_a_shard_that_wrote_nothing_is_submitted_again(make: Make, store: FileReceipts, written: dict[str, float]) -> None:
    written |= {"/out-0": QUEUED + 9, "/out-1": QUEUED - 9000}
    operator = make(SlurmArrayOperator, expected_output="/out-%a", shards=2).make()
    views = {index: replace(DONE, job_id=f"7_{index}") for index in (0, 1)}
    assert isinstance(operator, SlurmArrayOperator)
    ends = operator._ends({}, state(store), views)  # type: ignore[typeddict-item]
    assert [(end.succeeded, end.cause, end.retryable) for end in ends.values()] == [(True, "", False), (False, "output_missing", True)]
    assert "last written before this work was submitted" in ends[1].detail


def test_a_task_that_expects_no_output_is_told_what_that_means(make: Make) -> None:
    class Own(SlurmJobOperator):
        def accept(self, *_: Any) -> None: ...

    for task, warns in ((make(), True), (make(expected_output="/out"), False), (make(Own), False)):
        with capture_logs() as said:
            task.make().prepare(task.context)
        assert [line["event"].partition(":")[0] for line in said] == (["This task names no expected_output"] if warns else [])


def test_a_stale_output_ends_the_task_without_retries(make: Make, store: FileReceipts, written: dict[str, float]) -> None:
    written["/out"] = 5.0
    task = make(expected_output="/out")
    deferred = task.execute()
    with pytest.raises(JobFailedForGood, match="last written before"):
        task.resume(deferred, {"status": "ended", "view": DONE.to_json()})
    end = store.end_of("work", 1)
    assert end is not None
    assert end.cause == "output_stale"
