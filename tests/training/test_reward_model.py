"""The reward model's program: what it learns, when it stops, what it hands on, and that it resumes to the bit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForSequenceClassification  # noqa: E402

from include.domain.records import PreferencePair  # noqa: E402
from include.runtime.chat import dialogue  # noqa: E402
from include.training.examples.batching import rows_at  # noqa: E402
from include.training.model_io import load_tokenizer  # noqa: E402
from include.training.reward import program as reward_program  # noqa: E402
from include.training.reward.head import new_reward_model  # noqa: E402
from include.transforms.datasets_io import SidedRow, read_rows  # noqa: E402
from tests.training.align_store import (  # noqa: E402
    REWARD,
    aligned_store,
    asked,
    candidate,
    curve,
    killed,
    pair,
    preferences,
    reward_spec,
    run_here,
    shared_root,
    signalled,
)
from tests.training.harness import Started, Store, question, sums  # noqa: E402


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return aligned_store(shared_root(tmp_path_factory))


@pytest.fixture(scope="module")
def done(store: Store) -> Started:
    return run_here(store, reward_spec(store, salt="module"))


def _sequences(store: Store, side: str, data: str = "preferences") -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    tokenizer = load_tokenizer(Path(store.places["policy"].path))
    found = []
    for row in read_rows(Path(store.places[data].path), side):
        made = PreferencePair.from_json(row.record)
        texts = [made.chosen.response_text, made.rejected.response_text]
        ids = [dialogue(tokenizer, made.prompt.messages, [{"role": "assistant", "content": text}]).ids for text in texts]
        found.append((made.pair_id, ids[0], ids[1]))
    return found


def _plain_score(model: Any, ids: tuple[int, ...]) -> Any:
    return model.score(model.model(torch.tensor([ids])).last_hidden_state[0, -1])[0]


def test_loss_and_gradient_of_the_first_step_equal_an_independent_computation(store: Store, done: Started) -> None:
    model = new_reward_model(Path(store.places["policy"].path), seed=5)
    pairs = _sequences(store, "train")
    losses = []
    for index in rows_at(0, REWARD["global_batch"], len(pairs), 5):
        _, chosen, rejected = pairs[index]
        difference = _plain_score(model, chosen) - _plain_score(model, rejected)
        losses.append(torch.log1p(torch.exp(-difference)))
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters() if p.grad is not None))
    assert done.lines[0]["loss"] == pytest.approx(float(loss), abs=1e-6)
    assert done.lines[0]["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_it_learns_to_tell_the_sides_of_held_out_pairs_apart(done: Started) -> None:
    assert done.code == 0
    metrics = done.report.metrics
    assert metrics["holdout_accuracy"] > max(metrics["holdout_longer_wins"], metrics["holdout_shorter_wins"], 0.9) - 1e-9
    assert done.lines[-1]["loss"] < done.lines[0]["loss"]


def test_measurements_hold_every_hold_out_pair_with_its_slices_and_the_baselines(store: Store, done: Started) -> None:
    body = json.loads((done.output("measurements") / "measurements.json").read_text())
    rows = {row["metric"]: row for row in body["rows"]}
    expected = {row.id: row.split_group for row in read_rows(Path(store.places["preferences"].path), "holdout")}
    for name in ("pair_accuracy", "longer_wins", "shorter_wins", "chosen_tokens", "rejected_tokens", "margin"):
        assert {item["id"]: item["group"] for item in rows[name]["items"]} == expected
    for item in rows["shorter_wins"]["items"]:
        assert item["slices"]["length"] in ("matched", "chosen_shorter")
        assert item["slices"]["origin"] == "policy"
    assert rows["pair_accuracy"]["model"] == done.report.outputs["reward_model"]
    assert rows["pair_accuracy"]["suite_digest"] == store.places["preferences"].digest
    lengths = [(a["value"], b["value"]) for a, b in zip(rows["chosen_tokens"]["items"], rows["rejected_tokens"]["items"], strict=True)]
    assert [item["value"] for item in rows["longer_wins"]["items"]] == [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in lengths]


def test_reward_json_is_mean_and_deviation_of_the_validation_answers_raw_scores(store: Store, done: Started) -> None:
    stored = json.loads((done.output("reward_model") / "reward.json").read_text())
    model = AutoModelForSequenceClassification.from_pretrained(done.output("reward_model"), local_files_only=True).eval()
    with torch.no_grad():
        scores = [float(model(torch.tensor([ids])).logits) for _, *sides in _sequences(store, "validation") for ids in sides]
    mean = sum(scores) / len(scores)
    assert stored["count"] == len(scores) == 24
    assert stored["mean"] == pytest.approx(mean, abs=1e-5)
    assert stored["std"] == pytest.approx((sum((s - mean) ** 2 for s in scores) / len(scores)) ** 0.5, abs=1e-5)
    assert (stored["epsilon"], stored["clip"]) == (1e-8, 5.0)


def test_an_accuracy_above_eighty_per_cent_is_a_warning(done: Started) -> None:
    assert done.report.summary["overfit_warning"] is True
    assert "over-fitting" in done.report.summary["warnings"][0]


def test_it_stops_when_validation_accuracy_stands_still_although_the_training_loss_falls(store: Store) -> None:
    preferences(store, "noise", swapped=[at for at in range(80) if at % 2 and at >= 48])
    stopped = run_here(store, reward_spec(store, data="noise", steps=60, early_stop={"every_steps": 3, "patience": 2}))
    report = stopped.report
    assert (report.outcome, report.stop_reason) == ("complete", "early_stop")
    assert report.last_step < 60
    looks = [line["validation_accuracy"] for line in stopped.lines if "validation_accuracy" in line]
    assert max(looks) == looks[-3] == report.metrics["validation_accuracy"]
    assert report.metrics["best_step"] == report.last_step - 6
    assert stopped.lines[-1]["loss"] < stopped.lines[0]["loss"]


def test_a_bad_hold_out_is_refused_before_the_first_step(store: Store) -> None:
    folder = Path(store.places["preferences"].path)
    rows = [
        SidedRow(row.id, side, row.split_group, row.use, row.record) for side in ("train", "validation") for row in read_rows(folder, side)
    ]
    first, second = sums()[100]
    texts = [asked(first, second)] * 2
    sides = [candidate(store, question(first, second).prompt_id, text, random_seed=at) for at, text in enumerate(texts)]
    twin = pair(store, first, second, *sides)
    rows.append(SidedRow(twin.pair_id, "holdout", question(first, second).split_group, "preference", twin.to_json()))
    store.dataset("bad hold-out", "pair", rows)
    refused = run_here(store, reward_spec(store, data="bad hold-out"))
    assert (refused.report.outcome, refused.report.last_step) == ("failed", 0)
    assert "holdout: 1 pairs are identical from the start" in refused.report.message


@pytest.mark.parametrize(
    ("changes", "guard"),
    [
        ({"learning_rate": 1e-30, "warmup_steps": 0, "guards": {"flat_steps": 4, "flat_tolerance": 0.5}}, "loss_never_moves"),
        # Every other pair prefers the other side, so that no weights suit all of them and large ones suit none.
        ({"learning_rate": 3.0, "data": "halved", "guards": {"consecutive": 2, "loss_factor": 1.5}}, "loss_diverging"),
    ],
)
def test_a_reward_model_that_learns_nothing_or_diverges_is_stopped_by_name(store: Store, changes: dict[str, Any], guard: str) -> None:
    if "data" in changes:
        preferences(store, changes["data"], swapped=range(0, 80, 2))
    stopped = run_here(
        store, reward_spec(store, salt=guard, steps=40, early_stop={"every_steps": 40, "patience": 2}, **changes), save_every_steps=1
    )
    assert (stopped.report.outcome, stopped.report.stop_reason, stopped.report.summary["guard"]) == ("failed", "guard", guard)
    kept = sorted(int(path.name.removeprefix("step-")) for path in (stopped.folder / "checkpoints").iterdir())
    assert kept
    assert kept[-1] == stopped.report.last_step


def test_a_reward_model_that_stays_in_eval_mode_is_refused_before_the_first_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make = reward_program.new_reward_model

    def asleep(*rest: Any) -> Any:
        model = make(*rest).eval()
        monkeypatch.setattr(model.model, "train", lambda mode=True: model.model)
        return model

    monkeypatch.setattr(reward_program, "new_reward_model", asleep)
    refused = run_here(store, reward_spec(store, salt="asleep"))
    assert (refused.report.outcome, refused.report.last_step) == ("failed", 0)
    assert "is in eval mode, it must be in train mode" in refused.report.message


def _identical(store: Store, name: str, same: int) -> None:
    rows = []
    for at, (first, second) in enumerate(sums()[:30]):
        prompt = question(first, second)
        other = asked(first, second) if at < same else "7"
        sides = [candidate(store, prompt.prompt_id, text) for text in (asked(first, second), other)]
        made = pair(store, first, second, sides[0], sides[1])
        rows.append(SidedRow(made.pair_id, "train" if at < 20 else "validation", prompt.split_group, "preference", made.to_json()))
    store.dataset(name, "pair", rows)


def test_identical_pairs_are_dropped_and_counted_apart_from_those_truncation_made(store: Store) -> None:
    _identical(store, "some same", 3)
    done = run_here(store, reward_spec(store, data="some same", steps=4))
    assert done.code == 0
    assert (done.report.metrics["train_pairs"], done.report.metrics["train_identical_at_start"]) == (17.0, 3.0)
    assert done.report.metrics["train_identical_after_truncation"] == 0.0
    assert done.report.summary["pairs_dropped"]["train"] == {"identical_at_start": 3, "identical_after_truncation": 0}


def test_more_identical_pairs_than_the_limit_fail_before_the_first_step(store: Store) -> None:
    _identical(store, "many same", 10)
    failed = run_here(store, reward_spec(store, data="many same", steps=4))
    assert (failed.code, failed.report.last_step) == (1, 0)
    assert "10 pairs are identical from the start" in failed.report.message


def test_truncation_that_makes_all_pairs_identical_fails(store: Store) -> None:
    failed = run_here(store, reward_spec(store, max_length=8))
    assert failed.code == 1
    assert "after truncation" in failed.report.message


def test_a_side_swapped_on_the_screen_is_the_same_pair_to_learn_from(store: Store, done: Started) -> None:
    rows = []
    for side in ("train", "validation", "holdout"):
        for row in read_rows(Path(store.places["preferences"].path), side):
            record = {**row.record, "swap_flag": True}
            rows.append(SidedRow(row.id, side, row.split_group, row.use, record))
    store.dataset("shown swapped", "pair", rows)
    again = run_here(store, reward_spec(store, data="shown swapped"))
    assert curve(again) == curve(done)


def _outputs(started: Started) -> Mapping[str, str]:
    return started.report.outputs


def test_killed_between_two_saves_it_goes_on_to_the_same_bits(store: Store, done: Started) -> None:
    spec = reward_spec(store, salt="killed")
    first = killed(store, spec, "recorded", 6, save_every_steps=2)
    assert first.code == -9
    second = run_here(store, spec, n=2, save_every_steps=2)
    assert (second.report.first_step, second.report.last_step) == (4, 12)
    assert curve(first, second) == curve(done)
    assert second.report.outputs["reward_model"] == done.report.outputs["reward_model"]


def test_usr1_saves_says_interrupted_and_the_next_attempt_goes_on(store: Store, done: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = reward_spec(store, salt="usr1")
    first = signalled(store, spec, 5, monkeypatch)
    assert (first.code, first.report.outcome, first.report.last_step) == (75, "interrupted", 5)
    second = run_here(store, spec, n=2)
    assert second.report.first_step == 5
    assert _outputs(second)["reward_model"] == _outputs(done)["reward_model"]


def test_an_early_stop_before_a_death_in_export_is_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = reward_spec(store, learning_rate=1e-12, steps=40, early_stop={"every_steps": 2, "patience": 2})

    def die(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("include.training.reward.program.save_reward_model", die)
        first = run_here(store, spec)
    assert (first.code, first.report.message) == (1, "OSError: no space left")
    second = run_here(store, spec, n=2)
    assert (second.report.stop_reason, second.report.first_step, second.report.last_step) == ("early_stop", 6, 6)


def test_hold_out_pairs_of_a_safety_class_are_measured_with_the_others(store: Store, done: Started) -> None:
    rows = []
    for side in ("train", "validation", "holdout"):
        for at, row in enumerate(read_rows(Path(store.places["preferences"].path), side)):
            unsafe = side == "holdout" and at % 2 == 0
            record = {**row.record, "prompt": {**row.record["prompt"], "safety_class": "unsafe"}} if unsafe else row.record
            rows.append(SidedRow(row.id, "safety_holdout" if unsafe else side, row.split_group, row.use, record))
    store.dataset("some unsafe", "pair", rows)
    again = run_here(store, reward_spec(store, data="some unsafe"))
    assert again.report.metrics["holdout_pairs"] == done.report.metrics["holdout_pairs"]
    assert set(again.report.summary["holdout"]["slices"]["safety_class"]) == {"none", "unsafe"}
