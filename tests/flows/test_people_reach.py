"""People's comparisons reach every side of the split: from a recipe without synthetic pairs to a reward model that is stopped and measured on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from include.annotation.app import create_app
from include.data.annotation_client import AnnotationClient
from include.domain.records import Candidate
from include.domain.spec import InputPlace
from include.flows import data_tasks, links, pair_tasks, preference_tasks, services
from include.flows.errors import FlowError
from include.flows.label_sensor import LabelSensor
from include.flows.planners import plan
from include.gates.reward_model import reward_model_gate
from include.training.dpo_program import SIDES as DPO_SIDES
from include.transforms.datasets_io import read_rows
from tests.annotation.support import Clock, World
from tests.data.conftest import jsonl
from tests.flows.conftest import Plane
from tests.flows.things import result
from tests.training.harness import Store, sums, tiny_base

WRITER = "dag:alignment_refresh/manual__1/data.build_datasets/1"
SIDES = {"validation": 12, "holdout": 20}
SPLIT = {"train": 0.5, "validation": 0.2, "holdout": 0.3}


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The annotation service, in this process, behind the client that the flows use."""
    (folder := tmp_path / "annotation").mkdir()
    world = World(folder, Clock(datetime.now(UTC)))
    app = create_app(world.service)

    @contextmanager
    def client(role: str) -> Iterator[AnnotationClient]:
        made = AnnotationClient("http://testserver", world.tokens[role])
        made._http = TestClient(app, base_url="http://testserver", headers={"Authorization": f"Bearer {world.tokens[role]}"})
        yield made

    monkeypatch.setattr(services, "annotation", client)
    monkeypatch.setenv("ALIGN_ANNOTATION_URL", "http://testserver")
    with world.http:
        yield world


