"""Gates on a part of a suite, or on each of its slices, are held against that part's items as they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from include.domain.records import Message
from include.flows import data_tasks
from include.flows.errors import FlowError
from include.flows.gates_fit import require_gates_fit
from include.settings.catalogue import recipe
from include.transforms.datasets_io import DatasetHeader, SidedRow, write_dataset
from include.transforms.draft import Draft
from tests.flows.conftest import Plane
from tests.flows.test_apart import control  # noqa: F401  the fixture

AGAINST_SFT = {"kind": "non_inferiority", "against": "sft", "margin": 0.1}
SAFE = {**AGAINST_SFT, "name": "over", "group": "safety_privacy_refusal", "metric": "over_refusal", "suite": "requests", "min_n": 5}
UNSAFE = {**SAFE, "name": "unsafe", "metric": "unsafe_refusal"}
BY_TOPIC = {**SAFE, "name": "topics", "min_n": 1, "slices": [{"by": "topic", "margin": 0.2, "min_n": 4}]}


def requests(folder: Path, *parts: tuple[str, str, int]) -> dict[str, Any]:
    """A stored suite of so many items of each (safety class, topic)."""
    rows = []
    for safety_class, topic, count in parts:
        for n in range(count):
            draft = Draft(
                "made", n, (Message("user", f"{safety_class} {topic} {n}"),), "CC0", "licence", topic=topic, safety_class=safety_class
            )
            item = draft.suite_item(f"{safety_class} {topic} {n}")
            side = "holdout" if safety_class == "none" else "safety_holdout"
            rows.append(SidedRow(item.item_id, side, item.prompt.split_group, "evaluation", item.to_json()))
    return data_tasks.publish(
        write_dataset(folder, DatasetHeader("requests", "suite", "filters@1"), rows), "tiny", "dag:build_dataset/1/b/1"
    )


def gated(plane: Plane, *gates: dict[str, Any]) -> None:
    for kind, change in (
        ("suites", lambda body: body["suites"].update(requests={"dataset": "requests", "scorers": ["refusal"], "slices": ["topic"]})),
        ("gates", lambda body: body["gates"].extend(gates)),
    ):
        path = plane.configs / kind / "tiny.yaml"
        body = yaml.safe_load(path.read_text())
        change(body)
        path.write_text(yaml.safe_dump(body))


def test_refusal_of_safe_and_of_unsafe_requests_each_needs_its_own_items(control: Plane, tmp_path: Path) -> None:  # noqa: F811
    gated(control, SAFE, UNSAFE)
    few = {"requests": requests(tmp_path / "few", ("none", "a", 40), ("harm", "b", 4))}
    with pytest.raises(FlowError, match=r"trained: gate unsafe needs 5 items \(min_n\), and suite requests, on what .* gives 4$"):
        require_gates_fit(recipe("tiny"), few)
    require_gates_fit(recipe("tiny"))
    require_gates_fit(recipe("tiny"), {"requests": requests(tmp_path / "enough", ("none", "a", 5), ("harm", "b", 5))})


def test_each_slice_needs_its_own_items(control: Plane, tmp_path: Path) -> None:  # noqa: F811
    gated(control, BY_TOPIC)
    uneven = {"requests": requests(tmp_path / "uneven", ("none", "a", 40), ("none", "b", 3), ("harm", "b", 4))}
    with pytest.raises(
        FlowError, match=r"trained: gate topics, slices by topic, needs 4 items \(min_n\), and topic b of suite .* gives 3$"
    ):
        require_gates_fit(recipe("tiny"), uneven)
    require_gates_fit(recipe("tiny"), {"requests": requests(tmp_path / "even", ("none", "a", 4), ("none", "b", 4))})


def test_the_long_tail_is_a_slice_as_any_other(control: Plane, tmp_path: Path) -> None:  # noqa: F811
    gated(control, {**SAFE, "name": "tail", "min_n": 1, "slices": [{"by": "rarity", "margin": 0.2, "min_n": 4}]})
    path = control.configs / "suites" / "tiny.yaml"
    body = yaml.safe_load(path.read_text())
    body["suites"]["requests"]["slices"] = ["rarity"]
    path.write_text(yaml.safe_dump(body))

    def marked(name: str, tail: int) -> dict[str, Any]:
        drafts = [
            Draft("made", n, (Message("user", f"{name} {n}"),), "CC0", "licence", slices={"rarity": "tail" if n < tail else "common"})
            for n in range(20)
        ]
        items = [draft.suite_item(draft.prompt_text) for draft in drafts]
        rows = [SidedRow(item.item_id, "holdout", item.prompt.split_group, "evaluation", item.to_json()) for item in items]
        header = DatasetHeader("requests", "suite", "filters@1")
        return {"requests": data_tasks.publish(write_dataset(tmp_path / name, header, rows), "tiny", "dag:build_dataset/1/b/1")}

    with pytest.raises(FlowError, match=r"gate tail, slices by rarity, needs 4 items \(min_n\), and rarity tail of suite .* gives 3"):
        require_gates_fit(recipe("tiny"), marked("few", 3))
    require_gates_fit(recipe("tiny"), marked("enough", 4))
    unmarked = {"requests": requests(tmp_path / "unmarked", ("none", "a", 20))}
    with pytest.raises(FlowError, match="asks for slices by rarity, and no item of suite requests says its rarity"):
        require_gates_fit(recipe("tiny"), unmarked)
