"""The long tail of suites: found from the training rows of the same build, stored with the items, and judged as any slice."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from include.data.build import BuildResult, build_datasets
from include.data.errors import DataError
from include.data.rarity import Words
from include.domain.canonical import canonical_bytes
from include.domain.records import SuiteItem
from include.domain.slices import item_slices
from include.settings.recipes import LongTail
from include.transforms.datasets_io import read_suite

from .conftest import demonstrations, jsonl, plan_of_files, sentence, source_plan

USUAL = [{"id": f"usual{i}", "prompt": sentence(600 + i), "options": ["yes", "no"], "answer": 0} for i in range(60)]
ODD = [
    "alpaca",
    "bromine",
    "caisson",
    "dulcimer",
    "ermine",
    "fjord",
    "gnomon",
    "hyssop",
    "isthmus",
    "jetsam",
    "kelp",
    "lichen",
    "mistral",
    "nacre",
    "ocelot",
    "paladin",
    "quoin",
    "rotunda",
]
RARE = [
    {"id": f"rare{at}", "prompt": f"Quantify {first} zymurgy: {second}?", "options": ["yes", "no"], "answer": 1}
    for at, (first, second) in enumerate(zip(ODD, [*ODD[5:], *ODD[:5]], strict=True))
]


def _build(tmp_path: Path, name: str, items: list[dict[str, Any]], long_tail: LongTail | None, count: int = 600) -> BuildResult:
    (tmp_path / name).mkdir()
    trained, asked = tmp_path / name / "rows.jsonl", tmp_path / name / "items.jsonl"
    topics = ["cooking"] * 15 + ["law"]
    trained.write_bytes(jsonl({**row, "topic": topics[at % 16]} for at, row in enumerate(demonstrations(count))))
    asked.write_bytes(jsonl(items))
    plan = plan_of_files(source_plan(trained), source_plan(asked, dataset="asked", rows="suite"), long_tail=long_tail)
    return build_datasets(plan, tmp_path / f"out-{name}")


def _slices(result: BuildResult) -> dict[str, str | None]:
    items = [SuiteItem.from_json(row.record) for row in read_suite(result.datasets["asked"].folder)]
    return {item.item_id: item_slices(item).get("rarity") for item in items}


def test_items_of_words_that_no_training_prompt_holds_are_tail_and_the_others_common(tmp_path: Path) -> None:
    result = _build(tmp_path, "words", [*USUAL, *RARE], LongTail())
    found = _slices(result)
    kinds = {kind: [value for name, value in found.items() if name.startswith(kind)] for kind in ("rare", "usual")}
    assert kinds["rare"] == ["tail"] * len(kinds["rare"]) != []
    assert kinds["usual"].count("common") > kinds["usual"].count("tail")


def test_what_was_found_stands_with_the_data_set_and_in_the_log(tmp_path: Path) -> None:
    result = _build(tmp_path, "told", [*USUAL, *RARE], LongTail(share=0.2))
    notes = json.loads((result.datasets["asked"].folder / "dataset.json").read_text())["notes"]["rarity"]
    tail = sum(value == "tail" for value in _slices(result).values())
    assert (notes["by"], notes["share"], notes["tail"]) == ("words", 0.2, tail)
    assert notes["training_prompts"] == result.datasets["demonstrations"].counts["train"]
    assert f"asked: {tail} of {len(_slices(result))} items are of the long tail, by words" in result.text


def test_the_same_rows_give_the_same_content_and_without_the_setting_nothing_changes(tmp_path: Path) -> None:
    first, again = (_build(tmp_path, name, [*USUAL, *RARE], LongTail()).datasets["asked"].content_hash for name in ("first", "again"))
    plain = _build(tmp_path, "plain", [*USUAL, *RARE], None)
    assert first == again != plain.datasets["asked"].content_hash
    assert set(_slices(plain).values()) == {None}


def test_by_topic_the_rarest_topics_and_unknown_ones_are_tail(tmp_path: Path) -> None:
    topics = ["cooking", "law", "alchemy"]
    items = [{**item, "topic": topics[at % 3]} for at, item in enumerate(USUAL)]
    result = _build(tmp_path, "topic", items, LongTail(by="topic"))
    stored = [SuiteItem.from_json(row.record) for row in read_suite(result.datasets["asked"].folder)]
    assert {(item.prompt.topic, item_slices(item)["rarity"]) for item in stored} == {
        ("cooking", "common"), ("law", "tail"), ("alchemy", "tail")
    }  # fmt: skip


def test_another_share_moves_the_boundary(tmp_path: Path) -> None:
    narrow, wide = (_build(tmp_path, str(share), USUAL, LongTail(share=share)) for share in (0.02, 0.6))
    few, many = (sum(value == "tail" for value in _slices(result).values()) for result in (narrow, wide))
    assert few < many


def test_an_item_with_a_slice_of_that_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="brings a slice 'rarity' of its own"):
        _build(tmp_path, "own", [{**item, "slices": {"rarity": "high"}} for item in USUAL], LongTail())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_divides_nothing_is_refused(share: float) -> None:
    with pytest.raises(ValidationError):
        LongTail(share=share)


def test_a_boundary_that_is_a_prompt_without_words_is_told_without_a_number() -> None:
    drafts: list[Any] = [SimpleNamespace(prompt_text=text) for text in ("?", "!", "a word")]
    told = Words.of(drafts, 0.5).told
    assert told == {"threshold": None}
    assert canonical_bytes(told)
