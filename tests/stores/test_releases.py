"""Approval, canary, release, rollback, taint: nothing moves a champion but what the ledger allows."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from include.domain.errors import RecordError
from include.stores.catalog import Catalog
from include.stores.catalog.releases import Dossier, deployment_digest
from include.stores.catalog.tables_evidence import decisions
from include.stores.errors import (
    ApproverRefused,
    CanaryMissing,
    ChampionMoved,
    EvidenceChanged,
    LedgerBroken,
    NotApproved,
    NotFound,
    ReleaseRefused,
)
from tests.stores.test_ledger import tamper
from tests.stores.things import deploy, deployment_body, dossier, release, some_digest

SHADOW = {"gates": some_digest("gates"), "canary": {"kind": "shadow", "requests": 100}}


@pytest.fixture
def deployment(catalog: Catalog) -> str:
    return deploy(catalog, "helper", some_digest("weights"))


@pytest.fixture
def asked(catalog: Catalog, deployment: str) -> Dossier:
    """A dossier that olga asked about."""
    made = dossier(catalog, deployment)
    catalog.releases.ask(made.digest, "run-1", "olga")
    return made


def test_a_deployment_is_more_than_its_weights() -> None:
    body = deployment_body(some_digest("w"))
    other = {**body, "system_prompt": "Be brief."}
    assert deployment_digest(body) != deployment_digest(other)
    with pytest.raises(RecordError, match="system_prompt missing"):
        deployment_digest({k: v for k, v in body.items() if k != "system_prompt"})


def test_a_dossier_keeps_its_digest(catalog: Catalog, asked: Dossier) -> None:
    assert catalog.releases.dossier(asked.digest) == asked
    assert catalog.releases.file_dossier(asked) == asked.digest


def test_a_dossier_without_a_canary_plan_or_an_approver_is_refused(catalog: Catalog, deployment: str) -> None:
    with pytest.raises(RecordError, match="canary"):
        dossier(catalog, deployment, body={})
    with pytest.raises(RecordError, match="nothing is released unasked"):
        dossier(catalog, deployment, approvals_needed=0)


def test_an_approval_opens_the_way(catalog: Catalog, asked: Dossier, deployment: str) -> None:
    decision = catalog.releases.approve(asked.digest, "anna", "looks right")
    assert (decision.state, decision.decided_by, decision.approved_by) == ("approved", "anna", ("anna",))
    entry = catalog.releases.release(asked.digest, asked.body, "task")
    assert entry.payload["approved_by"] == ["anna"]
    assert catalog.ledger.champion("helper") == deployment
    assert [e.kind for e in catalog.ledger.history("helper")] == ["approved", "released"]


def test_without_an_approval_nothing_is_released(catalog: Catalog, asked: Dossier) -> None:
    with pytest.raises(NotApproved, match="0 of 1 approvals"):
        catalog.releases.release(asked.digest, asked.body, "task")
    assert catalog.ledger.champion("helper") is None


def test_an_approval_that_only_the_decisions_table_says_does_not_count(catalog: Catalog, asked: Dossier) -> None:
    with catalog.database.write("ledger") as connection:
        connection.execute(sa.update(decisions).values(state="approved", decided_by="eve"))
    with pytest.raises(NotApproved, match="0 of 1 approvals in the ledger"):
        catalog.releases.release(asked.digest, asked.body, "task")


def test_nobody_was_asked(catalog: Catalog, deployment: str) -> None:
    made = dossier(catalog, deployment)
    with pytest.raises(NotFound, match="ask first"):
        catalog.releases.approve(made.digest, "anna", "fine")
    with pytest.raises(NotApproved, match="nobody was asked"):
        catalog.releases.release(made.digest, made.body, "task")


@pytest.mark.parametrize("person", ["olga", "Olga", " OLGA "])
def test_who_asked_cannot_approve(catalog: Catalog, asked: Dossier, person: str) -> None:
    with pytest.raises(ApproverRefused, match="asked for this release"):
        catalog.releases.approve(asked.digest, person, "fine by me")
    assert catalog.ledger.entries(kind="approved") == []


def test_a_comment_is_required(catalog: Catalog, asked: Dossier) -> None:
    for answer in (catalog.releases.approve, catalog.releases.reject):
        with pytest.raises(ApproverRefused, match="comment is required"):
            answer(asked.digest, "anna", "  ")


def test_the_same_answer_twice_is_one_row(catalog: Catalog, asked: Dossier) -> None:
    first = catalog.releases.approve(asked.digest, "anna", "fine")
    assert catalog.releases.approve(asked.digest, "Anna", "fine again") == first
    assert len(catalog.ledger.entries(kind="approved")) == 1


def test_two_distinct_persons_where_two_are_asked_for(catalog: Catalog, deployment: str) -> None:
    made = dossier(catalog, deployment, approvals_needed=2)
    catalog.releases.ask(made.digest, "run-1", "olga")
    assert catalog.releases.approve(made.digest, "anna", "fine").state == "open"
    assert catalog.releases.approve(made.digest, "ANNA", "fine").state == "open"
    with pytest.raises(NotApproved, match="1 of 2"):
        catalog.releases.release(made.digest, made.body, "task")
    assert catalog.releases.approve(made.digest, "bert", "fine").state == "approved"
    catalog.releases.release(made.digest, made.body, "task")


def test_a_no_ends_the_round_and_is_on_record(catalog: Catalog, asked: Dossier) -> None:
    decision = catalog.releases.reject(asked.digest, "anna", "too short")
    assert (decision.state, decision.decided_by, decision.why) == ("rejected", "anna", "too short")
    (entry,) = catalog.ledger.entries(kind="rejected")
    assert (entry.actor, entry.payload["comment"], entry.subject) == ("anna", "too short", asked.digest)
    with pytest.raises(ApproverRefused, match="rejected; a run has to ask anew"):
        catalog.releases.approve(asked.digest, "bert", "but I like it")
    with pytest.raises(NotApproved, match="rejected"):
        catalog.releases.release(asked.digest, asked.body, "task")


def test_a_no_after_a_yes_still_stops_it(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.approve(asked.digest, "anna", "fine")
    catalog.releases.reject(asked.digest, "bert", "no")
    with pytest.raises(NotApproved, match="rejected"):
        catalog.releases.release(asked.digest, asked.body, "task")


def test_a_no_stands_for_later_runs_until_one_asks_anew(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.reject(asked.digest, "anna", "no")
    assert catalog.releases.ask(asked.digest, "run-2", "olga").state == "rejected"
    again = catalog.releases.ask(asked.digest, "run-3", "olga", anew=True)
    assert (again.state, again.round) == ("open", 2)
    assert catalog.releases.ask(asked.digest, "run-3", "olga", anew=True) == again


def test_an_approval_of_an_earlier_round_does_not_count(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.approve(asked.digest, "anna", "fine")
    catalog.releases.reject(asked.digest, "bert", "no")
    catalog.releases.ask(asked.digest, "run-2", "olga", anew=True)
    with pytest.raises(NotApproved, match="0 of 1 approvals in the ledger, round 2"):
        catalog.releases.release(asked.digest, asked.body, "task")


def test_silence_is_an_outcome_and_another_run_asks_again(catalog: Catalog, asked: Dossier) -> None:
    assert catalog.releases.no_answer(asked.digest, "airflow").state == "no_answer"
    assert catalog.releases.ask(asked.digest, "run-1", "olga").state == "no_answer"
    assert catalog.releases.ask(asked.digest, "run-2", "olga").state == "open"


def test_an_answer_that_came_before_the_deadline_stands(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.approve(asked.digest, "anna", "fine")
    assert catalog.releases.no_answer(asked.digest, "airflow").state == "approved"
    assert catalog.ledger.entries(kind="no_answer") == []


def test_two_runs_share_an_open_round(catalog: Catalog, asked: Dossier) -> None:
    second = catalog.releases.ask(asked.digest, "run-2", "otto")
    assert (second.round, second.asked_by) == (1, ("olga", "otto"))
    assert [d.dossier for d in catalog.releases.waiting()] == [asked.digest]
    with pytest.raises(ApproverRefused):
        catalog.releases.approve(asked.digest, "otto", "fine")


def test_everybody_who_asked_on_the_way_is_no_approver(catalog: Catalog, asked: Dossier) -> None:
    """A run that a second person started goes on with what the first one asked for: neither approves it."""
    second = catalog.releases.ask(asked.digest, "run-2", "otto", also=["anna"])
    assert second.asked_by == ("olga", "otto", "anna")
    assert catalog.releases.asked_in("run-2") == asked.digest
    for person in ("otto", "anna"):
        with pytest.raises(ApproverRefused, match="asked for this release"):
            catalog.releases.approve(asked.digest, person, "fine")


def test_who_rejected_cannot_open_a_new_round_by_asking_without_saying_so(catalog: Catalog, deployment: str) -> None:
    made = dossier(catalog, deployment, approvals_needed=2)
    catalog.releases.ask(made.digest, "run-1", "olga")
    catalog.releases.approve(made.digest, "anna", "fine")
    catalog.releases.reject(made.digest, "bert", "no")
    assert catalog.releases.ask(made.digest, "run-2", "anna").state == "rejected"


def test_the_dossier_of_a_run_is_found_by_the_run(catalog: Catalog, asked: Dossier) -> None:
    assert catalog.releases.asked_in("run-1") == asked.digest
    assert catalog.releases.asked_in("run-2") is None


def test_an_approver_who_asks_later_opens_a_new_round(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.approve(asked.digest, "anna", "fine")
    again = catalog.releases.ask(asked.digest, "run-2", "anna")
    assert (again.round, again.state, again.approved_by) == (2, "open", ())
    with pytest.raises(NotApproved):
        catalog.releases.release(asked.digest, asked.body, "task")


def test_a_demonstration_account_counts_for_demonstrations_only(catalog: Catalog, asked: Dossier, deployment: str) -> None:
    with pytest.raises(ApproverRefused, match="demonstration account"):
        catalog.releases.approve(asked.digest, "demo-approver", "auto", account="demonstration")
    made = dossier(catalog, deployment, "demo-helper", demonstration=True)
    catalog.releases.ask(made.digest, "run-1", "demo-owner")
    catalog.releases.approve(made.digest, "demo-approver", "auto", account="demonstration")
    catalog.releases.release(made.digest, made.body, "task")
    assert catalog.ledger.entries(name="demo-helper", kind="approved")[0].payload["account"] == "demonstration"
    assert catalog.ledger.entries(name="demo-helper", kind="released")[0].payload["demonstration"] is True


def test_demonstrations_keep_names_of_their_own(catalog: Catalog, deployment: str) -> None:
    release(catalog, deployment, "demo-helper", demonstration=True)
    made = dossier(catalog, deploy(catalog, "demo-helper", some_digest("2")), "demo-helper")
    catalog.releases.ask(made.digest, "run-2", "olga")
    catalog.releases.approve(made.digest, "anna", "fine")
    with pytest.raises(ReleaseRefused, match="names of their own"):
        catalog.releases.release(made.digest, made.body, "task")


def test_evidence_that_changed_after_the_approval_voids_it(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.approve(asked.digest, "anna", "fine")
    with pytest.raises(EvidenceChanged, match="changed since then: gates"):
        catalog.releases.release(asked.digest, {**asked.body, "gates": some_digest("other gates")}, "task")
    assert catalog.ledger.champion("helper") is None


def test_a_champion_that_moved_voids_the_approval(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.approve(asked.digest, "anna", "fine")
    release(catalog, deploy(catalog, "helper", some_digest("faster")), run_id="other")
    with pytest.raises(ChampionMoved, match="the approval is void"):
        catalog.releases.release(asked.digest, asked.body, "task")


def test_a_broken_ledger_releases_nothing(catalog: Catalog, asked: Dossier) -> None:
    catalog.ledger.append("note", {}, "olga")
    catalog.releases.approve(asked.digest, "anna", "fine")
    tamper(catalog, "UPDATE ledger SET actor = 'eve' WHERE seq = 1")
    with pytest.raises(LedgerBroken, match="ledger row 1"):
        catalog.releases.release(asked.digest, asked.body, "task")


def test_releasing_twice_is_one_row(catalog: Catalog, asked: Dossier) -> None:
    catalog.releases.approve(asked.digest, "anna", "fine")
    first = catalog.releases.release(asked.digest, asked.body, "task")
    assert catalog.releases.release(asked.digest, asked.body, "task") == first
    assert catalog.releases.already_released("helper", asked.deployment) == first
    assert len(catalog.ledger.entries(kind="released")) == 1


def test_proposing_twice_is_one_row(catalog: Catalog, asked: Dossier) -> None:
    assert catalog.releases.propose(asked.digest, "task") == catalog.releases.propose(asked.digest, "task")
    assert catalog.ledger.aliases("helper") == {"candidate": asked.deployment, "canary": None, "champion": None}


def with_shadow(catalog: Catalog, deployment: str) -> Dossier:
    made = dossier(catalog, deployment, body=SHADOW)
    catalog.releases.ask(made.digest, "run-1", "olga")
    return made


def test_a_canary_needs_the_approval(catalog: Catalog, deployment: str) -> None:
    made = with_shadow(catalog, deployment)
    with pytest.raises(NotApproved):
        catalog.releases.canary_started(made.digest, "task")
    assert catalog.ledger.canary("helper") is None


def test_a_planned_canary_has_to_pass_first(catalog: Catalog, deployment: str) -> None:
    made = with_shadow(catalog, deployment)
    catalog.releases.approve(made.digest, "anna", "fine")
    with pytest.raises(CanaryMissing, match="none was started"):
        catalog.releases.release(made.digest, made.body, "task")
    catalog.releases.canary_started(made.digest, "task")
    assert catalog.ledger.canary("helper") == deployment
    with pytest.raises(CanaryMissing, match="canary_started"):
        catalog.releases.release(made.digest, made.body, "task")
    passed = catalog.releases.canary_passed(made.digest, "task", {"requests": 100})
    assert catalog.releases.canary_passed(made.digest, "task", {"requests": 100}) == passed
    catalog.releases.release(made.digest, made.body, "task")
    assert catalog.ledger.aliases("helper") == {"candidate": None, "canary": None, "champion": deployment}


def test_an_aborted_canary_releases_nothing_and_may_begin_again(catalog: Catalog, deployment: str) -> None:
    made = with_shadow(catalog, deployment)
    catalog.releases.approve(made.digest, "anna", "fine")
    first = catalog.releases.canary_started(made.digest, "task")
    assert catalog.releases.canary_started(made.digest, "task") == first
    catalog.releases.canary_aborted(made.digest, "task", {"errors": 0.5})
    assert catalog.ledger.canary("helper") is None
    with pytest.raises(ReleaseRefused, match="already ended as canary_aborted"):
        catalog.releases.canary_passed(made.digest, "task", {})
    with pytest.raises(CanaryMissing):
        catalog.releases.release(made.digest, made.body, "task")
    assert catalog.releases.canary_started(made.digest, "task").seq > first.seq


def test_a_canary_that_was_never_started_does_not_pass(catalog: Catalog, deployment: str) -> None:
    made = with_shadow(catalog, deployment)
    with pytest.raises(CanaryMissing, match="no canary was started"):
        catalog.releases.canary_passed(made.digest, "task", {})
