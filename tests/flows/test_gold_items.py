"""Gold items go in among people's work, and the labels of whoever misses too many are held for review, not used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from include.flows import data_tasks, pair_tasks, preference_tasks
from include.flows.comparisons import per_annotator
from include.flows.gold_items import gold_for, held_for_review
from include.settings.annotation import AnnotationSettings
from include.settings.catalogue import gold
from include.settings.errors import SettingsError
from include.transforms.datasets_io import read_members
from tests.annotation.support import World
from tests.flows.conftest import Plane
from tests.flows.test_earlier_batches import assistant, candidates, change, waited  # noqa: F401  the fixture
from tests.flows.test_people_reach import WRITER, control, people  # noqa: F401  the fixtures

RIGHT = {item.a if item.verdict == "A" else item.b for item in gold("assistant@1").items}
GOLD = {item.a for item in gold("assistant@1").items} | {item.b for item in gold("assistant@1").items}


def wanted(**changed: Any) -> AnnotationSettings:
    return AnnotationSettings.model_validate({"rubric": "r@1", "min_labels": 1, "gold": "assistant@1", **changed})


def work(people: World, name: str, batch_id: str, *, careful: bool) -> None:  # noqa: F811
    """Chooses the left of the policy's answers; of gold items the right one, or the wrong one."""
    while shown := people.next(name, batch_id)["task"]:
        sides = {side: shown[side]["text"] for side in ("left", "right")}
        said = "left"
        if set(sides.values()) <= GOLD:
            right = next(side for side, text in sides.items() if text in RIGHT)
            said = right if careful else {"left": "right", "right": "left"}[right]
        assert people.label(name, shown["task_id"], said).status_code == 201


def test_items_have_their_share_and_each_batch_has_others() -> None:
    settings = wanted(gold_share=0.1)
    one, two = gold_for(settings, 60, "sha256:one"), gold_for(settings, 60, "sha256:two")
    assert (len(one), len(two)) == (6, 6)
    assert {item.prompt.prompt_id for item in one} != {item.prompt.prompt_id for item in two}
    assert gold_for(settings, 60, "sha256:one") == one
    assert all(item.gold is not None and item.prompt.pii == "none" for item in one)
    assert len(gold_for(wanted(gold_share=1.0), 1000, "x")) == len(gold("assistant@1").items)
    assert gold_for(settings, 0, "x") == gold_for(wanted(gold=None), 60, "x") == []


def test_a_threshold_without_gold_items_and_a_set_that_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="min_gold_accuracy needs `gold`"):
        wanted(gold=None, min_gold_accuracy=0.8)
    with pytest.raises(SettingsError, match=r"gold has: assistant"):
        gold_for(wanted(gold="nothing@1"), 10, "x")


def test_who_is_held_needs_enough_gold_labels_and_nobody_who_was_reviewed() -> None:
    progress = {"gold": {"by_annotator": {"a": {"labels": 5, "right": 3}, "b": {"labels": 4, "right": 0}, "c": {"labels": 5, "right": 4}}}}
    assert held_for_review(progress, wanted(min_gold_accuracy=0.8)) == {"a": {"labels": 5, "right": 3}}
    assert held_for_review(progress, wanted(min_gold_accuracy=0.8, gold_reviewed=["a"])) == {}
    assert held_for_review(progress, wanted()) == held_for_review({"gold": None}, wanted(min_gold_accuracy=0.8)) == {}


def test_the_share_of_one_annotator_counts_second_opinions() -> None:
    assert per_annotator(100, wanted(max_annotator_share=0.25, overlap_share=0.2, overlap_annotators=3)) == 35
    assert per_annotator(100, wanted()) is None


def test_labels_of_a_careless_annotator_are_held_and_not_used(
    assistant: Plane, people: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    change(
        assistant,
        "annotation",
        gold="assistant@1",
        gold_share=0.1,
        min_gold_accuracy=0.8,
        overlap_share=0.5,
        max_annotator_share=0.6,
        min_agreement=0,
    )
    datasets = data_tasks.build(assistant.run(), WRITER)
    generated = candidates(datasets, "sha256:" + "1" * 64, tmp_path / "first")
    batch = preference_tasks.open_batch(assistant.run(auto=False), generated, datasets)
    work(people, people.add("careless", "annotator", "human"), batch["batch_id"], careful=False)
    work(people, people.add("careful", "annotator", "human"), batch["batch_id"], careful=True)
    work(people, "annotator", batch["batch_id"], careful=True)
    found = people.progress(batch["batch_id"])
    assert found["complete"]
    assert len(found["annotators"]) >= 2, "nobody may label more than the share"
    with capture_logs() as told:
        snapshot = waited(assistant, batch, "manual__1")
    assert snapshot["held"] == found["review"]["annotators"]
    assert len(snapshot["held"]) == 1
    assert "Held for review, and not used" in str(told)
    assert waited(assistant, batch, "manual__1") == snapshot, "a retry holds the same"
    made = pair_tasks.pairs_from(assistant.run(), snapshot, generated, datasets, WRITER)
    assert "labels of 1 annotators are held for review and not used" in capsys.readouterr().out
    by_label = {label["label_id"]: label["annotator_id"] for label in people.snapshot(batch["batch_id"])["labels"]}
    used = {by_label[label_id] for label_id in read_members(preference_tasks.local_dataset(made["preferences"]))}
    assert used
    assert not used & set(snapshot["held"])
