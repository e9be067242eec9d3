"""After a rollback the same candidate does not come back by itself, and what is said is what the ledger has."""

from __future__ import annotations

import pytest

from include.flows import release_tasks, services
from include.stores.errors import ReleaseRefused
from tests.flows.conftest import Plane
from tests.flows.releasing import Candidate


@pytest.fixture
def rolled_back(plane: Plane) -> tuple[Candidate, Candidate, dict[str, object]]:
    """A is champion again, B was released over it and taken back. The last: B's dossier as the first run has it."""
    first, second = Candidate(plane.run(run_id="a"), "a"), Candidate(plane.run(run_id="b"), "b")
    first.release()
    filed = second.dossier()
    second.approve(filed)
    release_tasks.start_canary(filed, "dag:test")
    assert second.promote(filed)["deployment"] == second.deployment
    services.catalog().releases.rollback("demo-tiny", "back", "approver", "users complain", verify=lambda _: True)
    return first, second, filed


def test_the_same_candidate_again_is_no_release_and_says_who_took_it_back(
    plane: Plane, rolled_back: tuple[Candidate, Candidate, dict[str, object]]
) -> None:
    first, second, filed = rolled_back
    again = second.dossier(run_id="b-again")
    assert again["digest"] == filed["digest"]
    assert again["status"].startswith("already rejected: approver took this very release back (rolled back, ledger row ")
    assert "users complain" in again["status"]
    for step in (lambda: release_tasks.start_canary(again, "dag:test"), lambda: second.promote(again)):
        with pytest.raises(ReleaseRefused):
            step()
    assert services.catalog().ledger.champion("demo-tiny") == first.deployment


def test_asked_for_anew_approved_anew_and_observed_anew_it_is_released(
    plane: Plane, rolled_back: tuple[Candidate, Candidate, dict[str, object]]
) -> None:
    _, second, _ = rolled_back
    assert second.release(run_id="b-anew", ask_again=True)["deployment"] == second.deployment
    assert services.catalog().ledger.champion("demo-tiny") == second.deployment


def test_promoting_twice_is_one_release(plane: Plane) -> None:
    made = Candidate(plane.run(run_id="a"), "a")
    filed = made.dossier()
    made.approve(filed)
    release_tasks.start_canary(filed, "dag:test")
    wanted = made.wanted()
    for _ in range(2):  # a worker that died after the ledger's row
        release_tasks.promote(made.run, wanted, made.gates, made.datasets, filed, made.observed(), "dag:test")
    assert len(services.catalog().ledger.entries(kind="released")) == 1
