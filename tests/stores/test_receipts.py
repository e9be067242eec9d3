"""Submissions and owners: one live job a key, never by accident two."""

from __future__ import annotations

import threading
import time
from dataclasses import fields
from typing import Any

import pytest

from airflow_slurm import receipts as provider
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import Incarnation, JobView
from airflow_slurm.work.left import LEFT, left_why, take_up
from include.stores.catalog import Catalog
from include.stores.catalog.receipts import CatalogReceipts, Claim, Receipt, Submission
from include.stores.errors import NotFound, StoreError
from tests.stores.things import spec

KEY = spec().key
PATH = "include.stores.catalog.receipts.CatalogReceipts"


def owner(run: str, map_index: int = -1) -> dict[str, Any]:
    return {"dag_id": "refresh", "run_id": run, "task_id": "sft", "map_index": map_index}


def receipt(job_id: str = "17") -> provider.Receipt:
    return provider.Receipt(job_id, "align-1", "slurm_default", "c1", 1000.0, None, "/log")


@pytest.fixture
def store(catalog_url: str) -> CatalogReceipts:
    return CatalogReceipts(catalog_url, gpus=2)


def owners_of(store: CatalogReceipts) -> list[dict[str, Any]]:
    live = store.get(KEY)
    return [] if live is None else list(live.owners)


def test_a_trigger_rebuilds_it_from_a_path_and_json(catalog_url: str) -> None:
    rebuilt = provider.load_store(PATH, {"url": catalog_url})
    assert isinstance(rebuilt, provider.ReceiptStore)
    assert rebuilt.claim(KEY, owner("a")).n == 1


@pytest.mark.parametrize(("ours", "theirs"), [(Receipt, provider.Receipt), (Claim, provider.Claim), (Submission, provider.Submission)])
def test_our_records_have_the_fields_of_the_provider(ours: type, theirs: type) -> None:
    assert [(f.name, f.default) for f in fields(ours)] == [(f.name, f.default) for f in fields(theirs)]


def test_the_first_claim_makes_submission_1(store: CatalogReceipts) -> None:
    claim = store.claim(KEY, owner("a"))
    assert (claim.n, claim.receipt, claim.adopted, claim.ending) == (1, None, False, False)


def test_whoever_acts_late_for_an_old_try_takes_nothing_from_the_next_one(store: CatalogReceipts) -> None:
    old, new = store.claim(KEY, owner("a")).token, store.claim(KEY, owner("a")).token
    assert isinstance(store, provider.KeepsTokens)
    assert old != new == provider.token_of(store, KEY, owner("a"))
    assert provider.drop_claim(store, KEY, owner("a"), old) == 1
    assert owners_of(store) == [owner("a")]
    assert provider.drop_claim(store, KEY, owner("a"), new) == 0
    assert (store.token_of(KEY, owner("a")), store.claim(KEY, owner("a")).token) == (None, None)
    assert provider.history_of(store, KEY)[0].owners == (owner("a"),)


def test_a_second_run_adopts_the_living_submission(store: CatalogReceipts) -> None:
    first = store.claim(KEY, owner("a"))
    store.record(KEY, 1, receipt())
    second = store.claim(KEY, owner("b"))
    assert (second.n, second.adopted, second.since) == (1, True, first.since)
    assert second.receipt is not None
    assert second.receipt.job_id == "17"
    assert owners_of(store) == [owner("a"), owner("b")]


