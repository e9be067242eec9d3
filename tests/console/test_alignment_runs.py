"""Alignment runs through their API: a real catalog, Airflow's real database and auth manager, no scheduler and no cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_slurm.receipts import JobEnd
from include.console import airflow_runs, alignment_runs
from include.flows import phases, planners
from include.settings import catalogue
from include.stores.catalog import Catalog
from include.stores.catalog.receipts import CatalogReceipts, Receipt
from tests.console.conftest import ROOT
from tests.stores.things import commit, manifest, report, some_digest, spec

URL = "/alignment/v1/alignment-runs"
Person = Callable[[str, str], TestClient]


@dataclass(frozen=True)
class World:
    """What the catalog holds: one SFT model with its base, a reward model that passed, and the project's datasets."""

    catalog: Catalog
    sft: str
    other_sft: str
    reward: str

    def body(self, **changed: Any) -> dict[str, Any]:
        asked = {"type": "dpo", "baseCheckpoint": self.sft, "referenceCheckpoint": self.sft, "dataset": "tiny-preferences@v1"}
        return {**asked, "config": "tiny@v1", **changed}


def register(catalog: Catalog, name: str, rows: str, content: object = None) -> str:
    info = {"dataset_id": name, "content_hash": some_digest(content or name), "rows": rows, "schema_version": "v1"}
    info |= {"filter_policy_version": "f1", "counts": {"train": 4}}
    return catalog.datasets.register(info, manifest(content or name, "dataset"), "dag:build/r1/build/1").content_hash


@pytest.fixture
def world(opened: Catalog) -> World:
    kinds = {"demonstrations": "demonstration", "preference_prompts": "prompt", "rl_prompts": "prompt", "preferences": "pair"}
    kinds |= dict.fromkeys(("word_problems", "choices", "names"), "suite")
    hashes = {name: register(opened, f"tiny-{name}", rows) for name, rows in kinds.items()}
    register(opened, "tiny-preferences", "pair", "more preferences")
    base = commit(opened, spec("base_import", inputs={"source": some_digest("raw")}), {"base": manifest("base", "base")})
    made = []
    for seed in (1, 2):
        inputs = {"base": base.outputs["base"].digest, "demonstrations": hashes["demonstrations"]}
        made.append(commit(opened, spec("sft", inputs=inputs, seed=seed), {"policy": manifest(f"sft{seed}")}).outputs["policy"].digest)
    trained = spec("reward_model", inputs={"base": made[0], "preferences": hashes["preferences"]})
    reward = commit(opened, trained, {"reward_model": manifest("rm", "reward_model")}).outputs["reward_model"].digest
    judge(opened, reward, "pass")
    return World(opened, made[0], made[1], reward)


def judge(catalog: Catalog, reward: str, verdict: str) -> None:
    catalog.measurements.record_gate_report(
        some_digest(verdict), reward, {}, verdict=verdict, gate_code="g", policies_digest=some_digest("p"), purpose="reward_model"
    )


@pytest.fixture
def olga(person: Person) -> TestClient:
    """May start and change runs."""
    return person("olga", "op")


def post(client: TestClient, body: dict[str, Any], key: str = "key-1") -> Any:
    return client.post(URL, json=body, headers={"Idempotency-Key": key})


@pytest.fixture(autouse=True)
def no_runs_of_others(airflow_database: None) -> Iterator[None]:
    """Airflow's database outlives a test, its runs do not."""
    yield
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(DagRun))


def dag_run(run_id: str) -> Any:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(DagRun).where(DagRun.run_id == airflow_runs.dag_run_id(run_id))).one()
        session.expunge(found)
    return found


