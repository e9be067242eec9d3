"""An array holds several keys: a submission of each, taken with the array, closed with it, shared by nobody."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_slurm.receipts import JobEnd, Receipt
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import Incarnation, JobView
from include.stores.catalog import Catalog
from include.stores.catalog.receipts import CatalogReceipts
from include.stores.errors import KeyHeld, NotFound
from tests.stores.test_receipts import owner
from tests.stores.things import commit, manifest, spec

PARTS = [spec(seed=seed).key for seed in (1, 2, 3)]
ARRAY = "sha256:" + "a" * 64


def array(url: str, *numbers: int) -> CatalogReceipts:
    return CatalogReceipts(url, gpus=2, parts={str(i): PARTS[i] for i in numbers or (0, 1, 2)})


def receipt() -> Receipt:
    return Receipt("5501", "align-a-1", "slurm_default", "c1", 1000.0, None, "/arrays/a/1/slurm-5501_%a.log", "0-2%2")


def test_the_array_takes_a_submission_of_each_key(catalog_url: str) -> None:
    store = array(catalog_url)
    assert store.claim(ARRAY, owner("a")).n == 1
    assert store.held(ARRAY, 1) == {0: (PARTS[0], 1), 1: (PARTS[1], 1), 2: (PARTS[2], 1)}
    assert [item.key for item in store.live()] == [ARRAY], "an array stands for its tasks"
    assert store.claim(ARRAY, owner("b")).adopted
    assert CatalogReceipts(catalog_url).held(PARTS[0], 1) == {}


def test_a_key_that_an_array_works_on_is_nobody_elses(catalog_url: str) -> None:
    array(catalog_url).claim(ARRAY, owner("a"))
    with pytest.raises(KeyHeld, match=f"task 1 of the array {ARRAY}"):
        CatalogReceipts(catalog_url).claim(PARTS[1], owner("b"))
    with pytest.raises(KeyHeld):
        CatalogReceipts(catalog_url).resolve(PARTS[1], "lost", "ada", "it is gone")


def test_what_is_committed_or_held_is_left_out(catalog: Catalog, catalog_url: str) -> None:
    commit(catalog, spec(seed=1), {"policy": manifest(1)})
    CatalogReceipts(catalog_url).claim(PARTS[1], owner("plain"))
    store = array(catalog_url)
    store.claim(ARRAY, owner("a"))
    assert store.held(ARRAY, 1) == {2: (PARTS[2], 1)}
    other = "sha256:" + "b" * 64
    with pytest.raises(KeyHeld, match="done, or other jobs work on them"):
        array(catalog_url).claim(other, owner("b"))
    assert CatalogReceipts(catalog_url).get(other) is None, "a claim that takes nothing leaves nothing behind"
    assert CatalogReceipts(catalog_url).get(other) is None


def test_each_key_has_the_receipt_of_its_task(catalog_url: str) -> None:
    store = array(catalog_url)
    store.claim(ARRAY, owner("a"))
    store.record(ARRAY, 1, receipt())
    kept = store.history(PARTS[2])[0]["receipt"]
    assert (kept["job_id"], kept["log_path"], kept["array"]) == ("5501_2", "/arrays/a/1/slurm-5501_2.log", None)
    assert store.history(ARRAY)[0]["receipt"]["array"] == "0-2%2"


def test_closing_the_array_frees_its_keys_and_only_what_failed_is_taken_again(catalog: Catalog, catalog_url: str) -> None:
    store = array(catalog_url)
    store.claim(ARRAY, owner("a"))
    commit(catalog, spec(seed=1), {"policy": manifest(1)})
    commit(catalog, spec(seed=3), {"policy": manifest(3)})
    shards = {
        "0": {"outcome": "succeeded", "cause": "", "detail": "part 1"},
        "1": {"outcome": "failed", "cause": "oom", "detail": "part 2"},
    }
    store.close(ARRAY, 1, JobEnd("interrupted", "parts_failed", view=JobView("5501", phase=Phase.FAILED), shards=shards))
    ends = [store.history(key)[0]["end"] for key in PARTS]
    assert [(end["outcome"], end["cause"]) for end in ends] == [("succeeded", ""), ("failed", "oom"), ("interrupted", "parts_failed")]
    assert store.claim(ARRAY, owner("a")).n == 2
    assert store.held(ARRAY, 2) == {1: (PARTS[1], 2)}


def test_the_reconcilers_close_reaches_the_parts_too(catalog_url: str) -> None:
    """It knows the catalog and no array."""
    array(catalog_url).claim(ARRAY, owner("a"))
    plain = CatalogReceipts(catalog_url)
    assert plain.drop_owner(ARRAY, owner("a")) == 0
    plain.close(ARRAY, 1, JobEnd("cancelled", "given_up", closed_by="reconciler"))
    assert plain.live() == []
    assert plain.claim(PARTS[0], owner("b")).n == 2


def test_a_person_resolves_the_array_and_with_it_its_keys(catalog_url: str) -> None:
    array(catalog_url).claim(ARRAY, owner("a"))
    plain = CatalogReceipts(catalog_url)
    plain.resolve(ARRAY, "lost", "ada", "the node is gone")
    assert plain.history(PARTS[1])[0]["end"]["outcome"] == "lost"
    with pytest.raises(NotFound):
        plain.resolve(PARTS[1], "lost", "ada", "again")


def test_gpu_seconds_are_kept_under_the_key_of_the_part(catalog: Catalog, catalog_url: str) -> None:
    store = array(catalog_url)
    store.claim(ARRAY, owner("a"))
    catalog.runs.plan(spec(seed=2))
    view = JobView("5503", "c1", phase=Phase.SUCCEEDED, incarnations=(Incarnation(0, "COMPLETED", elapsed_s=10.0),))
    store.observe(PARTS[1], 1, view)
    assert [(row.name, row.gpu_seconds) for row in catalog.runs.attempts(PARTS[1])] == [("1-5503.0", 20.0)]


def test_of_two_arrays_at_once_each_key_is_taken_by_one(catalog_url: str) -> None:
    found: dict[str, Any] = {}

    def take(name: str) -> None:
        key = "sha256:" + name * 64
        try:
            store = array(catalog_url)
            store.claim(key, owner(name))
            found[name] = store.held(key, 1)
        except KeyHeld:
            found[name] = {}

    threads = [threading.Thread(target=take, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [key for held in found.values() for key, _ in held.values()]
    assert sorted(taken) == sorted(PARTS)
