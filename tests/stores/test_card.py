"""The model card."""

from __future__ import annotations

from dataclasses import replace

from include.stores.card import CardFacts, licences, model_card
from tests.stores.things import some_digest

DATASETS = [
    {"dataset": "demonstrations@1", "content_hash": some_digest("d"), "licences": {"mit": 3, "cc|by": 9}, "imported_share": 0.25},
    {"dataset": "pairs@2", "content_hash": some_digest("p"), "licences": {"mit": 4, "": 1}, "imported_share": 0.0, "synthetic_share": 0.5},
]
FACTS = CardFacts(
    "helper", some_digest("deployment"), some_digest("weights"), "quickstart@1", "Answers sums.", False, DATASETS,
    "| gate | verdict |\n|---|---|\n| form | pass |", ["privacy: not evaluated"], "model dpo/policy\n  ```\n", ["speed: waived, one node"],
)  # fmt: skip


def test_licences_are_added_up_over_all_datasets() -> None:
    assert licences(DATASETS) == ["cc|by: 9 rows", "mit: 7 rows", "no licence stated: 1 rows"]


def test_the_card_says_all_that_a_releaser_answers_for() -> None:
    text = model_card(FACTS)
    for expected in ("# helper", "25.0%", "50.0%", "mit: 7 rows", "- privacy: not evaluated", "- speed: waived, one node", "| form | pass |",
                     FACTS.deployment, FACTS.weights, "quickstart@1", DATASETS[0]["content_hash"]):  # fmt: skip
        assert str(expected) in text, expected


def test_the_same_facts_give_the_same_card() -> None:
    assert model_card(FACTS) == model_card(replace(FACTS))


def test_a_demonstration_says_so() -> None:
    assert "A demonstration" not in model_card(FACTS)
    assert "A demonstration" in model_card(replace(FACTS, demonstration=True))


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    row = next(line for line in model_card(FACTS).splitlines() if line.startswith("| demonstrations@1"))
    assert row.replace("\\|", "").count("|") == 6


def test_a_fence_inside_the_lineage_does_not_end_it() -> None:
    lines = model_card(FACTS).splitlines()
    assert lines.count("````") == 2


def test_without_a_licence_the_card_warns() -> None:
    assert "do not distribute" in model_card(replace(FACTS, datasets=[]))


def test_every_member_of_a_reward_ensemble_is_named_with_how_they_become_one() -> None:
    members = [some_digest(n) for n in range(3)]
    text = model_card(replace(FACTS, reward_models=members, reward_combined="minimum"))
    assert "An ensemble of 3, taken together by their minimum" in text
    assert all(f"- `{member}`" in text for member in members)
    assert "ensemble" not in model_card(replace(FACTS, reward_models=members[:1]))
    assert "None scored its answers." in model_card(FACTS)


def test_the_base_the_fallback_and_what_was_decided_are_on_the_card() -> None:
    base = {"name": "team/base", "revision": "ab12", "licence": "Apache-2.0", "weights": some_digest("base")}
    text = model_card(replace(FACTS, base=base, fallback="the sft's deployment", decisions=["approved by anna: fine (ledger row 2)"]))
    for expected in ("Licence: Apache-2.0.", "| Name | `team/base` |", "## Fallback\n\nthe sft's deployment", "- approved by anna: fine"):
        assert expected in text, expected
    assert "Its licence is not stated: do not distribute." in model_card(replace(FACTS, base={"name": "team/base"}))
    assert "## Decisions\n\nNone yet." in model_card(FACTS)
