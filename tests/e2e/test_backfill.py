"""`airflow backfill` of `evaluate_policy`: each day measures what was champion then; nothing is released, no verdict overwritten.

The last of these modules: it gives the stack a catalog whose ledger reaches back for days.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from include.stores.catalog import Catalog
from tests.e2e.replay import Clock, copy_evidence, release_in_the_past
from tests.e2e.runs import PATIENCE, Run, until
from tests.e2e.world import NAME, Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900 * PATIENCE)]

DAYS = 4


@dataclass(frozen=True)
class History:
    """The days, the champion at the end of each, and the catalog that knows."""

    days: tuple[datetime, ...]
    champions: tuple[str, ...]
    catalog: Catalog


def measured_candidates(world: World, chain: Chain) -> list[str]:
    """Deployments that were a run's candidate, oldest first; `chain` gives at least one."""
    found: list[str] = []
    for run in reversed(world.catalog.runs.newest("evaluate", limit=100)):
        candidate = run.spec.config["deployments"]["candidate"]["digest"]
        if run.committed_attempt and candidate not in found and world.catalog.measurements.of(candidate):
            found.append(candidate)
    assert chain.deployment in found
    return found


@pytest.fixture(scope="module")
def history(world: World, chain: Chain) -> Iterator[History]:
    """Four days, each with another champion, in a catalog that the stack then uses."""
    deployments = measured_candidates(world, chain)
    assert len(deployments) >= DAYS, "the modules before this one measure that many candidates"
    four_am = datetime.combine(datetime.now(UTC).date(), time(4), UTC)
    days = tuple(four_am - timedelta(days=number) for number in range(DAYS + 2, 2, -1))
    champions = tuple(deployments[:DAYS])
    url = f"sqlite:///{world.stack.layout.state('catalog')}/history.db"
    clock = Clock(days[0] - timedelta(days=30))
    catalog = Catalog.open(url, clock=clock)
    if catalog.ledger.champion(NAME) is None:
        copy_evidence(world.catalog, catalog, str(world.stack.layout.store))
        release_in_the_past(
            world.catalog, catalog, clock, NAME, [(day + timedelta(hours=8), d) for day, d in zip(days, champions, strict=True)]
        )
    world.stack.changes["ALIGN_CATALOG_URL"] = url
    world.stack.up()
    yield History(days, champions, Catalog.open(url))
    del world.stack.changes["ALIGN_CATALOG_URL"]


@pytest.fixture(scope="module")
def backfilled(world: World, history: History) -> dict[datetime, Run]:
    """The runs of the backfill by their day."""
    world.admin.pause("evaluate_policy", False)
    body = {
        "dag_id": "evaluate_policy",
        "from_date": history.days[0].isoformat(),
        "to_date": history.days[-1].isoformat(),
        "dag_run_conf": {"recipe": "tiny"},
        "max_active_runs": 2,
    }
    # Airflow on SQLite refuses with 503 while anything else writes, and says so: asked again. 409: there is one already.
    until("the backfill", lambda: _begun(world.admin.api.request("POST", "/backfills", body, accept=(409, 503))), seconds=120, every=2.0)

    def runs() -> dict[datetime, Run] | None:
        found = world.admin.api.get("/dags/evaluate_policy/dagRuns", limit=100, run_type="backfill")["dag_runs"]
        by_day = {datetime.fromisoformat(r["logical_date"]): Run(world.admin.api, "evaluate_policy", r["dag_run_id"]) for r in found}
        return by_day if len(by_day) == DAYS else None

    made: dict[datetime, Run] = until("the runs of the backfill", runs)
    for run in made.values():
        run.wait(seconds=400)
    return made


def _begun(answer: dict[str, Any]) -> bool:
    return "id" in answer or "already" in str(answer.get("detail"))


def test_each_day_measures_its_own_champion(history: History, backfilled: dict[datetime, Run]) -> None:
    assert len(set(history.champions)) == DAYS
    assert {day: run.xcom("judge")["deployment"] for day, run in backfilled.items()} == dict(
        zip(history.days, history.champions, strict=True)
    )
    ends = {day: datetime.fromisoformat(run.xcom("judge")["as_of"]) for day, run in backfilled.items()}
    assert ends == {day: day + timedelta(days=1) for day in history.days}


def test_each_verdict_stands_beside_the_others_with_gate_code_and_policies(history: History, backfilled: dict[datetime, Run]) -> None:
    for run in backfilled.values():
        judged = run.xcom("judge")
        kept = [r for r in history.catalog.measurements.reports_of(judged["deployment"]) if r.purpose == "backfill"]
        assert [(r.digest, r.verdict) for r in kept] == [(judged["gates"], "pass" if judged["passed"] else "fail")]
        assert kept[0].gate_code
        assert kept[0].policies_digest.startswith("sha256:")


def test_nothing_is_released_and_nothing_measured_twice(world: World, history: History, backfilled: dict[datetime, Run]) -> None:
    kinds = [entry.kind for entry in history.catalog.ledger.history(NAME)]
    assert kinds == ["candidate", "approved", "released"] * DAYS
    assert history.catalog.ledger.champion(NAME) == history.champions[-1]
    assert [run.xcom("measure")["reused"] for run in backfilled.values()] == [True] * DAYS
    assert all("release" not in task for run in backfilled.values() for task in run.states())
