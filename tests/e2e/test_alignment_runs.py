"""Alignment runs by name, on a live stack: asked for twice and run once, looked at, compared, cancelled while the job runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from include.domain.layout import RunDir
from include.stages.refs import DatasetRef
from local.http_client import call
from local.secret_files import password
from tests.e2e.runs import PATIENCE, Run, until
from tests.e2e.world import Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900 * PATIENCE)]


class Client:
    """The API as one of Airflow's users."""

    def __init__(self, world: World, user: str) -> None:
        url = world.stack.description()["airflow"]["url"]
        self.url = f"{url}/alignment/v1/alignment-runs"
        _, answer = call("POST", f"{url}/auth/token", {"username": user, "password": password(world.stack.layout, user)})
        self.token = answer["access_token"]

    def ask(self, method: str, path: str = "", body: Any = None, key: str = "") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}", **({"Idempotency-Key": key} if key else {})}
        return call(method, f"{self.url}{path}", body, headers)

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def state_of(self, run_id: str) -> str:
        return str(self.get(f"/{run_id}")["state"])


@pytest.fixture(scope="module")
def client(world: World) -> Client:
    return Client(world, "requester")


@pytest.fixture(scope="module", autouse=True)
def alone(world: World) -> Iterator[None]:
    """What follows a policy stays off."""
    world.admin.pause("release_policy")
    yield
    world.admin.pause("release_policy", False)


def wish(chain: Chain, config: str) -> dict[str, str]:
    sft = chain.state["sft"]["outputs"]["policy"]["digest"]
    data = str(DatasetRef.from_json(chain.state["pairs"]["preferences"]))
    return {"type": "dpo", "baseCheckpoint": sft, "referenceCheckpoint": sft, "dataset": data, "config": config}


@pytest.fixture(scope="module")
def done(client: Client, chain: Chain) -> str:
    """A run that has ended well, asked for twice."""
    asked = [client.ask("POST", body=wish(chain, "tiny-third@v1"), key="third") for _ in range(2)]
    assert [status for status, _ in asked] == [202, 202], asked
    assert asked[0][1]["runId"] == asked[1][1]["runId"]
    run_id = str(asked[0][1]["runId"])
    until(f"the end of {run_id}", lambda: client.state_of(run_id) in ("succeeded", "failed"), seconds=400, every=1.0)
    return run_id


def _step(world: World, key: str) -> int:
    """Which step the newest attempt of a stage says it is at."""
    said = sorted((world.stack.layout.store / RunDir(key).attempts).glob("*/progress.json"))
    return int(json.loads(said[-1].read_text())["step"]) if said else 0


@pytest.fixture(scope="module")
def cancelled(world: World, client: Client, chain: Chain) -> Mapping[str, Any]:
    """A run cancelled while its job ran: what its page said before."""
    status, asked = client.ask("POST", body=wish(chain, "tiny-endless@v1"), key="endless")
    assert status == 202, asked
    run_id = asked["runId"]
    if client.state_of(run_id) == "cancelled":  # in a home that was kept
        return {"runId": run_id, **client.get(f"/{run_id}")}
    shown = until("its job", lambda: (found := client.get(f"/{run_id}"))["jobs"] and found["jobs"][0]["jobId"] and found, seconds=240)
    name = f"align-{shown['stageKey'].removeprefix('sha256:')[:16]}-1"
    until("the job to run", lambda: world.queued().get(name) == "RUNNING", seconds=120)
    until("its first step", lambda: _step(world, shown["stageKey"]) > 0, seconds=120)
    Run(world.runs.api, "align_policy", shown["dagRunId"]).wait_until_watched("policy.optimise")
    status, answer = client.ask("DELETE", f"/{run_id}")
    assert (status, answer["state"] in ("cancelling", "cancelled")) == (202, True), answer
    until("the end of the cancelled run", lambda: client.state_of(run_id) == "cancelled", seconds=180, every=1.0)
    return dict(shown)


def test_one_key_is_one_run_and_one_job(world: World, client: Client, done: str) -> None:
    shown = client.get(f"/{done}")
    assert (shown["state"], shown["askedBy"], shown["jobs"]) == ("succeeded", "requester", [])
    assert [job.state for job in world.jobs(shown["stageKey"])] == ["COMPLETED"]
    assert [run.run_id for run in world.runs.of("align_policy")].count(shown["dagRunId"]) == 1
    assert done in [run["runId"] for run in client.get("")]


def test_its_metrics_are_those_of_its_one_attempt(client: Client, done: str) -> None:
    found = client.get(f"/{done}/metrics")
    (attempt,) = found["attempts"]
    assert (attempt["attempt"], attempt["lastStep"], attempt["askedSteps"]) == (found["committed"], 16, 16)
    assert found["metrics"] == attempt["metrics"] != {}


def test_a_key_of_somebody_elses_or_of_another_body_is_refused(world: World, client: Client, chain: Chain, done: str) -> None:
    assert client.ask("POST", body=wish(chain, "tiny-second@v1"), key="third")[0] == 409
    assert Client(world, "admin").ask("POST", body=wish(chain, "tiny-third@v1"), key="third")[0] == 409
    assert Client(world, "viewer").ask("POST", body=wish(chain, "tiny-third@v1"), key="mine")[0] == 403
    assert Client(world, "viewer").get(f"/{done}")["state"] == "succeeded"


def test_a_cancelled_run_has_let_go_of_its_job_and_stays_as_it_ended(world: World, client: Client, cancelled: Mapping[str, Any]) -> None:
    run_id = cancelled["runId"]
    shown = client.get(f"/{run_id}")
    assert (shown["state"], shown["jobs"]) == ("cancelled", [])
    assert not [name for name in world.queued() if cancelled["stageKey"].removeprefix("sha256:")[:16] in name]
    (job,) = world.jobs(cancelled["stageKey"])
    assert job.state.split(" ")[0] in ("CANCELLED", "COMPLETED", "FAILED")
    assert Run(world.runs.api, "align_policy", shown["dagRunId"]).state == "failed"
    assert world.catalog.runs.committed(cancelled["stageKey"]) is None
    notes = [row for row in world.catalog.ledger.entries(kind="note") if row.payload.get("run_id") == run_id]
    assert [row.actor for row in notes] == ["requester"]
    assert client.ask("DELETE", f"/{run_id}") == (202, {"runId": run_id, "state": "cancelled"})


def test_the_cancelled_job_saved_before_it_ended(world: World, client: Client, cancelled: Mapping[str, Any]) -> None:
    (path,) = (world.stack.layout.store / RunDir(cancelled["stageKey"]).attempts).glob("*/report.json")
    report = json.loads(path.read_text())
    assert report["outcome"] == "interrupted"
    assert 0 < report["last_step"] < report["asked_steps"] == 4000
    found = client.get(f"/{cancelled['runId']}/metrics")
    assert (found["state"], found["committed"], found["metrics"]) == ("cancelled", None, {})


def test_both_side_by_side(client: Client, done: str, cancelled: Mapping[str, Any]) -> None:
    status, found = client.ask("POST", "/compare", {"runs": [done, cancelled["runId"]]})
    assert status == 200, found
    assert found["parameters"]["different"]["steps"] == {done: 16, cancelled["runId"]: 4000}
    assert found["parameters"]["same"]["type"] == "dpo"
    assert all(value[cancelled["runId"]] is None for value in found["metrics"].values())
    assert found["lineage"]["shared"]
