"""A reward ensemble of three is found, member by member, wherever one looks for it: MLflow, lineage, console, dossier, card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.console import references
from include.console.comparing import _ancestors
from include.domain.canonical import canonical_bytes, digest
from include.domain.layout import RunDir
from include.domain.manifest import Manifest
from include.domain.spec import Report, RunSpec
from include.flows import evidence, release_tasks, services
from include.flows.after_commit import after_commit
from include.flows.evaluation_tasks import keep_report, register
from include.gates.policies import policies_from
from include.stages.refs import DatasetRef, ModelRef
from include.stores.catalog.render import render_node
from include.stores.catalog.requests import Request
from include.stores.catalog.runs import Committed
from include.stores.registry import Registry
from include.stores.tracking import tags_of
from tests.flows.conftest import Plane
from tests.flows.things import TEMPLATE, TOKENIZER
from tests.gates import tables
from tests.gates.conftest import read as gates_file
from tests.stores.servers import free_port, mlflow_argv, running
from tests.stores.things import manifest, spec

pytestmark = pytest.mark.timeout(400)
"""An MLflow server takes long to start on a busy machine."""

NAME, SEEDS = "demo-tiny-reward-model", (42, 43, 44)
MEMBERS = {"reward_model": manifest("one", "reward_model")} | {f"reward_model_{n}": manifest(n, "reward_model") for n in (2, 3)}
DIGESTS = [m.digest for m in MEMBERS.values()]


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    with running(mlflow_argv(port, folder), port, folder / "log", cwd=folder):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def registry(plane: Plane, tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """MLflow itself; what a test registered is gone after it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    made = Registry(tracking_uri, experiment=tmp_path.name)
    monkeypatch.setattr(services, "registry", lambda: made)
    yield made
    for model in made._client.search_registered_models():
        made._client.delete_registered_model(model.name)


def committed(asked: RunSpec, outputs: dict[str, Manifest], summary: dict[str, Any] | None = None) -> Committed:
    """A run that is committed, with what its attempt left in the store."""
    store, catalog, attempt = services.store(), services.catalog(), "1-7.0"
    catalog.runs.plan(asked)
    digests = {name: made.digest for name, made in outputs.items()}
    report = Report(asked.key, attempt, "complete", "last_step", 0, 10, 10, {"loss": 1.5}, digests, summary=summary or {}).to_json()
    plain = {name: made.to_json() for name, made in outputs.items()}
    folder = RunDir(asked.key).attempt(attempt)
    store.put_json(f"{folder}/report.json", report)
    store.put_json(f"{folder}/output/manifest.json", {"schema": "align/outputs/v1", "artifacts": plain})
    return catalog.runs.commit_attempt(asked.key, attempt, report, plain, store.uri)


SFT = spec("sft")


@pytest.fixture
def ensemble(plane: Plane) -> tuple[RunSpec, Committed]:
    """Three reward models of one run, and the gate's report on them."""
    sft = committed(SFT, {"policy": manifest("sft")}).outputs["policy"].digest
    asked = spec("reward_model", inputs={"base": sft, "preferences": digest("test", "pairs")})
    members = [{"name": name, "seed": seed, "best_step": 5} for name, seed in zip(MEMBERS, SEEDS, strict=True)]
    done = committed(asked, MEMBERS | {"measurements": manifest("m", "report")}, {"members": members})
    report = tables.judged(policies_from(gates_file("quickstart")), tables.good())
    keep_report(report, DIGESTS[0], policies_digest=digest("test", "policies"), purpose="reward_model")
    return asked, done


def test_each_member_is_a_version_and_every_versions_papers_name_all(
    plane: Plane, registry: Registry, ensemble: tuple[RunSpec, Committed], tmp_path: Path
) -> None:
    for _ in range(2):  # a task that is cleared says it again
        after_commit(*ensemble, plane.run())
    found = sorted(registry.tracking.versions(NAME), key=lambda version: int(version["version"]))
    assert [tags_of(version)["align.weights"] for version in found] == DIGESTS
    assert [tags_of(version)["align.member"] for version in found] == ["1 of 3", "2 of 3", "3 of 3"]
    assert len({tags_of(version)["align.ensemble"] for version in found}) == 1
    assert [tags_of(version)["align.weights_uri"].rsplit("/", 1)[1] for version in found] == list(MEMBERS)
    for version in found:
        _, folder = version["source"].removeprefix("runs:/").split("/", 1)
        local = Path(registry._client.download_artifacts(version["run_id"], folder, str(tmp_path)))
        told = json.loads((local / "manifest.json").read_text())
        assert told["digest"] == tags_of(version)["align.weights"]
        assert [(m["digest"], m["seed"]) for m in told["ensemble"]] == list(zip(DIGESTS, SEEDS, strict=True))
        assert all(member in (local / "card.md").read_text() for member in DIGESTS)