def test_the_same_owner_twice_is_one_owner(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    store.claim(KEY, owner("a"))
    assert owners_of(store) == [owner("a")]


def test_after_a_close_the_next_claim_counts_on(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    store.close(KEY, 1, provider.JobEnd("interrupted"))
    assert store.get(KEY) is None
    assert owners_of(store) == []
    claim = store.claim(KEY, owner("a"))
    assert (claim.n, claim.adopted, claim.receipt) == (2, False, None)


def test_the_first_close_stays(store: CatalogReceipts, catalog: Catalog) -> None:
    store.claim(KEY, owner("a"))
    store.close(KEY, 1, provider.JobEnd("succeeded", closed_by="task"))
    store.close(KEY, 1, provider.JobEnd("failed", closed_by="reconciler"))
    with catalog.database.read() as connection:
        rows = connection.exec_driver_sql("SELECT closed_by FROM submissions").scalars().all()
    assert rows == ["task"]


def test_a_late_close_of_submission_1_leaves_submission_2_alive(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    store.close(KEY, 1, provider.JobEnd("interrupted"))
    store.claim(KEY, owner("b"))
    store.close(KEY, 1, provider.JobEnd("failed"))
    found = store.get(KEY)
    assert found is not None
    assert (found.n, found.owners) == (2, (owner("b"),))


def test_a_receipt_written_after_the_close_changes_nothing(store: CatalogReceipts, catalog: Catalog) -> None:
    store.claim(KEY, owner("a"))
    store.record(KEY, 1, receipt("17"))
    store.close(KEY, 1, provider.JobEnd("succeeded"))
    store.record(KEY, 1, receipt("99"))
    with catalog.database.read() as connection:
        text = connection.exec_driver_sql("SELECT receipt FROM submissions").scalar()
    assert '"job_id":"17"' in str(text)


def test_a_receipt_for_a_submission_that_nobody_claimed_is_refused(store: CatalogReceipts) -> None:
    with pytest.raises(NotFound, match="claim it first"):
        store.record(KEY, 1, receipt())


def test_the_last_owner_leaving_marks_the_job_as_ending(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    store.claim(KEY, owner("b"))
    assert store.drop_owner(KEY, owner("a")) == 1
    assert store.live()[0].ending is False
    assert store.drop_owner(KEY, owner("b")) == 0
    assert store.live()[0].ending is True


def test_a_job_that_is_ending_is_not_adopted_and_gets_no_owner(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    store.drop_owner(KEY, owner("a"))
    claim = store.claim(KEY, owner("b"))
    assert claim.ending is True
    assert owners_of(store) == []


def test_dropping_a_stranger_marks_nothing_while_an_owner_is_left(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    assert store.drop_owner(KEY, owner("stranger")) == 1
    assert store.live()[0].ending is False


def test_of_many_claims_at_once_exactly_one_makes_the_submission(catalog_url: str) -> None:
    Catalog.open(catalog_url)
    answers: list[Claim] = []
    gate = threading.Barrier(6)

    def claim(run: int) -> None:
        mine = CatalogReceipts(catalog_url)
        gate.wait()
        answers.append(mine.claim(KEY, owner(f"run-{run}")))

    threads = [threading.Thread(target=claim, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(a.adopted for a in answers) == [False, True, True, True, True, True]
    assert {a.n for a in answers} == {1}
    assert len(owners_of(CatalogReceipts(catalog_url))) == 6


def test_the_database_itself_refuses_a_second_living_submission(store: CatalogReceipts, catalog: Catalog) -> None:
    import sqlalchemy as sa

    from include.stores.catalog.tables_work import submissions

    store.claim(KEY, owner("a"))
    second = sa.insert(submissions).values(key=KEY, n=2, since="t", gpus=0, ending=False)
    with pytest.raises(sa.exc.IntegrityError), catalog.database.write("receipts") as connection:
        connection.execute(second)


def test_a_living_submission_stays_locked_until_a_person_says_what_happened(store: CatalogReceipts, catalog: Catalog) -> None:
    store.claim(KEY, owner("a"))
    store.record(KEY, 1, receipt())
    assert store.claim(KEY, owner("later")).adopted is True
    store.resolve(KEY, "lost", "olga", "the node burnt")
    (entry,) = catalog.ledger.entries(kind="submission_resolved")
    assert (entry.actor, entry.subject, entry.payload["resolution"], entry.payload["why"]) == ("olga", KEY, "lost", "the node burnt")
    claim = store.claim(KEY, owner("a"))
    assert (claim.n, claim.adopted) == (2, False)


def test_resolving_needs_a_known_word_a_person_and_a_reason(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    for how, who, why in [("maybe", "olga", "x"), ("lost", " ", "x"), ("lost", "olga", "")]:
        with pytest.raises(StoreError):
            store.resolve(KEY, how, who, why)
    assert store.get(KEY) is not None


def test_resolving_what_is_not_alive_is_refused(store: CatalogReceipts) -> None:
    with pytest.raises(NotFound, match="no live submission"):
        store.resolve(KEY, "ended", "olga", "gone")


def test_gpu_seconds_are_counted_for_each_incarnation(store: CatalogReceipts, catalog: Catalog) -> None:
    store.claim(KEY, owner("a"))
    incarnations = (Incarnation(0, "NODE_FAIL", 1000.0, 1060.0, 60.0), Incarnation(1, "COMPLETED", 1100.0, 1130.0, 30.0))
    view = JobView("17", "c1", Phase.SUCCEEDED, "COMPLETED", restarts=1, incarnations=incarnations)
    CatalogReceipts(str(catalog.database.url.render_as_string(hide_password=False))).observe(KEY, 1, view)
    store.close(KEY, 1, provider.JobEnd("succeeded", view=view))
    rows = [(r.name, r.state, r.gpu_seconds, r.cluster) for r in catalog.runs.attempts(KEY)]
    assert rows == [("1-17.0", "NODE_FAIL", 120.0, "c1"), ("1-17.1", "COMPLETED", 60.0, "c1")]


def test_gpu_seconds_are_those_of_the_gpus_that_a_run_was_given_and_what_slurm_ended_counts_as_lost(
    store: CatalogReceipts, catalog: Catalog
) -> None:
    store.claim(KEY, owner("a"))
    incarnations = (Incarnation(0, "PREEMPTED", 1000.0, 1060.0, 60.0, gpus=8), Incarnation(1, "COMPLETED", 1100.0, 1130.0, 30.0, gpus=0))
    store.observe(KEY, 1, JobView("17", "c1", Phase.SUCCEEDED, "COMPLETED", restarts=1, incarnations=incarnations))
    assert [(r.gpu_seconds, r.lost) for r in catalog.runs.attempts(KEY)] == [(480.0, True), (0.0, False)]


def test_a_receipt_keeps_when_its_job_was_queued_and_whether_slurm_may_put_it_back(store: CatalogReceipts) -> None:
    store.claim(KEY, owner("a"))
    store.record(KEY, 1, provider.Receipt("17", "a-1", "c1", queued_at=5.0, requeue=False))
    receipt = store.claim(KEY, owner("a")).receipt
    assert receipt is not None
    assert (receipt.queued_at, receipt.requeue) == (5.0, False)
    # One that was written before there was such a mark says nothing of it.
    assert Receipt.from_json({"job_id": "17", "job_name": "a-1", "conn_id": "c1"}).requeue is None


def test_an_incident_is_kept_once(store: CatalogReceipts) -> None:
    for _ in range(2):
        store.incident(KEY, 1, "two jobs of one name", {"kept": "17", "cancelled": "18"})
    assert [i["what"] for i in store.incidents(KEY)] == ["two jobs of one name"]


def test_what_is_left_to_a_person_is_known_until_a_task_takes_it_up(store: CatalogReceipts) -> None:
    n = store.claim(KEY, owner("a")).n
    for _ in range(2):
        store.incident(KEY, n, LEFT, {"why": "nobody knows", "at": time.time()})
        assert left_why(store, KEY, n) == "nobody knows"
        take_up(store, KEY, n)
        assert left_why(store, KEY, n) == ""


def test_the_history_of_a_key_is_what_the_provider_reads(store: CatalogReceipts) -> None:
    view = JobView("17", state="RUNNING", phase=Phase.RUNNING).remembering(JobView("17"))
    store.claim(KEY, owner("a"))
    store.record(KEY, 1, receipt())
    store.observe(KEY, 1, view)
    store.incident(KEY, 1, "odd", {"why": "a test"})
    store.drop_owner(KEY, owner("a"))
    store.close(KEY, 1, provider.JobEnd("cancelled", view=view, shards={"0": {"index": 0}}))
    store.claim(KEY, owner("b"))
    first, second = provider.history_of(store, KEY)
    assert (first.n, first.receipt, first.view) == (1, receipt(), view)
    assert first.end is not None
    assert (first.end.outcome, first.end.shards) == ("cancelled", {"0": {"index": 0}})
    assert list(first.owners) == [owner("a"), owner("b")]
    assert [note["what"] for note in first.incidents] == ["odd"]
    assert (second.n, second.receipt, second.end, second.incidents) == (2, None, None, ())
    assert provider.history_of(store, "another key") == []


def test_the_keys_that_were_ever_claimed_are_known(store: CatalogReceipts) -> None:
    """By them the reconciler tells a job that was once ours from that of another installation."""
    assert isinstance(store, provider.KeepsKeys)
    store.claim(KEY, owner("a"))
    store.close(KEY, 1, provider.JobEnd("cancelled"))
    store.claim(KEY, owner("a"))
    assert store.claimed_keys() == [KEY]


def test_over_which_connection_it_was_sent_is_kept_and_the_first_one_stays(store: CatalogReceipts) -> None:
    assert isinstance(store, provider.KeepsConnections)
    n = store.claim(KEY, owner("a")).n
    assert store.sent_over(KEY, n) is None
    assert [store.sent_over(KEY, n, name) for name in ("a", "b", None)] == ["a", "a", "a"]
    assert store.sent_over(KEY, n + 1) is None
