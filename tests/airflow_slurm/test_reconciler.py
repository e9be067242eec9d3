"""The reconciler over a crowd of jobs: what it asks, whose jobs it ends, and what it only says."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.receipts import JobEnd, Owner, Receipt
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.work import reconciler
from airflow_slurm.work.reconciler import Finding, reconcile

from .conftest import HASTY
from .crowd import Crowd, Hook
from .tasks import OWNER

FAST = replace(HASTY, grace_s=0.3, cancel_wait_s=0.3, pause_s=0.1)


@pytest.fixture(autouse=True)
def again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def passed(crowd: Crowd, store: Any, alive: Any = lambda owner: True, conn_id: str = "c1", **options: Any) -> list[Finding]:
    """What one pass says."""
    hook: SlurmHook = Hook(crowd, conn_id)  # type: ignore[assignment]
    return reconcile(hook, store, alive, policy=FAST, **options)


def kinds(findings: list[Finding]) -> dict[str, int]:
    return {kind: sum(f.kind == kind for f in findings) for kind in {f.kind for f in findings}}


def test_a_pass_over_a_thousand_jobs_asks_the_queue_once_and_accounting_once(store: FileReceipts) -> None:
    crowd = Crowd()
    crowd.submitted(store, 1000)
    for job_id in list(crowd.jobs)[:30]:
        crowd.end(job_id)
    assert passed(crowd, store) == []
    assert (crowd.count("squeue"), crowd.count("sacct"), crowd.connections) == (1, 1, 1)


def test_what_nobody_owns_is_ended_with_looks_for_all_of_it(store: FileReceipts) -> None:
    crowd = Crowd()
    keys = crowd.submitted(store, 50)
    kept = set(keys[40:])
    findings = passed(crowd, store, lambda owner: owner["task_id"] in kept)
    assert kinds(findings) == {"ended": 40}
    assert (len(crowd.jobs), crowd.count("scancel"), crowd.connections) == (10, 1, 1)
    # The pass's own look, one before the signal, and one or two after it.
    assert crowd.count("squeue") <= 4
    assert crowd.count("sacct") <= 3
    assert {s.key for s in store.live()} == kept


def test_submissions_without_a_receipt_are_looked_for_together(store: FileReceipts) -> None:
    crowd = Crowd()
    for i in range(30):
        store.claim(f"k{i}", OWNER)
    crowd.jobs["7"] = (job_name_for("k3", 1), "PENDING")
    assert kinds(passed(crowd, store, lambda owner: False)) == {"ended": 30}
    assert crowd.jobs == {}
    assert crowd.count("squeue") <= 5
    assert crowd.count("sacct") <= 3
    end = store.end_of("k4", 1)
    assert end is not None
    assert end.cause == "never_queued"


def test_one_that_cannot_be_looked_for_keeps_no_other_job_running(store: FileReceipts) -> None:
    crowd = Crowd(accounting_down=True)
    crowd.submitted(store, 2)
    store.claim("nameless", OWNER)
    findings = passed(crowd, store, lambda owner: False)
    assert {f.key for f in findings if f.kind == "unreachable"} == {"nameless"}
    assert kinds(findings) == {"unreachable": 1, "ended": 2}
    assert crowd.jobs == {}
    assert [s.key for s in store.live()] == ["nameless"]


@pytest.mark.parametrize("saves", [True, False])
def test_a_look_that_fails_while_jobs_save_begins_nothing_anew(store: FileReceipts, saves: bool) -> None:
    crowd = Crowd(saves=saves, silent_looks=(3,))  # the pass's own look, one before the signal, and this one
    crowd.submitted(store, 3)
    assert kinds(passed(crowd, store, lambda owner: False)) == {"ended": 3}
    assert [len(argv) for argv in crowd.asked if "--signal=USR1" in argv] == [6]


def test_jobs_that_nobody_could_look_at_to_the_end_are_not_said_to_have_ended(store: FileReceipts) -> None:
    crowd = Crowd(silent_looks=tuple(range(3, 100)))
    crowd.submitted(store, 2)
    assert kinds(passed(crowd, store, lambda owner: False)) == {"unreachable": 2}
    assert len(store.live()) == 2


def test_an_airflow_that_cannot_say_who_still_waits_keeps_no_other_job_running(store: FileReceipts) -> None:
    crowd = Crowd()
    first, second = crowd.submitted(store, 2)

    def alive(owner: Owner) -> bool:
        if owner["task_id"] == first:
            raise ConnectionError("the API server is gone")
        return False

    findings = passed(crowd, store, alive)
    assert {(f.kind, f.key) for f in findings} == {("owner_unknown", first), ("ended", second)}
    assert "the API server is gone" in next(f.detail for f in findings if f.kind == "owner_unknown")
    assert [s.key for s in store.live()] == [first]
    assert list(crowd.jobs) == ["1000"]


def test_a_task_that_was_cleared_while_the_reconciler_asked_for_its_state_keeps_its_job(store: FileReceipts) -> None:
    crowd = Crowd()
    first, _ = crowd.submitted(store, 2)

    def cleared_meanwhile(owner: Owner) -> bool:
        if owner["task_id"] == first:
            store.claim(first, owner)  # the next try, which is the same owner
        return False

    passed(crowd, store, cleared_meanwhile)
    assert [s.key for s in store.live()] == [first]
    assert list(crowd.jobs) == ["1000"]


def test_all_jobs_of_a_submission_that_nobody_owns_are_ended(store: FileReceipts) -> None:
    crowd = Crowd()
    (key,) = crowd.submitted(store, 1)
    name = crowd.jobs["1000"][0]
    crowd.jobs["1001"] = (name, "PENDING")  # a request that was late on its way
    crowd.jobs["1002"] = (name, "RUNNING")
    passed(crowd, store, lambda owner: False)
    assert (store.get(key), crowd.jobs) == (None, {})
    noted = [note for note in store.incidents(key, 1) if note["what"] == "several_jobs_of_one_name"]
    assert [note["detail"] for note in noted] == [{"kept": "1000", "cancelled": ["1001", "1002"]}]


def test_accounting_that_is_some_seconds_late_makes_no_task_without_job(store: FileReceipts) -> None:
    crowd = Crowd(late=1)
    crowd.submitted(store, 3)
    crowd.end("1001")
    assert passed(crowd, store) == []
    crowd.late = 10
    crowd.asked.clear()
    assert kinds(passed(crowd, store)) == {"task_without_job": 1}
    assert (crowd.count("squeue"), crowd.count("sacct")) == (2, 2)


def test_accounting_that_does_not_answer_says_nothing_about_a_job(store: FileReceipts) -> None:
    crowd = Crowd(accounting_down=True)
    crowd.submitted(store, 3)
    crowd.end("1001")
    assert kinds(passed(crowd, store)) == {"unreachable": 1}


def test_of_a_store_of_several_connections_each_keeps_to_its_own(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd()
    crowd.submitted(store, 1)
    store.claim("over c2", OWNER)
    store.record("over c2", 1, Receipt("9", "job-x-1", "c2"))
    store.claim("without a receipt", OWNER | {"task_id": "dead"})
    alive = lambda owner: owner["task_id"] != "dead"  # noqa: E731
    assert passed(crowd, store, alive) == []
    assert store.get("without a receipt") is not None
    # Its job is held here, so it is ours.
    crowd.jobs["77"] = (job_name_for("without a receipt", 1), "PENDING")
    assert kinds(passed(crowd, store, alive)) == {"ended": 1}
    assert "77" not in crowd.jobs
    # After an hour the others had their time.
    store.claim("forgotten by all", OWNER | {"task_id": "dead"})
    monkeypatch.setattr(reconciler, "FOR_OTHERS_S", -1.0)
    assert kinds(passed(crowd, store, alive)) == {"ended": 1}
    assert store.get("forgotten by all") is None


def test_a_job_that_a_person_named_like_ours_and_holds_is_left_alone(store: FileReceipts) -> None:
    crowd = Crowd(
        {"5": ("job-foo", "PENDING"), "6": ("job-0123456789abcdef", "PENDING"), "7": ("job-2024-01", "PENDING")}, reason="JobHeldUser"
    )
    assert passed(crowd, store, lambda owner: False) == []
    assert len(crowd.jobs) == 3


def test_another_airflows_job_is_told_apart_by_the_store_and_left_alone(store: FileReceipts) -> None:
    store.claim("ours", OWNER)
    store.close("ours", 1, JobEnd("cancelled", "never_queued"))
    late, strange = job_name_for("ours", 1), job_name_for("theirs", 1)
    crowd = Crowd({"5": (late, "PENDING"), "6": (strange, "PENDING")}, reason="JobHeldUser")
    told = {f.job_id: f for f in passed(crowd, store, act=False)}
    assert {job_id: f.kind for job_id, f in told.items()} == {"5": "orphan", "6": "stranger"}
    assert len(crowd.jobs) == 2
    assert {f.kind for f in passed(crowd, store)} == {"orphan", "stranger"}
    assert crowd.jobs == {"6": (strange, "PENDING")}


def test_a_store_that_cannot_name_its_keys_cancels_no_orphan(store: FileReceipts) -> None:
    class Plain:
        def __getattr__(self, name: str) -> Any:
            if name == "claimed_keys":
                raise AttributeError(name)
            return getattr(store, name)

    store.claim("ours", OWNER)
    store.close("ours", 1, JobEnd("cancelled"))
    crowd = Crowd({"5": (job_name_for("ours", 1), "PENDING")}, reason="JobHeldUser")
    (told,) = passed(crowd, Plain())
    assert told.kind == "stranger"
    assert "can't tell" in told.detail
    assert list(crowd.jobs) == ["5"]


def test_an_orphan_that_runs_was_released_by_somebody_and_goes_on(store: FileReceipts) -> None:
    store.claim("ours", OWNER)
    store.close("ours", 1, JobEnd("lost"))
    crowd = Crowd({"5": (job_name_for("ours", 1), "RUNNING")})
    assert [f.kind for f in passed(crowd, store)] == ["orphan"]
    assert list(crowd.jobs) == ["5"]
