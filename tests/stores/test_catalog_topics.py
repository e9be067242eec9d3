"""Datasets, labels, snapshots, measurements, gate reports, requests."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from include.domain.errors import RecordError
from include.stores.catalog import Catalog
from include.stores.catalog.measurements import Measurement
from include.stores.errors import Conflict, NotFound, StoreError
from tests.stores.test_lineage import info, label
from tests.stores.things import manifest, some_digest


def register(catalog: Catalog, content: str, policy: str = "f1", writer: str = "dag:d/r/t/1") -> Any:
    told = {**info("preferences", content), "filter_policy_version": policy}
    return catalog.datasets.register(told, manifest(content, "dataset"), writer)


def test_the_same_content_is_the_same_version_with_its_first_filter_policy(catalog: Catalog) -> None:
    first = register(catalog, "a", "f1")
    again = register(catalog, "a", "f2", "dag:d/r/t/2")
    assert again == first
    assert (again.version, again.filter_policy_version, again.writer) == (1, "f1", "dag:d/r/t/1")


def test_other_content_is_the_next_version(catalog: Catalog) -> None:
    assert [register(catalog, content).name for content in "abac"] == ["preferences@1", "preferences@2", "preferences@1", "preferences@3"]
    latest = catalog.datasets.latest("preferences")
    assert latest is not None
    assert latest.version == 3
    assert catalog.datasets.latest("nothing") is None


@pytest.mark.parametrize(("name", "version"), [("preferences@1", 1), ("preferences@v2", 2), ("preferences", 2)])
def test_a_version_is_found_by_its_name(catalog: Catalog, name: str, version: int) -> None:
    register(catalog, "a")
    register(catalog, "b")
    assert catalog.datasets.resolve(name).version == version


def test_a_version_that_is_not_there_names_those_that_are(catalog: Catalog) -> None:
    register(catalog, "a")
    with pytest.raises(NotFound, match=r"preferences@9 .* versions of preferences: 1"):
        catalog.datasets.resolve("preferences@9")
    with pytest.raises(NotFound, match="must be a number"):
        catalog.datasets.resolve("preferences@latest")


def test_a_dataset_without_a_content_hash_is_refused(catalog: Catalog) -> None:
    with pytest.raises(RecordError, match="content_hash"):
        catalog.datasets.register({"dataset_id": "x"}, manifest("x", "dataset"), "w")


def test_processes_registering_versions_at_once_leave_no_gap_and_no_double(catalog: Catalog, catalog_url: str) -> None:
    code = """
import sys
from include.stores.catalog import Catalog
from tests.stores.test_lineage import info
from tests.stores.things import manifest
catalog = Catalog.open(sys.argv[1])
for n in range(8):
    catalog.datasets.register(info("d", n), manifest(n, "dataset"), f"process {sys.argv[2]}")
