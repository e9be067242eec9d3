"""The store of receipts: one live submission of a key, whoever asks, however often."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from airflow_slurm.errors import BadConnection
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import Claim, JobEnd, KeepsTokens, Receipt, ReceiptStore, drop_claim, history_of, load_store, token_of
from airflow_slurm.truth.view import JobView

from .conftest import OTHER, OWNER
from .looking import owners_of

KEY = "sft/run-12/train"
RECEIPT = Receipt("9001", "job-1", "slurm_default", submitted_at=5.0)


def test_the_first_claim_makes_a_submission_and_the_second_joins_it(store: FileReceipts) -> None:
    first, second = store.claim(KEY, OWNER), store.claim(KEY, OTHER)
    assert (first.n, first.adopted, first.receipt) == (1, False, None)
    assert (second.n, second.adopted, second.since) == (1, True, first.since)
    assert sorted(o["run_id"] for o in owners_of(store, KEY)) == ["r1", "r2"]


def test_a_claim_after_the_receipt_finds_it(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    store.record(KEY, 1, RECEIPT)
    assert store.claim(KEY, OWNER).receipt == RECEIPT


def test_after_a_close_comes_the_next_number_and_no_owner_is_left(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    store.close(KEY, 1, JobEnd("interrupted"))
    assert store.get(KEY) is None
    assert owners_of(store, KEY) == []
    claim = store.claim(KEY, OTHER)
    assert (claim.n, claim.adopted) == (2, False)
    assert owners_of(store, KEY) == [OTHER]


def test_the_first_close_stays(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    store.close(KEY, 1, JobEnd("failed", "time_limit", view=JobView("9001")))
    store.close(KEY, 1, JobEnd("succeeded"))
    assert store.end_of(KEY, 1) == JobEnd("failed", "time_limit", view=JobView("9001"))


def test_a_receipt_that_comes_after_the_close_changes_nothing(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    store.close(KEY, 1, JobEnd("cancelled"))
    store.record(KEY, 1, RECEIPT)
    assert store.claim(KEY, OWNER).receipt is None


def test_dropping_the_last_owner_marks_the_submission_as_ending(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    store.claim(KEY, OTHER)
    assert store.drop_owner(KEY, OWNER) == 1
    assert not store.claim(KEY, OTHER).ending
    assert store.drop_owner(KEY, OTHER) == 0
    late = store.claim(KEY, OWNER)
    assert late.ending
    assert owners_of(store, KEY) == []


def test_every_call_may_come_twice(store: FileReceipts) -> None:
    assert store.claim(KEY, OWNER).n == store.claim(KEY, OWNER).n == 1
    assert store.claim(KEY, OTHER).n == store.claim(KEY, OTHER).n == 1
    assert len(owners_of(store, KEY)) == 2
    assert (store.drop_owner(KEY, OTHER), store.drop_owner(KEY, OTHER)) == (1, 1)


def test_whoever_acts_late_for_an_old_try_takes_nothing_from_the_next_one(store: FileReceipts) -> None:
    assert isinstance(store, KeepsTokens)
    old = store.claim(KEY, OWNER).token
    assert token_of(store, KEY, OWNER) == old
    new = store.claim(KEY, OWNER).token
    assert (new != old, token_of(store, KEY, OWNER)) == (True, new)
    assert drop_claim(store, KEY, OWNER, old) == 1
    assert owners_of(store, KEY) == [OWNER]
    assert not store.claim(KEY, OTHER).ending
    assert drop_claim(store, KEY, OWNER, token_of(store, KEY, OWNER)) == 1
    assert drop_claim(store, KEY, OTHER, None) == 0
    late = store.claim(KEY, OWNER)
    assert (late.ending, late.token, token_of(store, KEY, OWNER)) == (True, None, None)


def test_owners_of_a_store_that_kept_no_tokens_are_dropped_as_before(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    (kept,) = store.root.glob("*/1/owners/*.json")
    kept.rename(kept.with_name(kept.name.partition(".")[0] + ".json"))
    assert (owners_of(store, KEY), token_of(store, KEY, OWNER)) == ([OWNER], None)
    assert drop_claim(store, KEY, OWNER, None) == 0
    assert history_of(store, KEY)[0].owners == (OWNER,)


def test_live_lists_what_is_open(store: FileReceipts) -> None:
    store.claim("a", OWNER)
    store.claim("b", OWNER)
    store.record("b", 1, RECEIPT)
    store.claim("c", OWNER)
    store.close("c", 1, JobEnd("failed"))
    assert {(s.key, s.n, s.receipt.job_id if s.receipt else None) for s in store.live()} == {("a", 1, None), ("b", 1, "9001")}


def test_incidents_are_kept_in_order(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    store.incident(KEY, 1, "several_jobs", {"kept": "1"})
    store.incident(KEY, 1, "again", {})
    assert [note["what"] for note in store.incidents(KEY, 1)] == ["several_jobs", "again"]


def test_what_was_seen_is_kept(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    store.observe(KEY, 1, JobView("9001", state="RUNNING"))
    [record] = history_of(store, KEY)
    assert record.view == JobView("9001", state="RUNNING")


def _claims(root: str, number: int, results: multiprocessing.Queue[list[Claim]]) -> None:
    store = FileReceipts(root)
    results.put([store.claim(f"key-{i}", OWNER | {"run_id": f"r{number}"}) for i in range(20)])


def test_of_several_processes_exactly_one_makes_each_submission(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[list[Claim]] = context.Queue()
    processes = [context.Process(target=_claims, args=(str(tmp_path / "r"), number, results)) for number in range(4)]
    for process in processes:
        process.start()
    claims = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    made = [sum(not answers[i].adopted for answers in claims) for i in range(20)]
    assert made == [1] * 20
    assert {answer.n for answers in claims for answer in answers} == {1}
    assert len(owners_of(FileReceipts(str(tmp_path / "r")), "key-7")) == 4


def test_a_claimer_that_died_before_its_first_write_is_adopted(store: FileReceipts) -> None:
    store.claim(KEY, OWNER)
    folder = next(path for path in store.root.iterdir()) / "1"
    (folder / "claimed.json").unlink()
    claim = store.claim(KEY, OTHER)
    assert (claim.n, claim.adopted) == (1, True)
    assert claim.since > 1_500_000_000


def test_a_store_is_rebuilt_from_path_and_config(tmp_path: Path) -> None:
    store = load_store("airflow_slurm.file_receipts.FileReceipts", {"root": str(tmp_path / "r")})
    assert isinstance(store, ReceiptStore)
    assert store.claim(KEY, OWNER).n == 1


@pytest.mark.parametrize(("path", "config"), [
    ("airflow_slurm.nowhere.Store", {}), ("airflow_slurm.file_receipts.Nothing", {}), ("NoDot", {}), ("airflow_slurm.file_receipts.FileReceipts", {}),
    ("pathlib.PurePosixPath", {}),
])  # fmt: skip
def test_a_store_that_is_none_is_refused(path: str, config: dict[str, str]) -> None:
    with pytest.raises(BadConnection):
        load_store(path, config)


def test_the_history_of_a_key_holds_all_its_submissions_and_everyone_who_waited(store: FileReceipts) -> None:
    view = JobView("9001", state="RUNNING", observed_at=7.0).remembering(JobView("9001"))
    store.claim(KEY, OWNER)
    store.record(KEY, 1, RECEIPT)
    store.observe(KEY, 1, view)
    store.incident(KEY, 1, "odd", {"why": "a test"})
    store.drop_owner(KEY, OWNER)
    store.close(KEY, 1, JobEnd("cancelled", view=view, shards={"0": {"index": 0}}))
    store.claim(KEY, OTHER)
    first, second = history_of(store, KEY)
    assert (first.n, first.receipt, first.view, first.owners) == (1, RECEIPT, view, (OWNER,))
    assert first.end == JobEnd("cancelled", view=view, shards={"0": {"index": 0}})
    assert [note["what"] for note in first.incidents] == ["odd"]
    assert (second.n, second.receipt, second.end, second.owners) == (2, None, None, (OTHER,))
    assert history_of(store, "another key") == []
    assert [change.state for change in view.history] == ["RUNNING"]


@pytest.mark.parametrize("left", [b'{"at": 3, "what": "od', b"\xff\x00{", b"[]", b""])
def test_a_note_that_was_cut_off_hides_no_other_and_is_named(store: FileReceipts, left: bytes) -> None:
    store.claim(KEY, OWNER)
    store.incident(KEY, 1, "before", {})
    with (store._folder(KEY) / "1" / "incidents.jsonl").open("ab") as file:
        file.write(left)  # and here the process was killed
    store.incident(KEY, 1, "after", {})
    [record] = history_of(store, KEY)
    assert [note["what"] for note in record.incidents] == ["before", *(["torn_note"] if left else []), "after"]
