"""Rollback, taint, and what happens when a process dies in the middle of a release."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from include.stores.catalog import Catalog
from include.stores.catalog.releases import Dossier
from include.stores.errors import (
    ApproverRefused,
    CanaryMissing,
    NoRollbackTarget,
    NotApproved,
    NotFound,
    ReleaseRefused,
    Tainted,
)
from tests.stores.things import commit, deploy, dossier, manifest, release, some_digest, spec


@pytest.fixture
def asked(catalog: Catalog) -> Dossier:
    """A dossier that olga asked about."""
    made = dossier(catalog, deploy(catalog, "helper", some_digest("weights")))
    catalog.releases.ask(made.digest, "run-1", "olga")
    return made


def three_champions(catalog: Catalog) -> list[str]:
    deployments = [deploy(catalog, "helper", some_digest(f"weights {i}")) for i in range(3)]
    for index, deployment in enumerate(deployments):
        release(catalog, deployment, run_id=f"run-{index}")
    return deployments


def test_rollback_goes_to_the_one_before_and_then_further_back(catalog: Catalog) -> None:
    first, second, third = three_champions(catalog)
    assert catalog.ledger.champion("helper") == third
    catalog.releases.rollback("helper", "request-1", "olga", "worse", verify=lambda _: True)
    assert catalog.ledger.champion("helper") == second
    catalog.releases.rollback("helper", "request-2", "olga", "still worse", verify=lambda _: True)
    assert catalog.ledger.champion("helper") == first
    with pytest.raises(NoRollbackTarget, match="there is no earlier one"):
        catalog.releases.rollback("helper", "request-3", "olga", "even worse", verify=lambda _: True)


def test_the_same_rollback_twice_goes_back_once(catalog: Catalog) -> None:
    _, second, _ = three_champions(catalog)
    one = catalog.releases.rollback("helper", "request-1", "olga", "worse", verify=lambda _: True)
    assert catalog.releases.rollback("helper", "request-1", "olga", "worse", verify=lambda _: True) == one
    assert catalog.ledger.champion("helper") == second


def test_rollback_passes_over_what_is_tainted_or_does_not_verify(catalog: Catalog) -> None:
    first, second, third = three_champions(catalog)
    catalog.releases.taint(second, "learned from withdrawn labels", "olga")
    with pytest.raises(NoRollbackTarget, match=rf"{second} is tainted.*{first}: its bytes do not verify"):
        catalog.releases.rollback("helper", "request-1", "olga", "worse", verify=lambda d: d != first)
    assert catalog.ledger.champion("helper") == third
    catalog.releases.rollback("helper", "request-2", "olga", "worse", verify=lambda _: True)
    assert catalog.ledger.champion("helper") == first


def test_rollback_needs_a_reason_and_a_champion(catalog: Catalog) -> None:
    with pytest.raises(ReleaseRefused, match="say why"):
        catalog.releases.rollback("helper", "r", "olga", " ", verify=lambda _: True)
    with pytest.raises(NotFound, match="no champion"):
        catalog.releases.rollback("helper", "r", "olga", "worse", verify=lambda _: True)


def test_a_taint_reaches_all_that_came_from_it(catalog: Catalog) -> None:
    sft = commit(catalog, spec("sft"), {"policy": manifest("sft")}).outputs["policy"].digest
    asked = spec("dpo", inputs={"policy": sft, "preferences": some_digest("pairs")})
    policy = commit(catalog, asked, {"policy": manifest("dpo")}).outputs["policy"].digest
    deployment = deploy(catalog, "helper", policy)
    catalog.releases.taint(some_digest("pairs"), "labels withdrawn", "olga")
    assert catalog.releases.tainted(deployment) == f"{some_digest('pairs')}: labels withdrawn"
    assert catalog.releases.tainted(sft) is None
    with pytest.raises(Tainted, match="labels withdrawn"):
        release(catalog, deployment)


def test_tainting_twice_is_one_row(catalog: Catalog) -> None:
    for _ in range(2):
        catalog.releases.taint("label:7", "wrong", "olga")
    assert len(catalog.ledger.entries(kind="tainted")) == 1


def test_a_process_killed_between_ledger_and_alias_is_mended_by_the_next_call(catalog: Catalog, catalog_url: str, asked: Dossier) -> None:
    """The aliases are a view: whoever comes next sets them from the row that is there."""
    code = """
import json, os, signal, sys
from include.stores.catalog import Catalog
catalog = Catalog.open(sys.argv[1])
catalog.releases.release(sys.argv[2], json.loads(sys.argv[3]), "task")
os.kill(os.getpid(), signal.SIGKILL)  # the alias is never set
"""
    catalog.releases.approve(asked.digest, "anna", "fine")
    argv = [sys.executable, "-c", code, catalog_url, asked.digest, json.dumps(dict(asked.body))]
    assert subprocess.run(argv, timeout=60, check=False).returncode == -9
    again = catalog.releases.release(asked.digest, asked.body, "task")
    assert len(catalog.ledger.entries(kind="released")) == 1
    assert catalog.ledger.aliases("helper")["champion"] == again.payload["deployment"] == asked.deployment


def test_a_process_killed_inside_an_approval_leaves_neither_half(catalog: Catalog, catalog_url: str, asked: Dossier) -> None:
    code = """
