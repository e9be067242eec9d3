"""What an earlier version of the project held out is not trained on later, and a suite of today is apart from what an earlier champion learnt from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from include.data.errors import DataError
from include.domain.layout import dataset_dir
from include.domain.manifest import MANIFEST
from include.flows import champion_evaluation, data_tasks, links, services, skipping
from include.flows.preference_tasks import local_dataset
from include.stages.refs import ModelRef
from include.transforms.datasets_io import read_rows
from tests.data.conftest import demonstrations, jsonl, sentence
from tests.flows.conftest import Plane
from tests.flows.test_apart import dataset
from tests.flows.things import POLICY, TEMPLATE, TOKENIZER

WRITER = "dag:build_dataset/manual__1/data.build_datasets/1"


@pytest.fixture
def control(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plane:
    monkeypatch.setenv("ALIGN_SOURCES", str(tmp_path))
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    monkeypatch.setattr(links, "get_current_context", lambda: {"ti": SimpleNamespace(xcom_push=lambda key, value: None)})
    monkeypatch.setattr(skipping, "get_current_context", lambda: {"ti": SimpleNamespace(xcom_push=lambda key, value: None)})
    (tmp_path / "asked.jsonl").write_bytes(jsonl({"prompt": sentence(n)} for n in range(60)))
    (tmp_path / "shown.jsonl").write_bytes(jsonl(demonstrations(40, 500)))
    return plane


def built(control: Plane, project: str, *names: str) -> dict[str, Any]:
    kinds = {"asked": {"dataset": "asked", "rows": "suite"}, "shown": {"dataset": "shown", "rows": "demonstration"}}
    sources = [
        {"name": name, "kind": "jsonl", "mapping": "rows", "path": f"{name}.jsonl", "licence": "own", "options": kinds[name]}
        for name in names
    ]
    data = {"project": project, "split_salt": "s", "licences": ["own"], "use_shares": {"demonstration": 1.0}, "sources": sources}
    control.change_recipe("tiny", data=data)
    return data_tasks.build(control.run(), WRITER)


def trained_on(ref: dict[str, Any]) -> set[str]:
    return {row.record["prompt"]["messages"][0]["content"] for row in read_rows(local_dataset(ref), "train")}


def test_what_an_earlier_version_held_out_stays_out_of_training(control: Plane, tmp_path: Path) -> None:
    first = built(control, "p", "asked", "shown")
    held = [row.record["prompt"]["messages"][0]["content"] for row in read_rows(local_dataset(first["asked"]), "holdout")]
    assert len(held) > 3
    again = [{"exampleId": f"again{n}", "prompt": f"{text} Now", "response": "Because."} for n, text in enumerate(held)]
    (tmp_path / "shown.jsonl").write_bytes(jsonl([*demonstrations(40, 500), *again]))
    said_again = {row["prompt"] for row in again}
    assert trained_on(built(control, "p", "shown")["shown"]) == trained_on(first["shown"]), "the suite is gone, its items are not"
    assert trained_on(built(control, "p-other", "shown")["shown"]) & said_again, "another project's hold-outs are its own affair"


def test_a_version_that_is_gone_from_the_store_is_said(control: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    first = built(control, "p", "asked", "shown")
    services.store().remove(dataset_dir(first["asked"]["content_hash"]))
    built(control, "p", "shown")
    assert "no longer in the store: p-asked@1" in capsys.readouterr().out


def test_a_suite_of_today_that_an_earlier_champion_learnt_from_is_found(control: Plane, tmp_path: Path) -> None:
    learnt = dataset(tmp_path / "learnt", "demonstration", [sentence(n) for n in (1, 2, 3)], "train")
    services.catalog().lineage.edge(POLICY, learnt["content_hash"], "demonstrations", WRITER)
    found = champion_evaluation.data_behind({POLICY})
    assert [ref["content_hash"] for ref in found.values()] == [learnt["content_hash"]]
    today = dataset(tmp_path / "today", "suite", [sentence(2)], "holdout")
    with pytest.raises(DataError, match="1 training rows overlap"):
        champion_evaluation.require_suites_apart(control.run(), {"word_problems": today}, found)
    services.store().remove(dataset_dir(learnt["content_hash"]))
    with pytest.raises(AirflowSkipException, match=r"not evaluable: tiny-learnt@1, which was trained on, is gone"):
        champion_evaluation.data_behind({POLICY})


def test_a_backfill_with_the_suite_of_now_is_checked_and_one_with_that_of_then_was(
    control: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("word_problems", "choices", "names"):
        dataset(tmp_path / name, "suite", [sentence(n) for n in (1, 2, 3)], "holdout")
    learnt = dataset(tmp_path / "learnt", "demonstration", [f"{sentence(2)} Now"], "train")
    services.catalog().lineage.edge(POLICY, learnt["content_hash"], "demonstrations", WRITER)
    body = {"digest": "sha256:" + "d" * 64, "weights": POLICY, "tokenizer": TOKENIZER, "chat_template": TEMPLATE}
    hashes = {f"suite_{name}": services.catalog().datasets.latest(f"tiny-{name}").content_hash for name in ("word_problems", "choices", "names")}  # type: ignore[union-attr]  # fmt: skip
    spec = SimpleNamespace(
        inputs={"model_candidate": POLICY, **hashes},
        config={"deployments": {"candidate": body}, "suites": {}},
        tokenizer=TOKENIZER,
        chat_template=TEMPLATE,
    )
    monkeypatch.setattr(services.catalog().ledger, "champion_at", lambda name, at: body["digest"])
    monkeypatch.setattr(champion_evaluation, "release_evaluation", lambda deployment: spec)
    monkeypatch.setattr(champion_evaluation, "released_model", lambda deployment: (ModelRef("model", POLICY, TOKENIZER, TEMPLATE), body))
    monkeypatch.setattr(champion_evaluation, "_still_there", lambda *_: None)
    asked = SimpleNamespace(run_id="backfill__1", dag_id="evaluate_policy")
    assert champion_evaluation.champion_then({"recipe": "tiny", "suite": "then"}, asked, None)["wanted"]["deployment"] == body["digest"]
    with pytest.raises(DataError, match="1 training rows overlap with evaluation suites: learnt row"):
        champion_evaluation.champion_then({"recipe": "tiny", "suite": "now"}, asked, None)


def test_what_was_erased_can_not_be_measured_any_more(control: Plane, tmp_path: Path) -> None:
    suite = dataset(tmp_path / "words", "suite", [sentence(n) for n in (1, 2, 3)], "holdout")
    champion_evaluation._still_there("suite words", suite["artifact"], MANIFEST)
    (place,) = services.catalog().artifacts.locations(suite["artifact"])
    services.catalog().erasures.erase([suite["artifact"]], "olga", "asked to be forgotten", "sha256:" + "0" * 64)
    services.store().remove(place.path)
    services.catalog().artifacts.forget_location(suite["artifact"], place.store, place.path)
    with pytest.raises(AirflowSkipException, match="not evaluable: suite words: .* was erased by olga"):
        champion_evaluation._still_there("suite words", suite["artifact"], MANIFEST)