def airflow_says(run_id: str, state: str) -> None:
    """What a scheduler would write."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.run_id == airflow_runs.dag_run_id(run_id)).values(state=state))


@pytest.mark.parametrize("method", ["dpo", "ppo"])
def test_a_run_is_accepted_and_its_dag_starts_with_what_was_asked(world: World, olga: TestClient, method: str) -> None:
    changed = {"type": "ppo", "dataset": "tiny-rl_prompts@1"} if method == "ppo" else {}
    answer = post(olga, world.body(**changed))
    assert (answer.status_code, answer.json()) == (202, {"runId": "align-1", "state": "queued"})
    started = dag_run("align-1")
    assert (started.dag_id, started.triggering_user_name, str(started.state)) == ("align_policy", "olga", "queued")
    (state,) = phases.choose(started.conf, [], [], "reward_model")
    shown = olga.get(f"{URL}/align-1").json()
    run = state["run"] | {"run_id": started.run_id, "dag_id": started.dag_id}
    given = {name: state[name] for name in ("sft", "pairs", "reward", "datasets")}
    planned = planners.plan("policy", run, given)
    assert planned.key == shown["stageKey"]
    assert planned.spec.stage == method
    assert planned.spec.note["requested_by"] == "olga"
    assert planned.spec.inputs["policy"] == world.sft
    if method == "ppo":
        assert planned.spec.inputs["reward_model"] == world.reward
    assert {"demonstrations", "preference_prompts", "word_problems", "choices", "names"} <= set(state["datasets"])
    assert state["base"]["outputs"]["base"]["kind"] == "base"
    assert shown["configDigest"] == catalogue.recipe("tiny").digest


def test_the_same_key_and_body_are_the_same_run(world: World, olga: TestClient) -> None:
    first, again = post(olga, world.body()), post(olga, world.body())
    assert (again.status_code, again.json()) == (202, first.json())
    assert post(olga, world.body(), "key-2").json()["runId"] == "align-2"


@pytest.mark.parametrize("who", ["olga", "anna"])
def test_the_same_key_with_another_body_or_person_is_a_conflict(world: World, olga: TestClient, person: Person, who: str) -> None:
    post(olga, world.body())
    body = world.body() if who == "anna" else world.body(dataset="tiny-preferences@v2")
    answer = post(person(who, "op"), body)
    assert answer.status_code == 409
    assert "align-1" in answer.json()["message"]


def test_a_call_that_died_before_the_dag_started_is_finished_by_the_same_call(
    world: World, olga: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> str:
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(airflow_runs, "start", dies)
        assert post(olga, world.body()).status_code == 500
    assert olga.get(f"{URL}/align-1").json()["dagRunId"] is None
    assert post(olga, world.body()).json() == {"runId": "align-1", "state": "queued"}
    assert dag_run("align-1").triggering_user_name == "olga"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("type", "sft", "dpo"),
        ("baseCheckpoint", some_digest("nothing"), "nothing in the catalog"),
        ("baseCheckpoint", "base", "comes from base_import"),
        ("baseCheckpoint", "sft-7b", "neither a digest"),
        ("referenceCheckpoint", "other", "cannot be honoured"),
        ("dataset", "tiny-preferences@v9", "versions of tiny-preferences: 1, 2"),
        ("dataset", "nothing@v1", "not in the catalog"),
        ("dataset", "tiny-preferences", "name@version"),
        ("dataset", "tiny-rl_prompts@v1", "rows of kind prompt; pair is needed"),
        ("dataset", "elsewhere@v1", "not of project tiny"),
        ("config", "tiny", "name@version"),
        ("config", "nothing@v1", "does not exist"),
        ("config", "tiny@v9", "version 1"),
        ("config", "../secret@v1", "name@version"),
        ("rewardModel", some_digest("nothing"), "nothing in the catalog"),
        ("learningRate", 1, "Extra inputs"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_the_field_named(world: World, olga: TestClient, field: str, value: Any, words: str) -> None:
    register(world.catalog, "elsewhere", "pair")
    base = world.catalog.runs.producing(world.sft)[0].spec.inputs["base"]
    answer = post(olga, world.body(**{field: {"other": world.other_sft, "base": base}.get(value, value)}))
    assert answer.status_code == 422
    assert field in answer.text
    assert words in answer.text
    assert world.catalog.requests.newest() == []


def test_a_missing_field_and_a_missing_key_are_named(world: World, olga: TestClient) -> None:
    body = world.body()
    del body["dataset"]
    assert "dataset" in post(olga, body).text
    answer = olga.post(URL, json=world.body())
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")


def test_without_a_reward_model_that_passed_nothing_starts(world: World, olga: TestClient) -> None:
    answer = post(olga, world.body(baseCheckpoint=world.other_sft, referenceCheckpoint=world.other_sft))
    assert answer.json()["field"] == "rewardModel"
    assert "train_reward_model" in answer.json()["message"]
    judge(world.catalog, world.reward, "fail")
    named = post(olga, world.body(rewardModel=world.reward))
    assert (named.status_code, named.json()["field"]) == (422, "rewardModel")


def test_a_configuration_is_immutable(world: World, olga: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.setenv("ALIGN_CONFIGS", str(tmp_path / "configs"))
    assert post(olga, world.body()).status_code == 202
    file = tmp_path / "configs/recipes/tiny.yaml"
    file.write_text(file.read_text().replace("seed: 42", "seed: 43"))
    answer = post(olga, world.body(), "key-2")
    assert (answer.status_code, answer.json()["field"]) == (422, "config")
    assert "raise its version" in answer.json()["message"]
    file.write_text(file.read_text().replace("version: 1", "version: 2", 1))
    assert post(olga, world.body(config="tiny@v2"), "key-2").status_code == 202
    assert post(olga, world.body()).json()["runId"] == "align-1"


class Mlflow(BaseHTTPRequestHandler):
    """Answers a search for model versions as MLflow does."""

    weights = ""

    def do_GET(self) -> None:
        found = b'{"model_versions": [{"version": "12", "tags": [{"key": "align.weights", "value": "%s"}]}]}' % self.weights.encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def test_a_registered_version_names_a_checkpoint(world: World, olga: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mlflow, "weights", world.sft)
    server = HTTPServer(("127.0.0.1", 0), Mlflow)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    named = world.body(baseCheckpoint="demo-tiny-sft@v12", referenceCheckpoint="demo-tiny-sft@v12")
    assert post(olga, named).status_code == 202
    unknown = post(olga, world.body(baseCheckpoint="demo-tiny-sft@v3"), "key-2")
    assert (unknown.status_code, unknown.json()["field"]) == (422, "baseCheckpoint")
    assert "versions of demo-tiny-sft: 12" in unknown.json()["message"]
    server.shutdown()
    server.server_close()
    away = post(olga, named, "key-3")
    assert away.status_code == 503
    assert "does not answer" in away.json()["message"]


def test_a_paused_dag_accepts_nothing(world: World, olga: TestClient) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    def pause(paused: bool) -> None:
        with create_session() as session:
            session.get(DagModel, "align_policy").is_paused = paused

    pause(True)
    try:
        answer = post(olga, world.body())
    finally:
        pause(False)
    assert answer.status_code == 503
    assert "unpause" in answer.json()["message"]
    assert world.catalog.requests.newest() == []


def test_each_call_needs_its_right(world: World, olga: TestClient, person: Person, stranger: TestClient) -> None:
    viewer, nobody = person("vera", "viewer"), person("nina", "")
    assert post(viewer, world.body()).status_code == 403
    assert post(nobody, world.body()).status_code == 403
    post(olga, world.body())
    compare = {"runs": ["align-1", "align-1"]}
    for client, status in ((viewer, 200), (nobody, 403)):
        assert client.get(f"{URL}/align-1").status_code == status
        assert client.get(f"{URL}/align-1/metrics").status_code == status
        assert client.get(URL).status_code == status
        assert client.post(f"{URL}/compare", json=compare).status_code == status
        assert client.delete(f"{URL}/align-1").status_code == 403
    assert world.catalog.requests.get("align-1").state == "queued"


@pytest.mark.parametrize("path", ["align-9", "align-x", "nonsense"])
def test_an_unknown_run_is_a_404(world: World, olga: TestClient, path: str) -> None:
    for answer in (olga.get(f"{URL}/{path}"), olga.get(f"{URL}/{path}/metrics"), olga.delete(f"{URL}/{path}")):
        assert answer.status_code == 404
        assert path in answer.json()["message"]


def test_the_state_follows_airflow_and_a_final_one_stays(world: World, olga: TestClient) -> None:
    post(olga, world.body())
    for theirs, ours in (("running", "running"), ("success", "succeeded"), ("running", "succeeded")):
        airflow_says("align-1", theirs)
        assert olga.get(f"{URL}/align-1").json()["state"] == ours
    assert olga.delete(f"{URL}/align-1").json()["state"] == "succeeded"


def test_a_dag_run_that_is_gone_is_unknown_and_no_success(world: World, olga: TestClient) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    post(olga, world.body())
    with create_session() as session:
        session.execute(delete(DagRun))
    assert olga.get(f"{URL}/align-1").json()["state"] == "unknown"
    assert olga.delete(f"{URL}/align-1").json()["state"] == "cancelled"


def test_cancelling_lasts_until_the_job_has_let_go(world: World, olga: TestClient) -> None:
    post(olga, world.body())
    airflow_says("align-1", "running")
    key = olga.get(f"{URL}/align-1").json()["stageKey"]
    receipts = CatalogReceipts(world.catalog.database.url.render_as_string(hide_password=False))
    mine = {"dag_id": "align_policy", "run_id": "api__align-1", "task_id": "policy.optimise", "map_index": -1}
    other = mine | {"run_id": "manual__7"}
    claimed = receipts.claim(key, mine)
    receipts.record(key, claimed.n, Receipt("41", "align-1", "slurm"))
    receipts.claim(key, other)
    (job,) = olga.get(f"{URL}/align-1").json()["jobs"]
    assert (job["jobId"], job["ending"]) == ("41", False)
    for _ in range(2):
        assert olga.delete(f"{URL}/align-1").json() == {"runId": "align-1", "state": "cancelling"}
    assert str(dag_run("align-1").state) == "failed"
    receipts.drop_owner(key, mine)
    assert olga.get(f"{URL}/align-1").json()["state"] == "cancelled"
    assert [s.owners for s in receipts.live()] == [(other,)]
    (said,) = [row for row in world.catalog.ledger.entries() if row.subject == "align-1"]
    assert said.actor == "olga"


def test_a_job_that_nobody_owns_any_more_is_waited_for_until_it_has_ended(world: World, olga: TestClient) -> None:
    post(olga, world.body())
    airflow_says("align-1", "running")
    key = olga.get(f"{URL}/align-1").json()["stageKey"]
    receipts = CatalogReceipts(world.catalog.database.url.render_as_string(hide_password=False))
    mine = {"dag_id": "align_policy", "run_id": "api__align-1", "task_id": "policy.optimise", "map_index": -1}
    claimed = receipts.claim(key, mine)
    receipts.record(key, claimed.n, Receipt("41", "align-1", "slurm"))
    assert olga.delete(f"{URL}/align-1").json()["state"] == "cancelling"
    assert receipts.drop_owner(key, mine) == 0
    shown = olga.get(f"{URL}/align-1").json()
    assert (shown["state"], shown["jobs"][0]["ending"]) == ("cancelling", True)
    receipts.close(key, claimed.n, JobEnd("given_up", "cancelled"))
    shown = olga.get(f"{URL}/align-1").json()
    assert (shown["state"], shown["jobs"]) == ("cancelled", [])


def test_a_run_that_never_started_is_cancelled_at_once(world: World, olga: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(airflow_runs, "start", lambda *_: 1 / 0)
        post(olga, world.body())
    assert olga.delete(f"{URL}/align-1").json()["state"] == "cancelled"
    assert post(olga, world.body()).json()["state"] == "cancelled"


def test_a_run_that_is_cancelled_while_it_starts_does_not_run(world: World, olga: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = airflow_runs.start

    def slowly(*given: Any) -> str:
        assert olga.delete(f"{URL}/align-1").json()["state"] == "cancelled"
        return begin(*given)

    monkeypatch.setattr(airflow_runs, "start", slowly)
    assert post(olga, world.body()).json() == {"runId": "align-1", "state": "cancelled"}
    assert str(dag_run("align-1").state) == "failed"


def test_a_look_that_comes_late_does_not_undo_a_cancellation(world: World, olga: TestClient) -> None:
    post(olga, world.body())
    world.catalog.requests.set_state("align-1", "cancelling")
    assert world.catalog.requests.set_state("align-1", "running").state == "cancelling"
    assert world.catalog.requests.set_state("align-1", "succeeded").state == "succeeded"


@pytest.mark.parametrize(("who", "status"), [("olga", 202), ("otto", 409)])
def test_of_two_calls_at_once_the_first_decides(
    world: World, olga: TestClient, person: Person, monkeypatch: pytest.MonkeyPatch, who: str, status: int
) -> None:
    """Between the two, another reward model passes: the second would be resolved otherwise."""
    resolve = alignment_runs.resolve

    def late(*given: Any) -> Any:
        monkeypatch.setattr(alignment_runs, "resolve", resolve)
        assert post(olga, world.body()).status_code == 202
        found = resolve(*given)
        return replace(found, state={**found.state, "reward": {"another": True}})

    monkeypatch.setattr(alignment_runs, "resolve", late)
    assert post(person(who, "op"), world.body()).status_code == status
    assert [request.run_id for request in world.catalog.requests.newest()] == ["align-1"]


def finish(world: World, run_id: str, key: str, name: str, accuracy: float) -> str:
    """What the stage's task does when its job has ended."""
    request = world.catalog.requests.get(run_id)
    state = request.body["state"]
    given = {part: state[part] for part in ("sft", "pairs", "reward", "datasets")}
    planned = planners.plan("policy", state["run"], given)
    assert planned.key == key
    world.catalog.runs.plan(planned.spec)
    policy = manifest(name)
    told = report(key, "1-7.0", {"policy": policy}) | {"metrics": {"holdout_accuracy": accuracy}}
    world.catalog.runs.commit_attempt(key, "1-7.0", told, {"policy": policy.to_json()}, "sftp://here/store")
    return policy.digest