import os, signal, sys
from include.stores.catalog import Catalog, dossiers
dossiers._decide = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
Catalog.open(sys.argv[1]).releases.approve(sys.argv[2], "anna", "fine")
"""
    assert subprocess.run([sys.executable, "-c", code, catalog_url, asked.digest], timeout=60, check=False).returncode == -9
    assert catalog.ledger.entries(kind="approved") == []
    decision = catalog.releases.decision(asked.digest)
    assert decision is not None
    assert (decision.state, decision.approved_by) == ("open", ())


def test_two_processes_releasing_at_once_write_one_row(catalog: Catalog, catalog_url: str) -> None:
    code = "import json, sys\nfrom include.stores.catalog import Catalog\n"
    code += "Catalog.open(sys.argv[1]).releases.release(sys.argv[2], json.loads(sys.argv[3]), 'task')"
    made = dossier(catalog, deploy(catalog, "helper", some_digest("w")))
    catalog.releases.ask(made.digest, "run", "olga")
    catalog.releases.approve(made.digest, "anna", "fine")
    argv = [sys.executable, "-c", code, catalog_url, made.digest, json.dumps(dict(made.body))]
    running = [subprocess.Popen(argv) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(catalog.ledger.entries(kind="released")) == 1
    assert catalog.ledger.verify() == 2


def test_a_rollback_voids_the_approval_and_the_canary_of_what_it_undid(catalog: Catalog) -> None:
    """The same candidate against the same champion is the same dossier: a person has to look at it again."""
    release(catalog, first := deploy(catalog, "helper", some_digest("a")), run_id="run-a")
    plan = {"gates": some_digest("gates"), "canary": {"kind": "shadow"}}
    made = dossier(catalog, second := deploy(catalog, "helper", some_digest("b")), body=plan)
    catalog.releases.ask(made.digest, "run-b", "olga")
    catalog.releases.approve(made.digest, "anna", "fine")
    catalog.releases.canary_started(made.digest, "task")
    catalog.releases.canary_passed(made.digest, "task", {"requests": 9})
    catalog.releases.release(made.digest, made.body, "task")
    catalog.releases.rollback("helper", "back", "rita", "users complain", verify=lambda _: True)
    decision = catalog.releases.decision(made.digest)
    assert decision is not None
    assert (decision.state, decision.decided_by) == ("rolled_back", "rita")
    assert "users complain" in str(decision.why)
    for step in (
        lambda: catalog.releases.canary_started(made.digest, "task"),
        lambda: catalog.releases.release(made.digest, made.body, "task"),
    ):
        with pytest.raises(NotApproved, match="round 1 is rolled_back"):
            step()
    with pytest.raises(ApproverRefused, match="a run has to ask anew"):
        catalog.releases.approve(made.digest, "anna", "still fine")
    assert catalog.ledger.champion("helper") == first
    assert catalog.releases.ask(made.digest, "run-c", "olga").state == "rolled_back"
    assert catalog.releases.ask(made.digest, "run-d", "olga", anew=True).state == "open"
    catalog.releases.approve(made.digest, "anna", "looked at the complaints: mended elsewhere")
    with pytest.raises(CanaryMissing, match="none was started"):
        catalog.releases.release(made.digest, made.body, "task")
    catalog.releases.canary_started(made.digest, "task")
    catalog.releases.canary_passed(made.digest, "task", {"requests": 9})
    entry = catalog.releases.release(made.digest, made.body, "task")
    assert (catalog.ledger.champion("helper"), entry.payload["deployment"]) == (second, second)
    assert catalog.releases.release(made.digest, made.body, "task") == entry
    assert len(catalog.ledger.entries(kind="released")) == 3


def test_a_release_that_another_has_followed_is_not_released_again_by_its_old_approval(catalog: Catalog) -> None:
    made = release(catalog, deploy(catalog, "helper", some_digest("a")), run_id="run-a")
    release(catalog, second := deploy(catalog, "helper", some_digest("b")), run_id="run-b")
    with pytest.raises(ReleaseRefused):
        catalog.releases.release(made.digest, made.body, "task")
    assert catalog.ledger.champion("helper") == second


def test_a_candidate_that_was_tainted_after_its_rollback_is_not_released_again(catalog: Catalog) -> None:
    release(catalog, deploy(catalog, "helper", some_digest("a")), run_id="run-a")
    made = release(catalog, second := deploy(catalog, "helper", some_digest("b")), run_id="run-b")
    catalog.releases.rollback("helper", "back", "rita", "worse", verify=lambda _: True)
    catalog.releases.taint(second, "learned from withdrawn labels", "rita")
    catalog.releases.ask(made.digest, "run-c", "olga", anew=True)
    catalog.releases.approve(made.digest, "anna", "fine")
    with pytest.raises(Tainted, match="withdrawn labels"):
        catalog.releases.release(made.digest, made.body, "task")


def test_after_a_rollback_over_several_each_of_them_needs_a_new_approval(catalog: Catalog) -> None:
    first, second, _ = three_champions(catalog)
    catalog.releases.taint(second, "learned from withdrawn labels", "olga")
    catalog.releases.rollback("helper", "back", "rita", "worse", verify=lambda _: True)
    states = [catalog.releases.decision(d.digest).state for d in catalog.releases.dossiers_of(second)]  # type: ignore[union-attr]
    assert (catalog.ledger.champion("helper"), states) == (first, ["rolled_back"])
