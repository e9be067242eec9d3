"""An ensemble of three seeds: members differ, each has its own statistics, all are measured together, and a death changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.errors import SpecError  # noqa: E402
from include.domain.parts import parts_of  # noqa: E402
from include.runtime.reward_stats import RewardNormaliser, RunningStats, member_inputs  # noqa: E402
from include.runtime.settings import Settings  # noqa: E402
from include.training.pairs.rows import TokenPair, format_slice  # noqa: E402
from include.training.reward.ensemble import ensemble_seeds  # noqa: E402
from include.training.reward.pair_scores import MemberScores, PairScores, together  # noqa: E402
from include.training.reward.report import BINS, by_slice, calibration, holdout_report, overfit  # noqa: E402
from tests.training.align_store import PPO, aligned_store, curve, killed, reward_spec, run_here, shared_root  # noqa: E402
from tests.training.harness import Started, Store  # noqa: E402

SEEDS = [11, 12, 13]
NAMES = ["reward_model", "reward_model_2", "reward_model_3"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return aligned_store(shared_root(tmp_path_factory))


@pytest.fixture(scope="module")
def done(store: Store) -> Started:
    return run_here(store, reward_spec(store, seeds=SEEDS, steps=6, salt="ensemble"))


def _rows(started: Started) -> dict[str, dict[str, float]]:
    body = json.loads((started.output("measurements") / "measurements.json").read_text())
    return {row["metric"]: {item["id"]: item["value"] for item in row["items"]} for row in body["rows"]}


def test_each_seed_gives_a_member_of_its_own_with_its_own_statistics(done: Started) -> None:
    assert done.code == 0
    assert sorted(done.report.outputs) == ["measurements", *NAMES]
    assert len({done.report.outputs[name] for name in NAMES}) == 3
    stats = [json.loads((done.output(name) / "reward.json").read_text()) for name in NAMES]
    assert len({entry["mean"] for entry in stats}) == 3
    assert [member["seed"] for member in done.report.summary["members"]] == SEEDS
    assert [line["member"] for line in done.lines] == [1.0] * 6 + [2.0] * 6 + [3.0] * 6


def test_a_member_is_what_a_run_of_its_seed_alone_gives(store: Store, done: Started) -> None:
    alone = run_here(store, reward_spec(store, seed=SEEDS[0], steps=6))
    assert curve(alone) == [{k: v for k, v in line.items() if k != "member"} for line in curve(done)[:6]]
    assert alone.report.outputs["reward_model"] != done.report.outputs["reward_model_2"]


def test_the_minimum_is_never_above_the_mean(done: Started) -> None:
    rows = _rows(done)
    assert all(rows["score_minimum"][name] <= value + 1e-12 for name, value in rows["score_mean"].items())
    assert rows["score_minimum"] != rows["score_mean"]
    assert {"holdout_accuracy_member_1", "holdout_accuracy_member_3", "holdout_accuracy_minimum"} <= set(done.report.metrics)


def test_killed_in_its_second_member_it_goes_on_to_the_same_bits(store: Store, done: Started) -> None:
    spec = reward_spec(store, seeds=SEEDS, steps=6, salt="ensemble killed")
    first = killed(store, spec, "recorded", 9, save_every_steps=4)
    assert first.code == -9
    second = run_here(store, spec, n=2, save_every_steps=4)
    assert (second.report.first_step, second.report.last_step) == (8, 18)
    assert curve(first, second) == curve(done)
    assert [second.report.outputs[name] for name in NAMES] == [done.report.outputs[name] for name in NAMES]


def test_members_trained_as_runs_of_their_own_make_the_same_ensemble(store: Store, done: Started) -> None:
    spec, cut = reward_spec(store, seeds=SEEDS, steps=6, salt="members"), {"members": "array"}
    parts = parts_of(spec, cut)
    assert [part.spec.key for part in parts] == [reward_spec(store, seed=seed, steps=6, salt="members").key for seed in SEEDS]
    members = [run_here(store, part.spec) for part in parts]
    assert [member.code for member in members] == [0, 0, 0]
    taken = {
        part.name: {"key": part.spec.key, "path": str(member.output("reward_model")), "artifact": member.report.outputs["reward_model"]}
        for part, member in zip(parts, members, strict=True)
    }
    joined = run_here(store, spec, **cut, taken=taken)
    assert joined.code == 0, joined.report.message
    assert joined.report.outputs == done.report.outputs, "members and what is measured of them, to the byte"
    assert joined.report.summary["members"] == done.report.summary["members"]
    same = {
        name: value
        for name, value in done.report.metrics.items()
        if name.startswith(("holdout_", "validation_")) and not name.endswith("_last")
    }
    assert same.items() <= joined.report.metrics.items()
    wrong = run_here(store, spec, n=2, **cut, taken=taken | {"seed 12": taken["seed 11"]})
    assert wrong.code == 1
    assert "part seed 12" in wrong.report.message


def test_ppo_uses_every_member_and_records_each(store: Store, done: Started) -> None:
    for name in NAMES:
        store.artifact(f"ensemble {name}", done.output(name))
    inputs = {"policy": "policy", "reference": "policy", "prompts": "prompts", **{name: f"ensemble {name}" for name in NAMES}}
    reward = {**PPO["reward"], "combine": "minimum"}
    optimised = run_here(store, store.spec("ppo", inputs, {**PPO, "iterations": 1, "reward": reward}))
    assert optimised.code == 0
    from include.training.rl.rollouts import read_rollouts

    for rollout in read_rollouts(optimised.output("rollouts")):
        assert list(rollout.reward_model_checkpoint) == [done.report.outputs[name] for name in NAMES]
        parts = rollout.reward_components
        least = min(parts[f"normalised_{name}"] for name in NAMES)
        assert parts["model"] == pytest.approx(min(max(least, -5.0), 5.0))


@pytest.mark.parametrize("seeds", [[1, 2], [1, 1, 2], [1, 2, 3, 4, 5, 6], [1, 2, -3], [1, 2, True]])
def test_seeds_that_are_no_ensemble_are_refused(seeds: list[Any]) -> None:
    with pytest.raises(SpecError, match="3 to 5 different"):
        ensemble_seeds(Settings({"seeds": seeds}, "config"), 7)


def test_without_seeds_there_is_one_member_by_the_runs_own() -> None:
    assert ensemble_seeds(Settings({}, "config"), 7) == (7,)


def test_members_are_found_in_their_order() -> None:
    assert member_inputs(["prompts", "reward_model_10", "reward_model_2", "reward_model", "reward_model_card"]) == [
        "reward_model",
        "reward_model_2",
        "reward_model_10",
    ]


def _member(chosen: list[float], rejected: list[float]) -> MemberScores:
    scores = PairScores(chosen, rejected)
    return MemberScores(1, 1, RewardNormaliser(RunningStats.of([*chosen, *rejected])), scores, scores)


def test_adding_a_hundred_to_one_members_raw_scores_changes_nothing() -> None:
    first, second = _member([1.0, 2.0, 0.5], [0.0, 2.5, -1.0]), _member([0.1, 0.4, 0.2], [0.3, 0.0, 0.1])
    moved = _member([100.1, 100.4, 100.2], [100.3, 100.0, 100.1])
    for how in ("mean", "minimum"):
        assert together([first, moved], "held", how).chosen == pytest.approx(together([first, second], "held", how).chosen)


def _pair(name: str, chosen: int, rejected: int, **slices: str) -> TokenPair:
    sides = tuple(range(chosen + 1)), (0, *range(50, 50 + rejected))
    return TokenPair(name, "g", 1, *sides, 1.0, {"topic": "sums", "origin": "policy", "format": "matched", **slices}, ())


def test_each_slice_has_its_number_and_the_length_only_judge_beside_it() -> None:
    pairs = [_pair("a", 9, 3), _pair("b", 9, 3, topic="rare"), _pair("c", 3, 9), _pair("d", 4, 4)]
    found = by_slice(pairs, [1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.5], "topic")
    assert found == {
        "rare": {"n": 1.0, "accuracy": 0.0, "length_only": 1.0},
        "sums": {"n": 3.0, "accuracy": 1.0, "length_only": 0.5},
    }


def test_rare_values_of_a_slice_are_put_together() -> None:
    pairs = [_pair(str(i), 3, 3, topic=f"topic {i:03d}") for i in range(60)]
    found = by_slice(pairs, [1.0] * 60, [0.5] * 60, "topic")
    assert len(found) == 41
    assert found["(others)"]["n"] == 20.0


def test_calibration_of_a_judge_as_sure_as_it_is_right_has_no_error_and_of_a_boaster_a_large_one() -> None:
    honest = [0.75] * 3 + [0.25]
    assert calibration(honest)["error"] == pytest.approx(0.0)
    boaster = calibration([0.99] * 2 + [0.01] * 2)
    assert boaster["error"] == pytest.approx(0.49)
    assert sum(row["n"] for row in calibration([*honest, 0.5, 1.0])["bins"]) == 6
    assert all(0.5 <= row["from"] < 1 for row in calibration([i / 100 for i in range(1, 100)])["bins"])
    assert BINS == 10


def test_the_report_says_where_members_disagree() -> None:
    pairs = [_pair("a", 9, 3), _pair("b", 3, 9)]
    members = [_member([1.0, 2.0], [0.0, 1.0]), _member([1.0, 0.0], [0.0, 1.0])]
    report = holdout_report(pairs, members)
    assert report["disagreement"]["pairs_share"] == 0.5
    assert report["pairs"] == 2
    assert holdout_report([], members) == {"pairs": 0}


def test_above_eighty_per_cent_is_a_warning_below_is_none() -> None:
    assert overfit(0.80, 0.79) is None
    assert "0.85" in str(overfit(0.7, 0.85))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("It is 5.\nAnswer: 5", "They are six.\n\nAnswer: 6", "matched"),
        ("It is 5.\nAnswer: 5", "So it is 5.", "differs"),
        ("- one\n- two", "1. one", "matched"),
        ("```\nx\n```", "x", "differs"),
        ("# Title\ntext", "text", "differs"),
    ],
)
def test_answers_are_format_matched_when_their_outlines_are_equal(first: str, second: str, said: str) -> None:
    assert format_slice(first, second) == said


def test_the_report_of_a_run_has_slices_calibration_and_matched_pairs(done: Started) -> None:
    report = done.report.summary["holdout"]
    assert set(report["slices"]) == {"language", "topic", "safety_class", "length", "format", "origin", "annotator_kind"}
    assert sum(row["n"] for row in report["slices"]["language"].values()) == report["pairs"] == 20
    assert 0 <= done.report.metrics["holdout_calibration_error"] <= 1
    assert Path(done.folder / "report.json").stat().st_size < 200_000