def test_a_single_reward_model_is_one_version_that_speaks_of_no_ensemble(plane: Plane, registry: Registry) -> None:
    asked = spec("reward_model")
    done = committed(asked, {"reward_model": MEMBERS["reward_model"], "measurements": manifest("m", "report")})
    after_commit(asked, done, plane.run())
    (version,) = registry.tracking.versions(NAME)
    assert {"align.ensemble", "align.member"} & set(tags_of(version)) == set()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_whichever_member_a_request_names_it_gets_the_ensemble(
    plane: Plane, registry: Registry, ensemble: tuple[RunSpec, Committed], number: int
) -> None:
    after_commit(*ensemble, plane.run())
    catalog = services.catalog()
    sft = references.checkpoint(catalog, "baseCheckpoint", manifest("sft").digest, "sft", "policy")
    for named in (f"{NAME}@{number}", DIGESTS[number - 1]):
        found = references.reward_model(catalog, named, sft, gate_required=True)
        assert [found.result.model("reward_model").digest, *(ref.digest for ref in found.result.further("reward_model"))] == DIGESTS
    assert references.reward_model(catalog, None, sft, gate_required=True).result.key == ensemble[0].key


def test_lineage_of_any_member_names_all_and_the_gate_that_judged_them(plane: Plane, ensemble: tuple[RunSpec, Committed]) -> None:
    for member in DIGESTS:
        node = services.catalog().lineage.trace(member)
        assert node.facts["ensemble"] == {name: m.digest for name, m in MEMBERS.items()}
        assert list(node.facts["gate_reports"].values()) == ["pass (reward_model, gates@1)"]
        assert all(other[:19] in render_node(node) for other in DIGESTS)


def test_runs_side_by_side_count_every_member_among_the_ancestors(plane: Plane, ensemble: tuple[RunSpec, Committed]) -> None:
    asked, _ = ensemble
    result = references.committed(services.catalog(), asked.key, DIGESTS[0]).result.to_json()
    sft = references.committed(services.catalog(), SFT.key, manifest("sft").digest).result.to_json()
    state = {"sft": sft, "reward": result, "pairs": {}, "datasets": {"rl_prompts": {"content_hash": digest("test", "prompts")}}}
    body = {"key": digest("test", "not run yet"), "state": state, "asked": {"type": "ppo"}}
    request = Request("align-1", "k", body, "olga", "queued", None, "", "")
    assert {node.ref for node in _ancestors(services.catalog(), request)} >= set(DIGESTS)


@pytest.fixture
def wanted(plane: Plane, ensemble: tuple[RunSpec, Committed]) -> dict[str, Any]:
    """What evaluation compared: a policy that PPO made with the ensemble, beside the SFT model."""
    models = {"candidate": manifest("ppo"), "sft": manifest("sft")}
    refs = {role: ModelRef("model", made.digest, TOKENIZER, TEMPLATE) for role, made in models.items()}
    deployment = register(plane.run(), refs["candidate"])
    reward, *others = (ModelRef("reward_model", member, TOKENIZER, TEMPLATE).to_json() for member in DIGESTS)
    return {
        "deployment": deployment,
        "champion": None,
        "models": {role: ref.to_json() for role, ref in refs.items()},
        "reward": reward,
        "reward_members": others,
    }


@pytest.fixture
def datasets(plane: Plane) -> dict[str, Any]:
    info = {"dataset_id": "tiny-preference_prompts", "content_hash": digest("test", "prompts"), "rows": "prompt", "schema_version": "v1"}
    info |= {"filter_policy_version": "f1", "counts": {"train": 4}, "licences": {"mit": 4}}
    made = services.catalog().datasets.register(info, manifest("prompts", "dataset"), "dag:test", [("source:x", "source")])
    return {"preference_prompts": DatasetRef(made.dataset_id, made.version, made.content_hash, made.artifact).to_json()}


def test_dossier_question_and_card_name_every_member(
    plane: Plane, registry: Registry, wanted: dict[str, Any], datasets: dict[str, Any], tmp_path: Path
) -> None:
    inputs = {"policy": manifest("sft").digest, "prompts": digest("test", "prompts")} | dict(zip(MEMBERS, DIGESTS, strict=True))
    asked = spec("ppo", inputs=inputs)
    committed(asked, {"policy": manifest("ppo")})
    report = replace(tables.judged(policies_from(gates_file("quickstart")), tables.good()), notes=("of the candidate",))
    keep_report(report, wanted["deployment"], policies_digest=digest("test", "p"), purpose="release")
    gates = {"digest": report.digest, "policies": digest("test", "p"), "known_risks": [], "markdown": "| gate |"}
    run = plane.run(method="ppo")
    filed = release_tasks.dossier(run, wanted, {"key": asked.key}, gates, datasets, "dag:test")
    body = services.catalog().releases.dossier(filed["digest"]).body
    assert body["reward_ensemble"] == {"combine": "mean", "members": DIGESTS}
    assert canonical_bytes(body) == canonical_bytes(evidence.evidence(run, wanted, gates, datasets)), "the approval would be void at once"
    assert all(member in filed["text"] for member in DIGESTS)
    (version,) = registry.tracking.versions("demo-tiny")
    _, folder = version["source"].removeprefix("runs:/").split("/", 1)
    card = Path(registry._client.download_artifacts(version["run_id"], f"{folder}/card.md", str(tmp_path))).read_text()
    before_lineage, lineage = card.split("## Lineage")
    assert all(member in before_lineage for member in DIGESTS)
    assert "taken together by their mean" in before_lineage
    assert all(f"reward_model{n}: reward_model reward_model/reward_model{n}" in lineage for n in ("", "_2", "_3"))


def test_a_dossier_without_an_ensemble_is_what_it_was(plane: Plane, wanted: dict[str, Any]) -> None:
    assert evidence.reward_ensemble(plane.run(), {**wanted, "reward_members": []}) == {}
