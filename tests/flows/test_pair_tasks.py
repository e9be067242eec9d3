"""Which pairs of sources join which dataset, what cannot be measured, and the warning about short answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.data.errors import ValidationStopped
from include.domain.records import Message
from include.flows.data_tasks import checked
from include.flows.errors import FlowError
from include.flows.pair_tasks import brought, require_measurable, say_short_wins
from include.settings.catalogue import recipe
from include.settings.recipes import Recipe
from include.transforms.datasets_io import DatasetHeader, SidedRow, write_dataset
from include.transforms.draft import Draft

SOURCE = {"name": "hub", "kind": "jsonl", "mapping": "rows", "path": "x.jsonl", "licence": "own", "options": {"dataset": "hub_pairs", "rows": "pair"}}  # fmt: skip
DATASETS = {"synthetic_pairs": {}, "hub_pairs": {}, "preference_prompts": {}}


def tiny(**parts: dict[str, Any]) -> Recipe:
    body = recipe("tiny").model_dump(mode="json")
    return Recipe.model_validate(body | {name: {**body[name], **changed} for name, changed in parts.items()})


@pytest.mark.parametrize(
    ("name", "share", "joined"),
    [
        ("preferences", 0.0, []),
        ("preferences", 0.3, ["hub_pairs"]),
        ("reward_pairs", 0.0, ["synthetic_pairs"]),
        ("reward_pairs", 1.0, ["synthetic_pairs", "hub_pairs"]),
    ],
)
def test_pairs_of_a_source_join_where_they_have_a_share(
    name: str, share: float, joined: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = tiny(data={"sources": [*recipe("tiny").model_dump(mode="json")["data"]["sources"], SOURCE]})
    assert brought(found, DATASETS, name, share) == joined
    assert ("hub_pairs are not used, their share is 0" in capsys.readouterr().out) == (share == 0)
    assert "hub_pairs" not in brought(recipe("tiny"), DATASETS, name, share), "only sources of the recipe's own"


def test_pairs_that_could_not_stop_or_judge_a_reward_model_are_refused_by_name() -> None:
    strict, loose = tiny(reward_gate={"min_pairs": 50}), tiny(reward_gate={"min_pairs": 50, "required": False})
    require_measurable({"train": 9, "validation": 1, "holdout": 30, "safety_holdout": 20}, strict)
    require_measurable({"train": 9, "validation": 1, "holdout": 1}, loose)
    with pytest.raises(FlowError, match="49 hold-out pairs, reward_gate needs 50"):
        require_measurable({"train": 9, "validation": 1, "holdout": 49}, strict)
    with pytest.raises(FlowError, match="no validation pair to stop on and 0 hold-out pairs, reward_gate needs 1"):
        require_measurable({"train": 9}, loose)


@pytest.mark.parametrize(("won", "warned"), [(1, True), (2, False)])
def test_wins_of_short_answers_that_are_rare_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], won: int, warned: bool
) -> None:
    rows = []
    for n in range(10):
        texts = ("no", "a long answer") if n < won else ("a long answer", "no")
        record: dict[str, Any] = {
            side: {"response_text": text, "origin": "policy"} for side, text in zip(("chosen", "rejected"), texts, strict=True)
        }
        record["licence"] = "own"
        rows.append(SidedRow(f"pair-{n}", "train", f"g{n}", "preference", record))
    folder = write_dataset(tmp_path / "pairs", DatasetHeader("pairs", "pair", "filters@1"), rows).folder
    say_short_wins(folder, recipe("tiny"))
    said = capsys.readouterr().out
    assert f"the short answer won {won} of 10 pairs" in said
    assert ("WARNING: below 20%" in said) == warned


def test_pairs_made_of_labels_are_held_against_what_the_recipe_expects_of_them(tmp_path: Path) -> None:
    rows = []
    for n in range(8):
        sides = {side: Message("assistant", f"{side} answer {n}") for side in ("chosen", "rejected")}
        draft = Draft(
            "s", n, (Message("user", f"question {n}"),), "CC0-1.0", "licence", origin="external:s@1", pii="none", pii_detector="d@1"
        )
        made = replace(draft, **sides).pair("g")  # type: ignore[arg-type]
        rows.append(SidedRow(made.pair_id, "train", f"g{n}", "preference", made.to_json()))
    info = write_dataset(tmp_path / "pairs", DatasetHeader("preferences", "pair", "none@1"), rows)
    expected = {"expect": "expect_column_values_to_match_regex", "column": "chosen", "arguments": {"regex": "^chosen"}}
    met, unmet = (
        {"dataset": name, **expected, "arguments": {"regex": regex}} for name, regex in (("preferences", "^chosen"), ("preferences", "^no"))
    )
    other = {**unmet, "dataset": "reward_pairs"}
    checked(info, tiny(data={"licences": ["CC0-1.0"], "expectations": [met, other]}), tmp_path)
    with pytest.raises(ValidationStopped, match="preferences, expected by the recipe.chosen: .* 8 of 8 values unexpected"):
        checked(info, tiny(data={"licences": ["CC0-1.0"], "expectations": [met, unmet]}), tmp_path)
