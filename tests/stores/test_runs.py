"""The commit of an attempt: one wins, whoever asks, however often, whatever dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from include.domain.errors import IntegrityError
from include.stores.catalog import Catalog
from include.stores.errors import NotFound
from tests.stores.things import STORE, commit, manifest, report, some_digest, spec

RACE = """
import json, sys, time
from include.stores.catalog import Catalog
url, call, start = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
catalog = Catalog.open(url)
time.sleep(max(0.0, start - time.time()))
done = catalog.runs.commit_attempt(**call)
print(json.dumps([done.attempt, done.won]))
"""


def test_a_planned_run_is_there_before_it_starts(catalog: Catalog) -> None:
    asked = spec()
    catalog.runs.plan(asked)
    found = catalog.runs.get(asked.key)
    assert found is not None
    assert (found.spec, found.committed_attempt) == (asked, None)
    assert catalog.runs.committed(asked.key) is None


def test_planning_twice_is_one_run(catalog: Catalog) -> None:
    first, second = catalog.runs.plan(spec()), catalog.runs.plan(spec())
    assert first == second
    assert len(catalog.runs.newest()) == 1


def test_a_commit_registers_outputs_with_their_place(catalog: Catalog) -> None:
    made = manifest("policy")
    done = commit(catalog, spec(), {"policy": made})
    assert done.won
    assert done.outputs["policy"].digest == made.digest
    path = done.outputs["policy"].path
    assert path == f"runs/{spec().key.removeprefix('sha256:')}/attempts/1-7.0/output/policy"
    assert catalog.artifacts.locate(made.digest, STORE) == path
    assert catalog.artifacts.locations(made.digest)[0].uri == f"{STORE}/{path}"


def test_the_same_commit_twice_gives_the_same_answer(catalog: Catalog) -> None:
    assert commit(catalog, spec(), {"policy": manifest("p")}) == commit(catalog, spec(), {"policy": manifest("p")})


def test_the_loser_sees_the_winner_and_changes_nothing(catalog: Catalog) -> None:
    commit(catalog, spec(), {"policy": manifest("first")}, attempt="1-7.0")
    lost = commit(catalog, spec(), {"policy": manifest("second")}, attempt="2-9.0")
    assert (lost.attempt, lost.won) == ("1-7.0", False)
    assert lost.outputs["policy"].digest == manifest("first").digest
    assert catalog.artifacts.get(manifest("second").digest) is None


@pytest.mark.parametrize("outcome", ["interrupted", "failed"])
def test_only_a_complete_attempt_is_committed(catalog: Catalog, outcome: str) -> None:
    catalog.runs.plan(spec())
    told = report(spec().key, "1-7.0", {}, outcome)
    with pytest.raises(IntegrityError, match=f"ended '{outcome}'"):
        catalog.runs.commit_attempt(spec().key, "1-7.0", told, {}, STORE)
    assert catalog.runs.committed(spec().key) is None


def test_a_report_of_another_attempt_is_refused(catalog: Catalog) -> None:
    catalog.runs.plan(spec())
    with pytest.raises(IntegrityError, match=r"says key .* attempt 2-8\.0"):
        catalog.runs.commit_attempt(spec().key, "1-7.0", report(spec().key, "2-8.0", {}), {}, STORE)


def test_a_manifest_that_the_report_does_not_name_is_refused(catalog: Catalog) -> None:
    catalog.runs.plan(spec())
    told = report(spec().key, "1-7.0", {"policy": manifest("told")})
    with pytest.raises(IntegrityError, match="the report names outputs"):
        catalog.runs.commit_attempt(spec().key, "1-7.0", told, {"policy": manifest("other").to_json()}, STORE)


def test_a_run_that_was_never_planned_is_not_committed_and_leaves_no_trace(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="plan it before"):
        catalog.runs.commit_attempt(spec().key, "1-7.0", report(spec().key, "1-7.0", {}), {}, STORE)
    assert catalog.runs.attempts(spec().key) == []


def test_two_processes_committing_at_once_have_one_winner(catalog: Catalog, catalog_url: str) -> None:
    import time

    catalog.runs.plan(spec())
    start = str(time.time() + 3)
    running = []
    for attempt in ("1-7.0", "1-8.0"):
        made = manifest(attempt)
        call = {"key": spec().key, "attempt_name": attempt, "base_uri": STORE}
        call |= {"report_json": report(spec().key, attempt, {"policy": made}), "outputs": {"policy": made.to_json()}}
        argv = [sys.executable, "-c", RACE, catalog_url, json.dumps(call), start]
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    winner = catalog.runs.committed(spec().key)
    assert winner is not None
    assert [attempt for attempt, _ in answers] == [winner.attempt] * 2
    assert sorted(won for _, won in answers) == [False, True]
    assert winner.outputs["policy"].digest == manifest(winner.attempt).digest


def test_a_process_killed_inside_the_commit_leaves_nothing_and_the_next_one_commits(catalog: Catalog, catalog_url: str) -> None:
    code = """
import json, os, signal, sys
from include.stores.catalog import Catalog, runs
real = runs._record_outputs
def die(*args):
    real(*args)
    os.kill(os.getpid(), signal.SIGKILL)
runs._record_outputs = die
Catalog.open(sys.argv[1]).runs.commit_attempt(**json.loads(sys.argv[2]))
"""
    made = manifest("policy")
    catalog.runs.plan(spec())
    call = {"key": spec().key, "attempt_name": "1-7.0", "base_uri": STORE}
    call |= {"report_json": report(spec().key, "1-7.0", {"policy": made}), "outputs": {"policy": made.to_json()}}
    died = subprocess.run([sys.executable, "-c", code, catalog_url, json.dumps(call)], timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    assert catalog.runs.committed(spec().key) is None
    assert catalog.artifacts.get(made.digest) is None
    assert commit(catalog, spec(), {"policy": made}).won


def test_the_report_of_an_interrupted_attempt_is_kept(catalog: Catalog) -> None:
    catalog.runs.plan(spec())
    catalog.runs.record_report(spec().key, "1-7.0", report(spec().key, "1-7.0", {}, "interrupted"))
    (row,) = catalog.runs.attempts(spec().key)
    assert row.report is not None
    assert (row.name, row.report.outcome) == ("1-7.0", "interrupted")


def test_an_artifact_without_a_copy_here_says_where_one_is(catalog: Catalog) -> None:
    catalog.artifacts.register(manifest("m"))
    catalog.artifacts.add_location(manifest("m").digest, "s3://bucket", "objects/m", verified=True)
    with pytest.raises(NotFound, match="s3://bucket/objects/m"):
        catalog.artifacts.locate(manifest("m").digest, STORE)
    assert catalog.artifacts.locations(manifest("m").digest)[0].verified_at is not None


def test_a_forgotten_location_is_gone(catalog: Catalog) -> None:
    digest = catalog.artifacts.register(manifest("m"))
    catalog.artifacts.add_location(digest, STORE, "a")
    catalog.artifacts.forget_location(digest, STORE, "a")
    assert catalog.artifacts.locations(digest) == []


def test_a_large_artifact_size_is_kept_exactly(catalog: Catalog) -> None:
    from include.domain.manifest import FileEntry, Manifest

    big = Manifest("model", (FileEntry("w", 2**40 + 1, some_digest("w")),))
    catalog.artifacts.register(big)
    found = catalog.artifacts.get(big.digest)
    assert found is not None
    assert found.size_bytes == 2**40 + 1
