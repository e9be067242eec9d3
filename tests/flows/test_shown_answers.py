"""Personal data that a policy repeats reaches no annotator and no training text, from candidates to the preference dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from include.data.shown_answers import ShownAnswers
from include.domain.manifest import MANIFEST
from include.flows import data_tasks, erasing, pair_tasks, preference_tasks, services, shown_answers
from include.flows.errors import FlowError
from include.stores.errors import StoreError
from include.transforms.datasets_io import read_info, read_rows
from tests.annotation.support import World
from tests.data.conftest import jsonl
from tests.flows.conftest import Plane
from tests.flows.test_earlier_batches import assistant, candidates, change, opened, waited  # noqa: F401  the fixture
from tests.flows.test_people_reach import WRITER, control, people  # noqa: F401  the fixtures
from tests.training.harness import sums

ADA = "ada.lovelace@analytical.example.org"
CARD = "4111 1111 1111 1111"
LEAK = "<b>ask " + ADA + "</b>, card " + CARD + ", number {n}"
POLICY = "sha256:" + "1" * 64


def everything_shown(people: World, batch_id: str) -> str:  # noqa: F811
    """All that an annotator is told of a batch while working through it."""
    told = []
    while shown := people.next("annotator", batch_id)["task"]:
        told.append(json.dumps(shown, ensure_ascii=False))
        assert people.label("annotator", shown["task_id"], "left").status_code == 201
    return "\n".join(told)


def leaks(plane: Plane, tmp_path: Path, says: str = LEAK) -> tuple[dict[str, Any], dict[str, Any]]:
    datasets = data_tasks.build(plane.run(), WRITER)
    return datasets, candidates(datasets, POLICY, tmp_path / "first", says)


def test_annotators_see_masks_and_pairs_learn_from_what_they_saw(
    assistant: Plane, people: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    datasets, generated = leaks(assistant, tmp_path)
    batch = preference_tasks.open_batch(assistant.run(auto=False), generated, datasets)
    assert batch["masked_answers"] == len(preference_tasks.candidates_of(generated))
    assert batch["answers_not_shown"] == 0
    count = batch["masked_answers"]
    assert f"Personal data in answers: CARD {count}, EMAIL {count}; {count} are shown masked, 0 are not shown" in capsys.readouterr().out
    assert preference_tasks.open_batch(assistant.run(auto=False), generated, datasets) == batch, "a retry opens no second one"
    told = everything_shown(people, batch["batch_id"])
    assert "ask [EMAIL_1]" in told
    assert "card [CARD_1], number 1" in told
    assert ADA not in told
    assert CARD not in told
    frozen = waited(assistant, batch, "manual__1")
    made = pair_tasks.pairs_from(assistant.run(), frozen, generated, datasets, WRITER)["preferences"]
    folder = preference_tasks.local_dataset(made)
    rows = [row.record for side in ("train", "validation") for row in read_rows(folder, side)]
    written = {one.candidate_id: one for one in preference_tasks.candidates_of(generated)}
    for row in rows:
        for side in ("chosen", "rejected"):
            assert row[side]["response_text"].startswith("<b>ask [EMAIL_1]</b>, card [CARD_1], number ")
            assert ADA in written[row[side]["masked_from"]].response_text
            assert row[side]["token_ids"] is None
    assert rows
    assert ADA not in json.dumps(rows)
    assert read_info(folder)["notes"]["pairs_with_a_masked_answer"] == sum(made["counts"].values())
    assert "pairs with a masked answer, learnt from as it was shown:" in capsys.readouterr().out


def test_answers_without_personal_data_keep_nothing_and_open_the_batch_they_always_did(
    assistant: Plane, people: World, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    datasets, generated = leaks(assistant, tmp_path, "nothing {n}")
    batch = preference_tasks.open_batch(assistant.run(auto=False), generated, datasets)
    assert (batch["masked_answers"], batch["answers_not_shown"]) == (0, 0)
    of = generated["outputs"]["candidates"]["digest"]
    assert shown_answers.kept(of) == shown_answers.Kept((), ())
    assert not (assistant.store_root / "shown").exists()


def test_two_persons_stay_two(assistant: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    datasets, generated = leaks(assistant, tmp_path, "mail a{n}@example.org")
    batch = preference_tasks.open_batch(assistant.run(auto=False), generated, datasets)
    told = everything_shown(people, batch["batch_id"])
    assert "mail [EMAIL_1]" in told
    assert "mail [EMAIL_2]" in told


def test_a_policy_that_writes_what_is_refused_stops_the_run_before_anybody_sees_it(
    assistant: Plane, people: World, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    datasets, generated = leaks(assistant, tmp_path)
    change(assistant, "data", pii={"refuse": ["CARD"]})
    with pytest.raises(
        FlowError, match=r"are not shown \(CARD \d+\)\. That is a share of 1\.000 .* the policy writes what data\.pii\.refuse"
    ):
        preference_tasks.open_batch(assistant.run(auto=False), generated, datasets)
    assert people.ask("annotator", "GET", "/v1/annotation-tasks/next").json()["task"] is None
    assert not (assistant.store_root / "shown").exists()


def test_a_task_that_died_while_it_kept_them_is_done_by_the_next_try(
    assistant: Plane, people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    datasets, generated = leaks(assistant, tmp_path)
    store, of = type(services.store()), generated["outputs"]["candidates"]["digest"]
    with monkeypatch.context() as cut:
        cut.setattr(store, "put_json", lambda *_: (_ for _ in ()).throw(StoreError("killed before the manifest")))
        with pytest.raises(StoreError, match="killed"):
            preference_tasks.open_batch(assistant.run(auto=False), generated, datasets)
    assert list((assistant.store_root / "shown").rglob("answers.jsonl"))
    assert not list((assistant.store_root / "shown").rglob(MANIFEST))
    assert shown_answers.kept(of).answers == (), "shown to nobody yet"
    batch = opened(assistant, datasets, generated, people)
    assert len(shown_answers.kept(of).answers) == batch["masked_answers"]


def test_kept_answers_that_were_changed_are_refused(assistant: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    datasets, generated = leaks(assistant, tmp_path)
    batch = opened(assistant, datasets, generated, people)
    frozen = waited(assistant, batch, "manual__1")
    [file] = (assistant.store_root / "shown").rglob("answers.jsonl")
    file.chmod(0o600)
    file.write_bytes(file.read_bytes().replace(b"[EMAIL_1]", b"a@b.examp"))
    with pytest.raises(Exception, match=r"answers\.jsonl"):
        pair_tasks.pairs_from(assistant.run(), frozen, generated, datasets, WRITER)


def test_labels_of_a_release_that_masked_no_answers_are_left_out(
    assistant: Plane, people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    datasets, generated = leaks(assistant, tmp_path)
    with monkeypatch.context() as earlier:
        as_it_was = lambda answers, *_: ShownAnswers(tuple(answers), (), {}, {})  # noqa: E731
        earlier.setattr(shown_answers, "shown", as_it_was)
        old = opened(assistant, datasets, generated, people)
    waited(assistant, old, "manual__1")
    batch = opened(assistant, datasets, generated, people)
    assert batch["batch_id"] != old["batch_id"], "those answers are compared anew, masked"
    change(assistant, "preferences", earlier_batches=2)
    frozen = waited(assistant, batch, "manual__2")
    assert [one["batch_id"] for one in frozen["earlier"]] == [old["batch_id"]]
    made = pair_tasks.pairs_from(assistant.run(), frozen, generated, datasets, WRITER)["preferences"]
    members = services.catalog().datasets.members(made["content_hash"])
    assert {member.batch_id for member in members} == {batch["batch_id"]}
    assert "labels are on" in (said := capsys.readouterr().out)
    assert "answers with personal data that were shown as they were written" in said


def test_masked_answers_go_when_their_prompts_are_erased_and_the_lineage_names_them(
    assistant: Plane, people: World, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    datasets, generated = leaks(assistant, tmp_path)
    batch = opened(assistant, datasets, generated, people)
    frozen = waited(assistant, batch, "manual__1")
    made = pair_tasks.pairs_from(assistant.run(), frozen, generated, datasets, WRITER)["preferences"]
    [artifact] = shown_answers.kept(generated["outputs"]["candidates"]["digest"]).artifacts
    behind = {node.ref for node in services.catalog().lineage.trace(made["content_hash"]).walk()}
    assert artifact in behind
    found = erasing.find(
        erasing.Asked((), tuple(preference_tasks.prompts_of(datasets["preference_prompts"]))[:1], "asked", "steward"), "r1"
    )
    assert found.artifacts[artifact] == "candidate_set"


def test_the_verifier_judges_no_number_that_it_is_shown_masked(
    assistant: Plane, people: World, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    """2123450123 is a telephone number to whoever masks; 1123450123, the wrong result beside it, is none."""
    reference = {"verifier": "arithmetic", "verifier_version": "1", "expected": "2123450123"}
    (tmp_path / "prompts.jsonl").write_bytes(jsonl({"prompt": f"{a} + {b} =", "reference": reference} for a, b in sums()))
    change(assistant, "annotation", verifier=True)
    datasets, generated = leaks(assistant, tmp_path, "Answer: {n}123450123")
    batch = preference_tasks.open_batch(assistant.run(auto=True), generated, datasets)
    assert (batch["human"], batch["masked_answers"]) == (0, batch["tasks"])
    done = preference_tasks.verify_batch(assistant.run(auto=True), batch, datasets)
    assert done == {"labels": batch["tasks"], "verdicts": {"cannot_judge": batch["tasks"]}}