def test_metrics_of_attempts_and_of_the_committed_one(world: World, olga: TestClient) -> None:
    post(olga, world.body())
    key = olga.get(f"{URL}/align-1").json()["stageKey"]
    before = olga.get(f"{URL}/align-1/metrics").json()
    assert (before["committed"], before["metrics"], before["attempts"]) == (None, {}, [])
    finish(world, "align-1", key, "dpo", 0.75)
    after = olga.get(f"{URL}/align-1/metrics").json()
    assert (after["committed"], after["metrics"]) == ("1-7.0", {"holdout_accuracy": 0.75})
    assert after["attempts"][0]["lastStep"] == 10


def test_a_success_without_a_committed_stage_is_said(world: World, olga: TestClient) -> None:
    post(olga, world.body())
    airflow_says("align-1", "success")
    assert "another stage key" in olga.get(f"{URL}/align-1/metrics").json()["message"]


def test_two_runs_side_by_side(world: World, olga: TestClient) -> None:
    for key, version in (("key-1", 1), ("key-2", 2)):
        post(olga, world.body(dataset=f"tiny-preferences@v{version}"), key)
    first = olga.get(f"{URL}/align-1").json()["stageKey"]
    policy = finish(world, "align-1", first, "dpo", 0.75)
    found = olga.post(f"{URL}/compare", json={"runs": ["align-1", "align-2"]}).json()
    assert found["parameters"]["different"]["dataset"] == {"align-1": "tiny-preferences@v1", "align-2": "tiny-preferences@v2"}
    assert found["parameters"]["same"]["beta"] == catalogue.recipe("tiny").dpo.beta
    assert found["metrics"] == {"holdout_accuracy": {"align-1": 0.75, "align-2": None}}
    only = {run: [node["ref"] for node in nodes] for run, nodes in found["lineage"]["only"].items()}
    assert set(only["align-1"]) == {policy, some_digest("tiny-preferences")}
    assert only["align-2"] == [some_digest("more preferences")]
    assert world.sft in {node["ref"] for node in found["lineage"]["shared"]}


@pytest.mark.parametrize(("runs", "status"), [(["align-1"], 422), (["align-1"] * 11, 422), (["align-1", "align-9"], 404), ([], 422)])
def test_what_cannot_be_compared(world: World, olga: TestClient, runs: list[str], status: int) -> None:
    post(olga, world.body())
    assert olga.post(f"{URL}/compare", json={"runs": runs}).status_code == status
