"""Dataset versions: the same content has the same hash, sides are kept apart, every row left out is accounted for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from include.data.build import BuildResult, build_datasets
from include.data.errors import DataError, ValidationStopped
from include.domain.records import Demonstration, PreferencePair
from include.domain.split import SIDES
from include.transforms.datasets_io import Row, read_info, read_rows
from include.transforms.pii import PiiSettings
from include.transforms.split import SplitSettings

from .conftest import SPLIT, demonstrations, filtered, jsonl, plan_of_files, sentence, source_plan, texts_on

Build = Callable[..., BuildResult]


def _rows(result: BuildResult, name: str = "demonstrations") -> dict[str, list[Row]]:
    return {side: read_rows(result.datasets[name].folder, side) for side in SIDES}


def test_the_order_of_lines_does_not_move_the_content_hash(build: Build) -> None:
    rows = demonstrations(30)
    before = build(jsonl(rows)).datasets["demonstrations"].content_hash
    assert build(jsonl(rows[::-1])).datasets["demonstrations"].content_hash == before


def test_one_changed_answer_moves_the_content_hash(build: Build) -> None:
    rows = demonstrations(30)
    before = build(jsonl(rows)).datasets["demonstrations"].content_hash
    rows[3]["response"] += "!"
    assert build(jsonl(rows)).datasets["demonstrations"].content_hash != before


def test_rows_stay_on_their_sides_when_others_come(build: Build) -> None:
    few, many = _rows(build(jsonl(demonstrations(30)), "few")), _rows(build(jsonl(demonstrations(60)), "many"))
    sides = {row.id: side for side, rows in many.items() for row in rows}
    assert {row.id: side for side, rows in few.items() for row in rows}.items() <= sides.items()
    assert all(few[side] for side in ("train", "validation", "holdout"))


def test_rows_are_records_with_group_use_and_personal_data_state(build: Build) -> None:
    rows = _rows(build(jsonl(demonstrations(30))))
    for side, use in (("train", "demonstration"), ("validation", "demonstration"), ("holdout", "evaluation")):
        for row in rows[side]:
            record = Demonstration.from_json(row.record)
            assert (record.example_id, row.use, record.prompt.split_group) == (row.id, use, row.split_group)
            assert (record.prompt.pii, record.licence) == ("none", "CC0-1.0")
            assert record.prompt.pii_detector == PiiSettings().version


def test_personal_data_is_masked_before_it_is_stored(build: Build) -> None:
    rows = demonstrations(20)
    rows[4]["response"] = "Write to ann@mail.example.org."
    result = build(jsonl(rows))
    (row,) = [row for rows in _rows(result).values() for row in rows if row.id == "e4"]
    assert row.record["response"][0]["content"] == "Write to [EMAIL_1]."
    assert row.record["prompt"]["pii"] == "masked"
    assert result.counts["datasets"]["demonstrations"]["masked"] == {"EMAIL": 1}


def test_what_could_not_be_scanned_is_never_stored(build: Build) -> None:
    rows = demonstrations(20)
    rows[4]["response"] = "x" * 500
    result = build(jsonl(rows), pii=PiiSettings(max_characters=400))
    assert "e4" not in {row.id for rows in _rows(result).values() for row in rows}
    (quarantined,) = [json.loads(line) for line in result.quarantine.read_text().splitlines()]
    assert quarantined["reason"] == "personal data: unknown (not scanned)"


def test_every_row_is_kept_set_aside_or_left_out_with_a_reason(build: Build, tmp_path: Path) -> None:
    rows = [*demonstrations(60), {"exampleId": "same", **{k: demonstrations(1)[0][k] for k in ("prompt", "response")}}]
    rows.append({"exampleId": "odd", "prompt": sentence(400), "response": "a\x00b"})
    result = build(jsonl(rows))
    counts = result.counts["datasets"]["demonstrations"]
    assert counts["read"] == 62 == counts["kept"] + sum(counts["dropped"].values())
    assert counts["dropped"] == {"exact_duplicate": 1, "unclean": 1}
    dropped = [json.loads(line) for line in (tmp_path / "out-rows" / "dropped.jsonl").read_text().splitlines()]
    assert {(row["row"], row["reason"]) for row in dropped} >= {("rows:62", "unclean")}
    assert read_info(result.datasets["demonstrations"].folder)["notes"]["dropped"] == counts["dropped"]


def test_who_was_erased_stays_out_and_leaves_no_copy(build: Build, tmp_path: Path) -> None:
    rows = demonstrations(40)
    rows[3] |= {"subject_ref": "person-ada", "prompt": f"{sentence(3)} Write to ada@example.org."}
    whole = build(jsonl(rows), "before")
    prompts = {row.record["prompt"]["prompt_id"] for side in SIDES for row in read_rows(whole.datasets["demonstrations"].folder, side)}
    one = sorted(prompts)[0]
    after = build(jsonl(rows), "after", suppressed=lambda subject, prompt_id: subject == "person-ada" or prompt_id == one)
    stored = [row.record["prompt"] for side in SIDES for row in read_rows(after.datasets["demonstrations"].folder, side)]
    assert len(stored) == whole.datasets["demonstrations"].total - 2
    assert not [p for p in stored if p["subject_ref"] == "person-ada" or p["prompt_id"] == one]
    assert after.counts["datasets"]["demonstrations"]["dropped"]["erased"] == 2
    kept = b"".join(path.read_bytes() for path in after.quarantine.parent.rglob("*.json*"))
    assert sentence(3).encode() not in kept


def test_unused_columns_are_counted(build: Build) -> None:
    result = build(jsonl([{**row, "stars": 3} for row in demonstrations(12)]))
    assert result.counts["datasets"]["demonstrations"]["unused_columns"] == {"stars": 12}


def test_a_dataset_leads_back_to_the_bytes_of_its_source(build: Build) -> None:
    import hashlib

    data = jsonl(demonstrations(12))
    info = build(data).datasets["demonstrations"]
    assert info.derived_from == (f"sha256:{hashlib.sha256(data).hexdigest()}",)
    assert info.folder.name == info.content_hash.removeprefix("sha256:")


def test_a_pinned_source_of_other_bytes_could_not_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(demonstrations(12)))
    from dataclasses import replace

    plan = plan_of_files(replace(source_plan(path), sha256="sha256:" + "0" * 64))
    with pytest.raises(ValidationStopped, match="the recipe pins sha256:0000"):
        build_datasets(plan, tmp_path / "out")


def test_a_training_row_made_a_near_duplicate_of_a_held_out_row_is_dropped_and_counted(build: Build, tmp_path: Path) -> None:
    rows = demonstrations(60)
    sides = {row.id: side for side, stored in _rows(build(jsonl(rows), "before")).items() for row in stored}
    held = next(row for row in rows if sides[row["exampleId"]] == "holdout")
    copies = [
        {"exampleId": f"copy{i}", "prompt": f"{held['prompt']} {tail}", "response": "Because."}
        for i, tail in enumerate(["So", "Now", "Then", "Why", "Well", "Hm"])
    ]
    after = build(jsonl([*rows, *copies]), "after")
    stored = {row.id: side for side, stored in _rows(after).items() for row in stored}
    trained = [copy["exampleId"] for copy in copies if stored.get(copy["exampleId"]) == "train"]
    dropped = [json.loads(line) for line in (tmp_path / "out-after" / "dropped.jsonl").read_text().splitlines()]
    assert trained == []
    assert dropped
    assert {row["reason"] for row in dropped} == {"near_duplicate_of_a_held_out_row"}
    assert after.counts["datasets"]["demonstrations"]["dropped"] == {"near_duplicate_of_a_held_out_row": len(dropped)}
    assert all(row["like"].startswith("demonstrations:") for row in dropped)
    assert stored[held["exampleId"]] == "holdout"


def test_a_training_row_like_a_held_out_row_of_another_dataset_is_dropped(tmp_path: Path) -> None:
    prompts = [{"id": f"p{i}", "prompt": sentence(i)} for i in range(200, 240)]
    (tmp_path / "prompts.jsonl").write_bytes(jsonl(prompts))
    (tmp_path / "suite.jsonl").write_bytes(jsonl([{"id": row["id"], "prompt": f"{row['prompt']} Now"} for row in prompts]))
    made = filtered(
        plan_of_files(
            source_plan(tmp_path / "prompts.jsonl", dataset="prompts", rows="prompt", use="rl"),
            source_plan(tmp_path / "suite.jsonl", dataset="suite", rows="suite"),
        )
    )
    held = {text.removesuffix(" Now") for text in texts_on(made["suite"], "holdout")}
    assert held
    assert not texts_on(made["prompts"], "train") & held
    assert made["prompts"].dropped.counts["near_duplicate_of_a_held_out_row"] > 0
    assert "near_duplicate_of_a_held_out_row" not in made["suite"].dropped.counts


def test_held_out_rows_of_an_earlier_dataset_stay_unseen(build: Build, tmp_path: Path) -> None:
    earlier = build(jsonl(demonstrations(40)), "earlier").datasets["demonstrations"].folder
    held = {row.record["prompt"]["messages"][0]["content"] for row in read_rows(earlier, "holdout")}
    path = tmp_path / "later.jsonl"
    copies = [{"exampleId": f"l{i}", "prompt": f"{text} Now", "response": "x"} for i, text in enumerate(sorted(held))]
    path.write_bytes(jsonl(copies + demonstrations(20, 500)))
    made = filtered(plan_of_files(source_plan(path)), [earlier])["demonstrations"]
    assert made.dropped.counts["near_duplicate_of_a_held_out_row"] > 0
    assert not {text.removesuffix(" Now") for text in texts_on(made, "train")} & held
    assert {text.removesuffix(" Now") for text in texts_on(made, "holdout")} & held


def test_a_group_is_trained_on_for_one_use_only(tmp_path: Path) -> None:
    rows = demonstrations(40)
    (tmp_path / "d.jsonl").write_bytes(jsonl(rows))
    (tmp_path / "p.jsonl").write_bytes(jsonl([{"id": row["exampleId"], "prompt": row["prompt"].upper()} for row in rows[:20]]))
    made = filtered(
        plan_of_files(source_plan(tmp_path / "d.jsonl"), source_plan(tmp_path / "p.jsonl", dataset="prompts", rows="prompt", use="rl"))
    )
    assert texts_on(made["demonstrations"], "train")
    assert texts_on(made["prompts"], "train") == set()
    assert made["prompts"].dropped.counts["used_elsewhere"] > 0
    assert "used_elsewhere" not in made["demonstrations"].dropped.counts


def test_rows_shared_among_uses_are_given_to_one_each(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(jsonl([{"id": f"p{i}", "prompt": sentence(i)} for i in range(80)]))
    (tmp_path / "q.jsonl").write_bytes((tmp_path / "p.jsonl").read_bytes())
    split = SplitSettings(SPLIT.salt, SPLIT.shares, {"preference": 0.5, "rl": 0.5})
    made = filtered(
        plan_of_files(
            source_plan(tmp_path / "p.jsonl", dataset="for_preference", rows="prompt", use="preference", shared=True),
            source_plan(tmp_path / "q.jsonl", dataset="for_rl", rows="prompt", use="rl", shared=True),
            split=split,
        )
    )
    first, second = texts_on(made["for_preference"], "train"), texts_on(made["for_rl"], "train")
    assert not first & second
    assert min(len(first), len(second)) > 10
    assert texts_on(made["for_preference"], "validation") == texts_on(made["for_rl"], "validation")


def test_a_suite_holds_held_out_rows_only_and_a_set_of_prompts_none_of_them(tmp_path: Path) -> None:
    for name in ("s", "p"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl([{"id": f"p{i}", "prompt": sentence(i)} for i in range(60)]))
    made = filtered(
        plan_of_files(
            source_plan(tmp_path / "s.jsonl", dataset="suite", rows="suite"),
            source_plan(tmp_path / "p.jsonl", dataset="prompts", rows="prompt", use="rl"),
        )
    )
    assert {placed.side for placed in made["suite"].rows} == {"holdout"}
    assert {placed.side for placed in made["prompts"].rows} == {"train", "validation"}
    assert len(made["suite"].rows) + len(made["prompts"].rows) == 60


def test_documents_keep_their_questions_together_and_a_prompt_on_two_sides_leaves_training(tmp_path: Path) -> None:
    rows = [
        {"exampleId": f"{d}-{q}", "prompt": sentence(100 * d + q), "response": "x", "document_id": f"doc-{d}"}
        for d in range(12)
        for q in range(3)
    ]
    rows += [{"exampleId": f"again-{d}", "prompt": sentence(100 * d), "response": "y", "document_id": f"other-{d}"} for d in range(12)]
    (tmp_path / "d.jsonl").write_bytes(jsonl(rows))
    made = filtered(plan_of_files(source_plan(tmp_path / "d.jsonl")))["demonstrations"]
    sides: dict[str, set[str]] = {}
    for placed in made.rows:
        sides.setdefault(placed.draft.group or "", set()).add(placed.side)
    assert {len(found) for found in sides.values()} == {1}
    texts = {side: texts_on(made, side) for side in ("train", "validation", "holdout")}
    assert all(texts.values())
    assert not texts["train"] & (texts["validation"] | texts["holdout"])
    assert not texts["validation"] & texts["holdout"]


def test_imported_pairs_are_marked_with_their_source(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"id": i, "prompt": sentence(i), "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(30)]
    path.write_bytes(
        jsonl(
            [
                *rows,
                {"id": "turned", "prompt": sentence(0), "chosen": "bad 0", "rejected": "good 0"},
                {"id": "same", "prompt": sentence(1), "chosen": "x", "rejected": "x"},
            ]
        )
    )
    result = build_datasets(plan_of_files(source_plan(path, dataset="pairs", rows="pair")), tmp_path / "out")
    (origin,) = result.datasets["pairs"].origins
    assert origin == f"external:pairs@{result.datasets['pairs'].derived_from[0]}"
    assert result.counts["datasets"]["pairs"]["dropped"] == {"contradicted_by_another_row": 2, "identical_candidates": 1}
    for row in read_rows(result.datasets["pairs"].folder, "train"):
        assert PreferencePair.from_json(row.record).chosen.response_text.startswith("good")


def test_two_sources_that_disagree_about_a_dataset_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(demonstrations(12)))
    plan = plan_of_files(source_plan(tmp_path / "a.jsonl"), source_plan(tmp_path / "b.jsonl", rows="prompt", use="rl"))
    with pytest.raises(DataError, match="one source brings demonstration rows for demonstration, another prompt"):
        build_datasets(plan, tmp_path / "out")


def test_a_source_in_a_bucket_is_read_through_the_filesystem_that_is_handed_in(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/exports/rows.jsonl", jsonl(demonstrations(20)))
    plan = plan_of_files(source_plan(Path("/exports/rows.jsonl")))
    result = build_datasets(plan, tmp_path / "out", {"rows": memory})
    assert sum(result.datasets["demonstrations"].counts.values()) == 20
