"""Comparisons add up: a later run learns from the project's earlier batches too, under the rubrics that it names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from airflow.sdk.exceptions import AirflowSkipException

from include.domain.canonical import canonical_bytes, sha256_file
from include.domain.layout import RunDir
from include.domain.manifest import FileEntry, Manifest
from include.domain.spec import Report
from include.flows import data_tasks, earlier_batches, pair_tasks, preference_tasks, services, skipping
from include.flows.errors import FlowError
from include.flows.label_sensor import LabelSensor
from include.settings.catalogue import rubric
from include.settings.errors import SettingsError
from include.transforms.datasets_io import read_members, read_rows
from tests.annotation.support import World
from tests.data.conftest import jsonl
from tests.data.labels import candidate
from tests.flows.conftest import Plane
from tests.flows.test_people_reach import SIDES, WRITER, control, people, small_assistant  # noqa: F401  the fixtures
from tests.stores.things import spec
from tests.training.harness import sums

ONE, TWO = "1-7.0", "manual__2"


@pytest.fixture
def assistant(control: Plane, people: World, monkeypatch: pytest.MonkeyPatch) -> Plane:  # noqa: F811
    monkeypatch.setattr(skipping, "get_current_context", lambda: {"ti": SimpleNamespace(xcom_push=lambda key, value: None)})
    small_assistant(control, sides=SIDES)
    change(control, "reward_gate", required=False, min_pairs=1)
    return control


def change(plane: Plane, part: str, **fields: Any) -> None:
    path = plane.configs / "recipes/tiny.yaml"
    body = yaml.safe_load(path.read_text())
    plane.change_recipe("tiny", **{part: {**body[part], **fields}})


def candidates(datasets: dict[str, Any], policy: str, folder: Path, says: str = "{policy} says {n}") -> dict[str, Any]:
    """A committed candidate set of `policy`: two answers to each prompt, of every side."""
    prompts = preference_tasks.prompts_of(datasets["preference_prompts"]).values()
    made = [candidate(p, says.format(policy=policy, n=n), policy_checkpoint=policy) for p in prompts for n in (1, 2)]
    made.sort(key=lambda c: (c.prompt_id, c.candidate_id))
    folder.mkdir()
    columns = {"id": [c.candidate_id for c in made], "prompt_id": [c.prompt_id for c in made]}
    pq.write_table(pa.table({**columns, "record": [canonical_bytes(c.to_json()).decode() for c in made]}), folder / "candidates.parquet")
    file = folder / "candidates.parquet"
    manifest = Manifest("candidate_set", (FileEntry(file.name, file.stat().st_size, sha256_file(file)),))
    asked = spec("generate", inputs={"policy": policy, "prompts": datasets["preference_prompts"]["content_hash"]})
    run, store = RunDir(asked.key).attempt(ONE), services.store()
    store.put_folder(folder, f"{run}/output/candidates", manifest)
    report = Report(asked.key, ONE, "complete", "last_step", 0, 1, 1, {}, {"candidates": manifest.digest}).to_json()
    plain = {"candidates": manifest.to_json()}
    store.put_json(f"{run}/report.json", report)
    store.put_json(f"{run}/output/manifest.json", {"schema": "align/outputs/v1", "artifacts": plain})
    services.catalog().runs.plan(asked)
    services.catalog().runs.commit_attempt(asked.key, ONE, report, plain, store.uri)
    return {"key": asked.key, "attempt": ONE, "outputs": {"candidates": {"kind": "candidate_set", "digest": manifest.digest}}}


def opened(plane: Plane, datasets: dict[str, Any], generated: dict[str, Any], people: World) -> dict[str, Any]:  # noqa: F811
    batch = preference_tasks.open_batch(plane.run(auto=False), generated, datasets)
    people.work("annotator", "left", batch["batch_id"])
    return batch


def waited(plane: Plane, batch: dict[str, Any], run_id: str, *, new_only: bool = False) -> dict[str, Any]:
    sensor = LabelSensor(task_id="wait", run=plane.run(auto=False), batch=batch, new_only=new_only)
    found: dict[str, Any] = sensor.execute({"dag_run": SimpleNamespace(run_id=run_id)})  # type: ignore[typeddict-item]
    return found


def two_rounds(plane: Plane, people: World, tmp_path: Path) -> tuple[dict[str, Any], ...]:  # noqa: F811
    """The first run's batch is labelled and used; the second run's policy is another, and its batch is labelled."""
    datasets = data_tasks.build(plane.run(), WRITER)
    first = candidates(datasets, "sha256:" + "1" * 64, tmp_path / "first")
    batch = opened(plane, datasets, first, people)
    waited(plane, batch, "manual__1")
    second = candidates(datasets, "sha256:" + "2" * 64, tmp_path / "second")
    return datasets, second, batch, opened(plane, datasets, second, people)


def policies(ref: dict[str, Any]) -> set[str]:
    rows = read_rows(preference_tasks.local_dataset(ref), "train")
    return {row.record["chosen"]["policy_checkpoint"][7] for row in rows}


def test_labels_of_earlier_batches_are_learnt_from_where_the_recipe_says_so(assistant: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    datasets, second, batch, now = two_rounds(assistant, people, tmp_path)
    alone = pair_tasks.pairs_from(assistant.run(), waited(assistant, now, "manual__alone"), second, datasets, WRITER)
    assert policies(alone["preferences"]) == {"2"}
    change(assistant, "preferences", earlier_batches=3)
    frozen = waited(assistant, now, TWO)
    assert [other["batch_id"] for other in frozen["earlier"]] == [batch["batch_id"]]
    assert waited(assistant, now, TWO) == frozen, "a retry sees the same"
    both = pair_tasks.pairs_from(assistant.run(), frozen, second, datasets, WRITER)
    assert policies(both["preferences"]) == {"1", "2"}
    assert both["preferences"]["counts"]["train"] == 2 * alone["preferences"]["counts"]["train"]
    members = services.catalog().datasets.members(both["preferences"]["content_hash"])
    assert {member.batch_id for member in members} == {batch["batch_id"], now["batch_id"]}
    assert len(members) == len(read_members(preference_tasks.local_dataset(both["preferences"])))
    assert pair_tasks.pairs_from(assistant.run(), frozen, second, datasets, WRITER) == both


def test_a_label_that_was_withdrawn_since_is_not_among_them(assistant: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    datasets, second, batch, now = two_rounds(assistant, people, tmp_path)
    change(assistant, "preferences", earlier_batches=1)
    frozen = waited(assistant, now, TWO)
    with pytest.raises(AirflowSkipException, match="no new input"):
        waited(assistant, now, "manual__3", new_only=True)
    gone = people.snapshot(batch["batch_id"])["labels"][0]["label_id"]
    assert people.ask("pipeline", "POST", f"/v1/labels/{gone}/withdraw", json={"reason": "a slip"}).status_code == 201
    later = waited(assistant, now, "manual__3", new_only=True)
    assert later["digest"] == frozen["digest"]
    assert later["earlier"][0]["digest"] != frozen["earlier"][0]["digest"]
    made = pair_tasks.pairs_from(assistant.run(), later, second, datasets, WRITER)
    assert gone not in read_members(preference_tasks.local_dataset(made["preferences"]))


def test_candidates_that_are_gone_name_the_setting_that_leaves_the_batch_out(assistant: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    datasets, second, batch, now = two_rounds(assistant, people, tmp_path)
    change(assistant, "preferences", earlier_batches=1)
    frozen = waited(assistant, now, TWO)
    services.store().remove(RunDir(frozen["earlier"][0]["origin"]["candidates"]).attempt(ONE))
    with pytest.raises(FlowError, match=f"earlier batch {batch['batch_id']} .* lower preferences.earlier_batches"):
        pair_tasks.pairs_from(assistant.run(), frozen, second, datasets, WRITER)


def test_labels_under_an_earlier_rubric_count_where_the_recipe_names_it(assistant: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    datasets = data_tasks.build(assistant.run(), WRITER)
    first = candidates(datasets, "sha256:" + "1" * 64, tmp_path / "first")
    waited(assistant, opened(assistant, datasets, first, people), "manual__1")
    folder = assistant.configs / "rubrics"
    old = (folder / "worked-answers.yaml").read_text()
    (folder / "worked-answers.yaml").write_text(old.replace("version: 1", "version: 2").replace("Length is no reason", "Short is better"))
    with pytest.raises(SettingsError, match="kept as worked-answers@1.yaml beside it"):
        rubric("worked-answers@1")
    (folder / "worked-answers@1.yaml").write_text(old)
    change(assistant, "annotation", rubric="worked-answers@2")
    change(assistant, "preferences", rubrics=["worked-answers@2"], earlier_batches=1)
    second = candidates(datasets, "sha256:" + "2" * 64, tmp_path / "second")
    frozen = waited(assistant, opened(assistant, datasets, second, people), TWO)
    made = pair_tasks.pairs_from(assistant.run(), frozen, second, datasets, WRITER)
    assert policies(made["preferences"]) == {"2"}, "labels of another rubric never mix silently"
    change(assistant, "preferences", rubrics=["worked-answers@1", "worked-answers@2"])
    made = pair_tasks.pairs_from(assistant.run(), frozen, second, datasets, WRITER)
    assert policies(made["preferences"]) == {"1", "2"}


def test_a_batch_whose_answers_or_prompts_were_erased_is_left_out_and_said_to_be(
    assistant: Plane, people: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    datasets, _, batch, now = two_rounds(assistant, people, tmp_path)
    change(assistant, "preferences", earlier_batches=1)
    frozen = waited(assistant, now, TWO)
    key = frozen["earlier"][0]["origin"]["candidates"]
    done = services.catalog().runs.committed(key)
    assert done is not None
    services.store().remove(RunDir(key).attempt(ONE))
    with pytest.raises(FlowError, match=f"earlier batch {batch['batch_id']} .* no longer in the store"):
        waited(assistant, now, "manual__gone")
    services.catalog().erasures.erase([done.outputs["candidates"].digest], "steward", "asked for by a person", "request-1")
    assert "earlier" not in waited(assistant, now, "manual__3", new_only=True), "what was learnt from and is erased is a change"
    with pytest.raises(AirflowSkipException, match="no new input"):
        waited(assistant, now, "manual__4", new_only=True)
    assert f"{batch['batch_id']} is left out: its answers were erased by steward" in capsys.readouterr().out
    services.catalog().erasures.erase([datasets["preference_prompts"]["artifact"]], "steward", "asked for by a person", "request-1")
    assert earlier_batches.earlier_batches("assistant", "another", 5, "manual__5") == []
    assert f"{now['batch_id']} is left out: its prompts were erased" in capsys.readouterr().out


def test_a_try_that_was_cut_off_has_looked_at_nothing(
    assistant: Plane, people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    _, _, batch, now = two_rounds(assistant, people, tmp_path)
    change(assistant, "preferences", earlier_batches=1)
    waited(assistant, now, TWO)
    gone = people.snapshot(batch["batch_id"])["labels"][0]["label_id"]
    assert people.ask("pipeline", "POST", f"/v1/labels/{gone}/withdraw", json={"reason": "a slip"}).status_code == 201
    with monkeypatch.context() as cut:
        cut.setattr(LabelSensor, "_warn", lambda self, found, held: (_ for _ in ()).throw(ConnectionError("killed")))
        with pytest.raises(ConnectionError, match="killed"):
            waited(assistant, now, "manual__3", new_only=True)
    assert waited(assistant, now, "manual__3", new_only=True)["earlier"][0]["batch_id"] == batch["batch_id"]


def test_what_was_held_out_under_another_salt_is_not_trained_on(assistant: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    datasets = data_tasks.build(assistant.run(), WRITER)
    waited(assistant, opened(assistant, datasets, candidates(datasets, "sha256:" + "1" * 64, tmp_path / "first"), people), "manual__1")
    before = preference_tasks.local_dataset(datasets["preference_prompts"])
    held = {row.record["prompt_id"] for side in ("validation", "holdout") for row in read_rows(before, side)}
    change(assistant, "preferences", earlier_batches=5, min_train_pairs=1)
    change(assistant, "data", split_salt="another")
    # Today's prompts are others, so that none of those before is among them.
    (tmp_path / "prompts.jsonl").write_bytes(jsonl({"prompt": f"{a} times {b}"} for a, b in sums()))
    now = data_tasks.build(assistant.run(), WRITER)
    second = candidates(now, "sha256:" + "2" * 64, tmp_path / "second")
    frozen = waited(assistant, opened(assistant, now, second, people), TWO)
    assert len(frozen["earlier"]) == 1
    made = pair_tasks.pairs_from(assistant.run(), frozen, second, now, WRITER)
    trained = {row.record["prompt"]["prompt_id"] for row in read_rows(preference_tasks.local_dataset(made["preferences"]), "train")}
    assert not trained & held
    assert trained & {row.record["prompt_id"] for row in read_rows(before, "train")}, "those that were trained on before still are"
