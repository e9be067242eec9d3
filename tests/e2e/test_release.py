"""A person's no, a task marked by hand, evidence changed after the approval, a second champion, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from local.process import LocalError
from tests.e2e.runs import PATIENCE, Run, Runs, until
from tests.e2e.world import NAME, Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600 * PATIENCE)]

WHY_NOT = "Answers are in form, but I do not trust the length yet."


@pytest.fixture(scope="module")
def candidate(world: World, chain: Chain) -> Mapping[str, Any]:
    """Another policy from the same data, and the state from which its release is asked for; its asset starts `release_policy`."""
    recipe = world.stack.recipe("tiny-second")
    run = {**chain.state["run"], "recipe": recipe.name, "recipe_digest": recipe.digest}
    state = {**chain.state, "run": run}
    del state["policy"]
    optimised = world.runs.start("align_policy", "second", {"state": state})
    optimised.wait()
    return {**state, "policy": optimised.xcom("policy.optimise")}


@pytest.fixture(scope="module")
def rejected(world: World, candidate: Mapping[str, Any]) -> Run:
    """The run that the candidate's asset started, answered with a no."""
    run = until("the candidate's own run", lambda: next((r for r in world.runs.of("release_policy") if _is_of(r, candidate)), None))
    assert isinstance(run, Run)
    if run.state not in ("success", "failed"):
        with pytest.raises(LocalError, match="403"):
            run.answer(world.stack.api("requester"), "Approve", "my own work is fine")
        run.answer(world.stack.api("approver"), "Reject", WHY_NOT)
    run.wait("failed")
    return run


def _is_of(run: Run, candidate: Mapping[str, Any]) -> bool:
    asked = run.xcom("start", "policy") or {}
    return bool(asked.get("key") == candidate["policy"]["key"])


def deployment(run: Run) -> str:
    return str(run.xcom("evaluation.compare_with")["deployment"])


def test_a_no_moves_no_alias_and_the_ledger_has_who_and_why(world: World, chain: Chain, rejected: Run) -> None:
    assert rejected.states()["release.approve[0]"] == "failed"
    row = world.ledger("rejected")[-1]
    assert (row.payload["person"], row.payload["comment"]) == ("approver", WHY_NOT)
    assert row.payload["deployment"] == deployment(rejected) != chain.deployment
    assert world.aliases() == {"candidate": deployment(rejected), "canary": None, "champion": chain.deployment}
    assert rejected.states()["release.start_canary"] == "upstream_failed"
    assert rejected.xcom("outcome") == f"rejected: approver said no ({WHY_NOT})"


def test_the_same_again_is_already_rejected(world: World, candidate: Mapping[str, Any], rejected: Run) -> None:
    again = world.runs.start("release_policy", "second-again", {"state": dict(candidate)})
    again.wait()
    assert again.xcom("outcome") == "already rejected"
    assert again.questions() == []
    assert deployment(again) == deployment(rejected)
    assert again.xcom("evaluation.measure")["reused"] is True


def test_an_approval_marked_as_success_by_hand_releases_nothing(
    world: World, chain: Chain, candidate: Mapping[str, Any], rejected: Run
) -> None:
    run = world.runs.start("release_policy", "second-by-hand", {"state": dict(candidate), "ask_again": True})
    run.wait_for("release.approve[0]", "awaiting_input")
    world.admin.api.request("PATCH", f"{run.path}/taskInstances/release.approve/0", {"new_state": "success"})
    run.wait("failed")
    states = run.states()
    assert (states["release.approve[0]"], states["release.start_canary"]) == ("success", "failed")
    assert "0 of 1 approvals in the ledger, round 2" in run.log("release.start_canary")
    assert world.aliases() == {"candidate": deployment(rejected), "canary": None, "champion": chain.deployment}
    assert deployment(rejected) not in [row.payload["deployment"] for row in world.ledger("released")]


def test_a_gate_report_changed_after_the_approval_voids_it_and_put_back_it_holds(
    world: World, chain: Chain, candidate: Mapping[str, Any], rejected: Run
) -> None:
    run = world.runs.start("release_policy", "second-approved", {"state": dict(candidate), "ask_again": True})
    run.answer(world.stack.api("approver"), "Approve", "Looked at it again: fine.")
    until("the approval in the ledger", lambda: world.ledger("approved")[-1].payload["deployment"] == deployment(rejected))
    report = world.stack.layout.store / f"reports/gates/{run.xcom('evaluation.gates')['digest'].removeprefix('sha256:')}.json"
    good = report.read_bytes()
    changed = good.replace(b'"asked_form_better"', b'"asked_form_BETTER"')
    assert changed != good
    report.write_bytes(changed)
    run.wait("failed")
    report.write_bytes(good)
    assert run.states()["release.promote"] == "failed"
    assert "was changed after it was made" in run.log("release.promote")
    assert world.aliases()["champion"] == chain.deployment
    assert deployment(rejected) not in [row.payload["deployment"] for row in world.ledger("released")]
    run.clear("release.promote")
    until("the run to go on", lambda: run.state in ("queued", "running", "success"))
    run.wait()
    assert run.xcom("outcome") == f"released: {NAME} version {run.xcom('release.dossier')['version']}"
    assert world.aliases() == {"candidate": deployment(rejected), "canary": None, "champion": deployment(rejected)}
    assert world.ledger("approved")[-1].payload["account"] == "person"


def test_one_step_of_an_approver_puts_the_earlier_champion_back(world: World, chain: Chain, rejected: Run) -> None:
    second = deployment(rejected)
    assert world.catalog.ledger.champion(NAME) == second
    stranger = world.admin.start("rollback_release", "back-by-a-stranger", {"name": NAME, "why": "I feel like it."})
    stranger.wait("failed")
    assert "admin may not roll demo-tiny back; approver, demo-approver may" in stranger.log("roll_back")
    assert world.catalog.ledger.champion(NAME) == second
    run = Runs(world.stack.api("approver")).start("rollback_release", "back", {"name": NAME, "why": "Users complain of curt answers."})
    run.wait()
    assert run.xcom("roll_back")["champion"] == chain.deployment
    assert "verifying" in run.log("roll_back")
    assert world.catalog.ledger.champion(NAME) == chain.deployment
    assert world.aliases()["champion"] == chain.deployment
    row = world.ledger("rolled_back")[-1]
    assert (row.actor, row.payload["why"]) == ("approver", "Users complain of curt answers.")
    assert (row.payload["previous"], row.payload["deployment"]) == (second, chain.deployment)
    assert world.catalog.ledger.verify() > 0
    said = world.align("verify")
    assert said.returncode == 0, said.stderr
    assert f"they hold row {run.xcom('roll_back')['head']['seq']}" in said.stdout


def test_what_was_rolled_back_does_not_come_back_by_itself(world: World, chain: Chain, candidate: Mapping[str, Any], rejected: Run) -> None:
    again = world.runs.start("release_policy", "second-after-rollback", {"state": dict(candidate)})
    again.wait()
    assert again.xcom("outcome").startswith("already rejected: approver took this very release back")
    assert again.questions() == []
    assert world.catalog.ledger.champion(NAME) == chain.deployment
