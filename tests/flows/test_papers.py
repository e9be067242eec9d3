"""MLflow's version says what was decided: after approval, canary, release and rollback; a judgement made anew replaces the old papers."""

from __future__ import annotations

import pytest

from include.flows import release_tasks, services
from include.flows.errors import Rejected
from include.flows.papers import history, papers_of, renew
from include.flows.rollback_tasks import rollback
from tests.flows.conftest import Plane
from tests.flows.releasing import Candidate


def tags(plane: Plane, made: Candidate) -> dict[str, str]:
    return {name: plane.registry.tags[made.deployment][name] for name in ("approval", "approved_by", "canary", "release")}


def test_a_version_says_at_each_step_what_the_ledger_has(plane: Plane) -> None:
    made = Candidate(plane.run(), "a")
    filed = made.dossier()
    dossier = services.catalog().releases.dossier(filed["digest"])
    renew(dossier)
    assert tags(plane, made) == {"approval": "open", "approved_by": "–", "canary": "none", "release": "not released"}
    made.approve(filed)
    release_tasks.start_canary(filed, "dag:test")
    assert tags(plane, made) == {"approval": "approved", "approved_by": "approver", "canary": "canary_started", "release": "not released"}
    made.promote(filed)
    assert tags(plane, made) == {"approval": "approved", "approved_by": "approver", "canary": "canary_passed", "release": "champion"}
    card = plane.registry.papers[made.deployment].card
    said = card.split("## Decisions")[1].split("##")[0]
    assert [line.split(" UTC: ")[1].split(" by ")[0] for line in said.split("\n") if line] == [
        "approved", "canary started", "canary passed", "released",
    ]  # fmt: skip
    assert "approved by approver: looked at the table (ledger row 2)" in said
    head = services.catalog().ledger.head()
    assert plane.registry.tags[made.deployment]["ledger_head"] == f"{head['seq']} {head['hash']}"


def test_an_aborted_canary_stands_on_the_version_with_its_reasons(plane: Plane) -> None:
    made = Candidate(plane.run(), "a")
    filed = made.dossier()
    made.approve(filed)
    release_tasks.start_canary(filed, "dag:test")
    with pytest.raises(Rejected, match="latency_ratio is 9"):
        made.promote(filed, made.observed("aborted", ("latency_ratio is 9, above its limit 3",)))
    assert tags(plane, made)["canary"] == "canary_aborted"
    assert "canary aborted by dag:test: latency_ratio is 9" in plane.registry.papers[made.deployment].card


def test_after_a_rollback_both_versions_say_so(plane: Plane) -> None:
    first, second = Candidate(plane.run(run_id="a"), "a"), Candidate(plane.run(run_id="b"), "b")
    first.release()
    second.release()
    assert tags(plane, first)["release"] == "released"
    rollback("demo-tiny", "users complain", "approver", "back")
    assert (tags(plane, first)["release"], tags(plane, second)["release"]) == ("champion", "rolled_back")
    assert tags(plane, second)["approval"] == "rolled_back"
    for made in (first, second):
        assert "by approver: users complain" in plane.registry.papers[made.deployment].card


def test_the_same_facts_give_the_same_papers(plane: Plane) -> None:
    made = Candidate(plane.run(), "a")
    dossier = services.catalog().releases.dossier(made.dossier()["digest"])
    assert papers_of(dossier).digest == papers_of(dossier).digest
    assert history(dossier) == []