@pytest.fixture
def control(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plane:
    monkeypatch.setenv("ALIGN_SOURCES", str(tmp_path))
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    monkeypatch.setattr(links, "get_current_context", lambda: {"ti": SimpleNamespace(xcom_push=lambda key, value: None)})
    (tmp_path / "prompts.jsonl").write_bytes(jsonl({"prompt": f"{a} + {b} ="} for a, b in sums()))
    (tmp_path / "suite.jsonl").write_bytes(jsonl({"prompt": f"{a} + {b} ="} for a, b in sums()[:30]))
    return plane


def source(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "kind": "jsonl", "mapping": "rows", "path": f"{name}.jsonl", "licence": "own", "options": options}


def small_assistant(plane: Plane, **generate: Any) -> dict[str, Any]:
    """A recipe as an assistant's: prompts of a team, people alone, no synthetic pairs. The run that `resolve` gives."""
    plane.change_recipe(
        "tiny",
        data={
            "project": "assistant",
            "split_salt": "s",
            "licences": ["own"],
            "use_shares": {"demonstration": 0.5, "preference": 0.3, "rl": 0.2},
            "shares": SPLIT,
            "near_duplicate_threshold": 1.0,
            "sources": [
                source("prompts", dataset="preference_prompts", rows="prompt", use="preference"),
                source("suite", dataset="asked", rows="suite"),
            ],
        },
        generate={"sampling": {"temperature": 1.0, "max_new_tokens": 6}, "prompt_limit": 24, "threads": 1, **generate},
        annotation={
            "rubric": "worked-answers@1",
            "verifier": False,
            "min_labels": 20,
            "min_decided": 12,
            "agreement_not_applicable_passes": True,
        },
        preferences={"rubrics": ["worked-answers@1"], "min_train_pairs": 5},
        reward_model={"learning_rate": 1e-3, "steps": 4, "global_batch": 8, "early_stop": {"every_steps": 2, "patience": 2}, "max_length": 64, "threads": 1},
        reward_gate={"min_pairs": 5},
    )  # fmt: skip
    return plane.run(auto=False)


def placed(store: Store, name: str, ref: dict[str, Any]) -> None:
    folder = preference_tasks.local_dataset(ref)
    store.places[name] = InputPlace(str(folder), ref["content_hash"], ref["artifact"])


def answered(store: Store, run: dict[str, Any], datasets: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """What the policy answers, by the program, as the plan of the recipe asks."""
    tiny_base(store)
    placed(store, "prompts", datasets["preference_prompts"])
    sft = result("sft", "policy", store.places["base"].digest)
    config = plan("generate", run, {"sft": sft, "datasets": datasets}).spec.config
    done = store.run(store.spec("generate", {"policy": "base", "prompts": "prompts"}, config))
    assert done.code == 0, done.stderr
    table = pq.read_table(done.output("candidates") / "candidates.parquet")
    found = [Candidate.from_json(json.loads(text)) for text in table["record"].to_pylist()]
    monkeypatch.setattr(preference_tasks, "candidates_of", lambda _: found)
    return found


def labelled(people: World, run: dict[str, Any], datasets: dict[str, Any]) -> dict[str, Any]:
    """A person compares all there is to compare; the snapshot that the sensor gives."""
    batch = preference_tasks.open_batch(run, GENERATED, datasets)
    while shown := people.next("annotator", batch["batch_id"])["task"]:
        better = "left" if shown["left"]["text"] < shown["right"]["text"] else "right"
        assert people.label("annotator", shown["task_id"], better).status_code == 201
    sensor = LabelSensor(task_id="wait", run=run, batch=batch)
    found: dict[str, Any] = sensor.execute({"dag_run": SimpleNamespace(run_id="manual__1")})  # type: ignore[typeddict-item]
    return found


GENERATED = result("generate", "candidates", "sha256:" + "c" * 64, "candidate_set")


def test_comparisons_of_every_side_train_stop_and_measure_a_reward_model(
    control: Plane, people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_assistant(control, sides=SIDES)
    datasets = data_tasks.build(run, WRITER)
    store = Store(tmp_path / "cluster")
    candidates = answered(store, run, datasets, monkeypatch)
    pairs = pair_tasks.pairs_from(run, labelled(people, run, datasets), GENERATED, datasets, WRITER)
    assert {"train", "validation", "holdout"} <= set(pairs["reward_pairs"]["counts"])

    folder = preference_tasks.local_dataset(pairs["reward_pairs"])
    by_side = {side: read_rows(folder, side) for side in ("train", "validation", "holdout")}
    assert {row.use for row in by_side["holdout"]} == {"evaluation"}
    groups = {side: {row.split_group for row in rows} for side, rows in by_side.items()}
    assert not groups["train"] & (groups["validation"] | groups["holdout"])
    items = {row.split_group for row in read_rows(preference_tasks.local_dataset(datasets["asked"]), "holdout")}
    assert items
    assert not items & groups["holdout"], "what a suite asks of the policy is not what its reward model is measured on"
    assert len({c.prompt_id for c in candidates}) > 24
    assert DPO_SIDES == ("train", "validation")

    placed(store, "preferences", pairs["reward_pairs"])
    sft = result("sft", "policy", store.places["base"].digest)
    config = plan("reward_model", run, {"sft": sft, "pairs": pairs}).spec.config
    done = store.run(store.spec("reward_model", {"base": "base", "preferences": "preferences"}, config))
    assert done.code == 0, done.stderr
    assert done.report.metrics["validation_pairs"] == len(by_side["validation"]) > 0
    assert done.report.metrics["holdout_pairs"] == len(by_side["holdout"]) > 5
    measured = json.loads((done.output("measurements") / "measurements.json").read_text())
    assert reward_model_gate(measured, {"min_pairs": 5}).results[0].n == len(by_side["holdout"])


def test_without_further_sides_the_run_stops_before_a_reward_model_is_paid_for(
    control: Plane, people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_assistant(control)
    datasets = data_tasks.build(run, WRITER)
    assert "holdout" not in datasets["preference_prompts"]["counts"]
    answered(Store(tmp_path / "cluster"), run, datasets, monkeypatch)
    snapshot = labelled(people, run, datasets)
    with pytest.raises(
        FlowError, match=r"trained in vain: no validation pair to stop on and 0 hold-out pairs, reward_gate needs 5.*generate\.sides"
    ):
        pair_tasks.pairs_from(run, snapshot, GENERATED, datasets, WRITER)
