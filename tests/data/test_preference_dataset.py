"""The preference dataset is a function of snapshot, policy, rubrics and split, down to each label."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.data.errors import DataError
from include.data.preferences import PreferenceResult, PreferenceSettings, PreferenceSource, build_preferences
from include.domain.records import Candidate, Label, PreferencePair, Prompt, record_digest
from include.transforms.datasets_io import DatasetHeader, SidedRow, read_members, read_rows, write_dataset
from include.transforms.draft import Draft
from include.transforms.split import SplitSettings

from .labels import RUBRIC, SPLIT, candidate, label, prompts_on

SNAPSHOT = "sha256:" + "5" * 64
TRAIN = prompts_on("train", 8)


def _compared(prompts: Sequence[Prompt], verdict: str = "A", **changed: Any) -> tuple[list[Candidate], list[Label]]:
    both = [(candidate(p, f"first {p.prompt_id}"), candidate(p, f"second {p.prompt_id}")) for p in prompts]
    labels = [label(a, b, verdict, **{"label_id": f"label-{n}-{verdict}", **changed}) for n, (a, b) in enumerate(both)]
    return [c for pair in both for c in pair], labels


def _source(
    labels: Sequence[Label], candidates: Sequence[Candidate], prompts: Sequence[Prompt] = TRAIN, **changed: Any
) -> PreferenceSource:
    body: dict[str, Any] = {"snapshot_digest": SNAPSHOT, "purposes": {"batch-1": "train", "gold-1": "gold"}}
    return PreferenceSource(labels=labels, candidates=candidates, prompts={p.prompt_id: p for p in prompts}, **{**body, **changed})


def _settings(**changed: Any) -> PreferenceSettings:
    return PreferenceSettings(**{"dataset_id": "preferences", "rubric_versions": (RUBRIC,), "split": SPLIT, **changed})


def _build(tmp_path: Path, source: PreferenceSource, imported: Sequence[Path] = (), **changed: Any) -> PreferenceResult:
    return build_preferences(tmp_path / "out", source, _settings(**changed), imported)


CANDIDATES, LABELS = _compared(TRAIN)


def test_a_label_becomes_a_pair_with_the_way_back_to_it(tmp_path: Path) -> None:
    result = _build(tmp_path, _source(LABELS, CANDIDATES))
    pairs = [PreferencePair.from_json(row.record) for row in read_rows(result.info.folder, "train")]
    by_label = {each.label_id: each for each in LABELS}
    assert len(pairs) == 8
    for pair in pairs:
        source = by_label[str(pair.label_id)]
        assert (pair.chosen.candidate_id, pair.rejected.candidate_id) == (source.chosen_candidate_id, source.rejected_candidate_id)
        assert pair.label_digest == record_digest("label", source)
        assert (pair.rubric_version, pair.annotator_kind, pair.swap_flag) == (RUBRIC, "human", False)
        assert pair.chosen.traced


def test_its_members_are_labels_with_digests_and_batches(tmp_path: Path) -> None:
    result = _build(tmp_path, _source(LABELS, CANDIDATES))
    assert read_members(result.info.folder) == {each.label_id: record_digest("label", each) for each in LABELS}
    assert {batch for _, batch in result.members.values()} == {"batch-1"}
    assert SNAPSHOT in result.info.derived_from


def test_the_order_of_labels_and_another_snapshot_of_the_same_labels_do_not_move_the_content_hash(tmp_path: Path) -> None:
    first = _build(tmp_path / "a", _source(LABELS, CANDIDATES))
    second = _build(tmp_path / "b", _source(LABELS[::-1], CANDIDATES[::-1], snapshot_digest="sha256:" + "6" * 64))
    assert first.info.content_hash == second.info.content_hash


@pytest.mark.parametrize("verdict", ["B", "tie", "both_bad", "cannot_judge"])
def test_flipping_one_label_moves_the_content_hash(tmp_path: Path, verdict: str) -> None:
    before = _build(tmp_path / "a", _source(LABELS, CANDIDATES))
    a, b = CANDIDATES[6], CANDIDATES[7]
    flipped = label(a, b, verdict, label_id=LABELS[3].label_id)
    after = _build(tmp_path / "b", _source([*LABELS[:3], flipped, *LABELS[4:]], CANDIDATES))
    assert after.info.content_hash != before.info.content_hash


def test_flipping_a_label_of_the_minority_moves_it_too_although_the_winner_stays(tmp_path: Path) -> None:
    a, b = CANDIDATES[0], CANDIDATES[1]

    def built(name: str, third: str) -> str:
        said = [label(a, b, v, annotator_id=f"x{n}", label_id=f"x{n}") for n, v in enumerate(("A", "A", third))]
        return _build(tmp_path / name, _source([*LABELS[1:], *said], CANDIDATES)).info.content_hash

    assert built("a", "B") != built("b", "tie")


def test_labels_that_do_not_stand_or_are_not_wanted_are_left_out_and_counted(tmp_path: Path) -> None:
    labels = list(LABELS)
    labels[0] = replace(labels[0], batch_id="gold-1")
    labels[1] = replace(labels[1], rubric_version="other@1")
    correction = replace(labels[2], label_id="correction", supersedes=labels[2].label_id)
    result = _build(tmp_path, _source([*labels, correction], CANDIDATES, withdrawn={labels[3].label_id}))
    assert set(result.members) == {"correction", *(each.label_id for each in labels[4:])}
    assert {name: n for name, n in result.counts.items() if n} == {"other_purpose": 1, "other_rubric": 1, "superseded": 1, "withdrawn": 1}


def test_ties_never_become_a_pair_and_are_counted(tmp_path: Path) -> None:
    _, ties = _compared(TRAIN[:3], "tie")
    result = _build(tmp_path, _source([*ties, *LABELS[3:]], CANDIDATES))
    assert result.info.counts == {"train": 5}
    assert result.counts["tie"] == 3


def test_candidates_that_say_the_same_are_no_pair(tmp_path: Path) -> None:
    a, b = candidate(TRAIN[0], "same"), candidate(TRAIN[0], "same", random_seed=2)
    result = _build(tmp_path, _source([label(a, b, "A"), *LABELS[1:]], [a, b, *CANDIDATES]))
    assert (result.info.counts, result.counts["identical_candidates"]) == ({"train": 7}, 1)


def test_prompts_whose_personal_data_is_unknown_never_train(tmp_path: Path) -> None:
    prompts = [replace(TRAIN[0], pii="unknown"), *TRAIN[1:]]
    result = _build(tmp_path, _source(LABELS, CANDIDATES, prompts))
    assert (result.info.counts, result.counts["personal_data_unknown"]) == ({"train": 7}, 1)


def test_pairs_of_one_prompt_are_capped(tmp_path: Path) -> None:
    many = [candidate(TRAIN[0], f"answer {n}") for n in range(6)]
    labels = [label(many[0], other, "A") for other in many[1:]]
    result = _build(tmp_path, _source(labels, many), max_pairs_per_prompt=2)
    assert (result.info.counts, result.counts["over_the_cap_of_its_prompt"]) == ({"train": 2}, 3)


@pytest.mark.parametrize("side", ["train", "validation", "holdout"])
def test_a_pair_is_on_the_side_of_its_prompts_group(tmp_path: Path, side: str) -> None:
    prompts = prompts_on(side, 4)
    candidates, labels = _compared(prompts)
    result = _build(tmp_path, _source(labels, candidates, prompts), min_train_pairs=0)
    assert result.info.counts == {side: 4}


def test_too_few_training_pairs_say_what_became_of_the_labels(tmp_path: Path) -> None:
    _, ties = _compared(TRAIN, "tie")
    with pytest.raises(DataError, match="0 training pairs, at least 1 are needed; of 8 labels these are not in it: tie 8"):
        _build(tmp_path, _source(ties, CANDIDATES))


def test_a_label_whose_candidate_prompt_or_batch_is_not_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not among the candidates"):
        _build(tmp_path, _source(LABELS, CANDIDATES[2:]))
    with pytest.raises(DataError, match="is not among the prompts"):
        _build(tmp_path, _source(LABELS, CANDIDATES, TRAIN[1:]))
    with pytest.raises(DataError, match="the purpose of batch batch-1 is not given"):
        _build(tmp_path, _source(LABELS, CANDIDATES, purposes={}))


def _synthetic(folder: Path, prompts: Sequence[Prompt], split: SplitSettings = SPLIT) -> Path:
    from include.domain.records import Message
    from include.domain.split import side_of

    rows = []
    for each in prompts:
        draft = Draft(
            "made",
            1,
            each.messages,
            "CC0-1.0",
            "licence",
            chosen=Message("assistant", "right"),
            rejected=Message("assistant", "wrong"),
            origin="synthetic:test@sha256:00",
            pii="none",
            pii_detector="test",
        )
        pair = draft.pair(each.split_group)
        rows.append(
            SidedRow(
                pair.pair_id, side_of(split.salt, each.split_group, "none", split.shares), each.split_group, "preference", pair.to_json()
            )
        )
    return write_dataset(folder, DatasetHeader("synthetic_pairs", "pair", "filters@1"), rows).folder


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.2, 2), (0.5, 8), (0.8, 20), (1.0, 20)])
def test_imported_pairs_join_up_to_their_share_of_training(tmp_path: Path, share: float, expected: int) -> None:
    folder = _synthetic(tmp_path / "synthetic", [*prompts_on("train", 28)[8:], *prompts_on("holdout", 5)])
    result = _build(tmp_path, _source(LABELS, CANDIDATES), [folder], max_imported_share=share)
    assert result.info.counts == {"train": 8 + expected, "holdout": 5}
    assert result.imported_share == pytest.approx(expected / (8 + expected))
    assert result.imported_share <= share
    assert result.counts["over_the_imported_share"] == 20 - expected
    assert result.info.origins == {"policy": 8, "synthetic:test@sha256:00": expected + 5}


def test_imported_pairs_of_another_split_are_refused(tmp_path: Path) -> None:
    folder = _synthetic(tmp_path / "synthetic", prompts_on("train", 20), SplitSettings("another-salt", SPLIT.shares))
    with pytest.raises(DataError, match="made with another salt or other shares"):
        _build(tmp_path, _source(LABELS, CANDIDATES), [folder], max_imported_share=1.0)


def test_settings_that_name_no_rubric_or_an_unknown_policy_are_refused() -> None:
    with pytest.raises(DataError, match="names no rubric version"):
        _settings(rubric_versions=())
    with pytest.raises(DataError, match="'median@1' is not known"):
        _settings(aggregation="median@1")


def test_imported_pairs_leave_room_for_their_prompts_own_pairs_and_no_more_than_the_cap(tmp_path: Path) -> None:
    imported = _synthetic(tmp_path / "in", TRAIN)
    for cap, expected in ((2, 16), (1, 8)):
        result = _build(tmp_path / str(cap), _source(LABELS, CANDIDATES), [imported], max_imported_share=1.0, max_pairs_per_prompt=cap)
        assert result.info.counts["train"] == expected
        assert result.counts["over_the_cap_of_its_prompt"] == 16 - expected
        assert len(result.members) == 8, "a prompt's own pairs come first"