"""
    running = [subprocess.Popen([sys.executable, "-c", code, catalog_url, str(i)]) for i in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert sorted(catalog.datasets.get("d", v).version for v in range(1, 9)) == list(range(1, 9))
    with pytest.raises(NotFound):
        catalog.datasets.get("d", 9)


def test_a_label_is_collected_once_and_again_when_it_changed(catalog: Catalog) -> None:
    catalog.labels.collected([label(1, "b1"), label(2, "b1")])
    catalog.labels.collected([label(1, "b1")])
    assert len(catalog.labels.events("l1")) == 1
    catalog.labels.collected([{**label(1, "b1"), "verdict": "B"}])
    assert [e.kind for e in catalog.labels.events("l1")] == ["collected", "collected"]


def test_the_catalog_never_holds_who_annotated(catalog: Catalog) -> None:
    catalog.labels.collected([{**label(1, "b1"), "annotator_id": "person-7", "reason_codes": ["right"]}])
    with catalog.database.read() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM label_events").all()
    assert "person-7" not in str(rows)


def test_a_withdrawal_is_in_the_ledger_and_can_be_taken_back(catalog: Catalog) -> None:
    catalog.labels.event("l1", "withdrawn", "olga", {"request": "1"})
    catalog.labels.event("l1", "withdrawn", "olga", {"request": "1"})
    assert catalog.labels.withdrawn(["l1", "l2"]) == {"l1"}
    assert [e.subject for e in catalog.ledger.entries(kind="label_withdrawn")] == ["label:l1"]
    catalog.labels.event("l1", "restored", "olga", {"request": "2"})
    assert catalog.labels.withdrawn(["l1"]) == set()
    catalog.labels.event("l1", "withdrawn", "olga", {"request": "3"})
    assert catalog.labels.withdrawn(["l1"]) == {"l1"}


def test_an_unknown_event_is_refused(catalog: Catalog) -> None:
    with pytest.raises(StoreError, match="is none of"):
        catalog.labels.event("l1", "forgotten", "olga")


def test_a_snapshot_is_frozen_for_its_run(catalog: Catalog) -> None:
    first = catalog.labels.record_snapshot("run-1", "b1", 7, some_digest("s1"), "http://a", {"labels": 3})
    again = catalog.labels.record_snapshot("run-1", "b1", 9, some_digest("s2"), "http://a", {"labels": 5})
    assert again == first
    assert (again.high_water_mark, again.digest, again.body) == (7, some_digest("s1"), {"labels": 3})
    assert catalog.labels.snapshot("run-2", "b1") is None


def test_the_last_snapshot_leaves_out_the_run_that_asks(catalog: Catalog) -> None:
    catalog.labels.record_snapshot("run-1", "b1", 7, some_digest("s1"), "u")
    catalog.labels.record_snapshot("run-2", "b1", 9, some_digest("s2"), "u")
    newest, before = catalog.labels.last_snapshot("b1"), catalog.labels.last_snapshot("b1", other_than="run-2")
    assert newest is not None
    assert before is not None
    assert (newest.run_id, before.run_id) == ("run-2", "run-1")
    assert catalog.labels.last_snapshot("b2") is None


@pytest.mark.parametrize("project", ["p", "50% of_it", 'a "quoted" é'])
def test_the_newest_of_a_projects_batches(catalog: Catalog, project: str) -> None:
    of = {"origin": {"candidates": "k", "project": project}}
    for number, (run, name, body) in enumerate(
        [("1", "a", of), ("1", "b", of), ("1", "other", {"origin": {"project": project + "2"}}), ("2", "a", of), ("2", "plain", {"project": project}), ("3", "a", of)]
    ):  # fmt: skip
        catalog.labels.record_snapshot(run, name, number, some_digest(f"s{number}"), "u", body=body)
    assert [(one.name, one.run_id) for one in catalog.labels.newest_of_project(project)] == [("b", "1"), ("a", "3")]
    assert [(one.name, one.run_id) for one in catalog.labels.newest_of_project(project, other_than="3")] == [("b", "1"), ("a", "2")]
    assert catalog.labels.newest_of_project("none") == []


def measurement(**changes: Any) -> Measurement:
    body: dict[str, Any] = {
        "deployment": some_digest("deployment"),
        "suite_digest": some_digest("suite"),
        "metric": "exact_match",
        "scorer": "scorer",
        "generation": "greedy",
        "backend": "transformers",
        "run_key": some_digest("run"),
        "attempt": "1-7.0",
        "items_uri": "sftp://a/items.json",
        "items_digest": some_digest("items"),
        "n": 200,
        "summary": {"mean": 0.5},
    }
    return Measurement(**(body | changes))


def test_the_first_measurement_binds_and_repeats_are_counted(catalog: Catalog) -> None:
    catalog.measurements.record(measurement())
    catalog.measurements.record(measurement())
    assert catalog.measurements.repeats(measurement().key) == 0
    catalog.measurements.record(measurement(attempt="2-9.0", summary={"mean": 0.9}))
    first = catalog.measurements.first(measurement().key)
    assert first is not None
    assert (first.attempt, first.summary) == ("1-7.0", {"mean": 0.5})
    assert catalog.measurements.repeats(measurement().key) == 1
    assert [m.attempt for m in catalog.measurements.of(some_digest("deployment"))] == ["1-7.0", "2-9.0"]


@pytest.mark.parametrize("field", ["deployment", "suite_digest", "metric", "scorer", "generation", "backend", "hardware"])
def test_another_key_is_another_measurement(catalog: Catalog, field: str) -> None:
    catalog.measurements.record(measurement())
    assert catalog.measurements.first(measurement(**{field: some_digest("other")}).key) is None


def report(catalog: Catalog, name: str, verdict: str = "pass", **changes: Any) -> Any:
    told: dict[str, Any] = {"verdict": verdict, "gate_code": "gates@1", "policies_digest": some_digest("policies")}
    return catalog.measurements.record_gate_report(some_digest(name), some_digest("deployment"), {"name": name}, **(told | changes))


def test_the_first_verdict_binds(catalog: Catalog) -> None:
    assert report(catalog, "one", "fail").ordinal == 1
    assert report(catalog, "two", "pass").ordinal == 2
    binding = catalog.measurements.first_verdict(some_digest("deployment"), some_digest("policies"))
    assert binding is not None
    assert binding.verdict == "fail"


def test_the_same_report_twice_is_one_and_other_content_is_refused(catalog: Catalog) -> None:
    assert report(catalog, "one") == report(catalog, "one")
    with pytest.raises(Conflict, match="never overwritten"):
        report(catalog, "one", "fail")


def test_a_backfilled_verdict_never_stands_for_a_release(catalog: Catalog) -> None:
    report(catalog, "one", purpose="backfill", as_of="2026-05-01")
    assert catalog.measurements.first_verdict(some_digest("deployment"), some_digest("policies")) is None
    with pytest.raises(NotFound):
        catalog.measurements.gate_report(some_digest("one"))


def test_the_same_verdict_of_two_days_is_kept_for_each(catalog: Catalog) -> None:
    for day in ("2026-05-01", "2026-05-02"):
        report(catalog, "one", purpose="backfill", as_of=day)
    assert [r.as_of for r in catalog.measurements.reports_of(some_digest("deployment"))] == ["2026-05-01", "2026-05-02"]


def test_a_request_is_accepted_once(catalog: Catalog) -> None:
    first = catalog.requests.accept("key-1", {"type": "dpo"}, "olga")
    again = catalog.requests.accept("key-1", {"type": "dpo"}, "olga")
    assert (first.run_id, first.state, first.fresh) == ("align-1", "queued", True)
    assert (again.run_id, again.fresh) == ("align-1", False)
    assert catalog.requests.accept("key-2", {"type": "dpo"}, "olga").run_id == "align-2"


def test_a_key_that_was_used_for_something_else_is_refused(catalog: Catalog) -> None:
    catalog.requests.accept("key-1", {"type": "dpo"}, "olga")
    for body, person in (({"type": "ppo"}, "olga"), ({"type": "dpo"}, "otto")):
        with pytest.raises(Conflict, match="align-1"):
            catalog.requests.accept("key-1", body, person)


def test_a_final_state_stays(catalog: Catalog) -> None:
    run_id = catalog.requests.accept("key-1", {}, "olga").run_id
    assert catalog.requests.set_state(run_id, "running", "manual__1").dag_run_id == "manual__1"
    catalog.requests.set_state(run_id, "cancelled")
    assert catalog.requests.set_state(run_id, "running").state == "cancelled"
    with pytest.raises(StoreError, match="is none of"):
        catalog.requests.set_state(run_id, "lost")
    assert [r.run_id for r in catalog.requests.newest()] == [run_id]


@pytest.mark.parametrize("run_id", ["align-9", "align-x", "9"])
def test_a_request_that_is_not_there_is_said_so(catalog: Catalog, run_id: str) -> None:
    with pytest.raises(NotFound):
        catalog.requests.get(run_id)
