"""Looks at validation prompts while PPO trains: a reward that rises while held-out answers get worse ends the run."""

import json
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.errors import SpecError  # noqa: E402
from include.domain.records import Prompt  # noqa: E402
from include.runtime.settings import Settings  # noqa: E402
from include.training.rl import heldout  # noqa: E402
from include.training.rl.guard_limits import GuardLimits, GuardStop  # noqa: E402
from include.training.rl.guards import Guards  # noqa: E402
from include.training.rl.heldout import BestLook, HeldOut, Look, LookSettings  # noqa: E402
from include.training.rl.rewards import Scored  # noqa: E402
from include.transforms.datasets_io import SidedRow  # noqa: E402
from tests.training.align_store import (  # noqa: E402
    PPO,
    curve,
    ppo_spec,
    rewarded_store,
    rollouts_of,
    run_here,
    shared_root,
    signalled,
    weights_of,
)
from tests.training.harness import Started, Store, question, sums  # noqa: E402

FIRST = Look(reward=0.1, tokens=10.0, verified=0.6, disagreement=0.3)
BARE = replace(FIRST, verified=None)
UP = 1.5


def _stops(first: Look, *others: Look) -> str | None:
    guards = Guards(GuardLimits(), 6.0)
    guards.check_held_out(first)
    try:
        for look in others:
            guards.check_held_out(look)
    except GuardStop as stop:
        return str(stop)
    return None


def test_a_reward_that_rises_while_held_out_answers_are_less_often_right_stops() -> None:
    said = _stops(FIRST, replace(FIRST, reward=UP, verified=0.5), replace(FIRST, reward=UP, verified=0.3))
    assert said is not None
    assert said.startswith(
        "reward_hacking: on held-out prompts the model reward rose by 1.4 deviations while the verified share fell by 0.3"
    )


def test_neither_a_better_reward_alone_nor_worse_answers_alone_stop() -> None:
    assert _stops(FIRST, replace(FIRST, reward=UP, verified=0.9)) is None
    assert _stops(FIRST, replace(FIRST, reward=0.2, verified=0.0)) is None


def test_with_a_verifier_its_word_counts_and_no_stand_in() -> None:
    assert _stops(FIRST, replace(FIRST, reward=UP, disagreement=5.0, tokens=90.0)) is None


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (replace(BARE, reward=UP, disagreement=0.9), "the ensemble's members came apart by 0.6 deviations more"),
        (replace(BARE, reward=UP, tokens=21.0), "answers grew from 10.0 to 21.0 tokens"),
        (replace(BARE, reward=UP, disagreement=None, tokens=21.0), "answers grew"),
    ],
)
def test_without_a_verifier_disagreement_and_length_stand_in(look: Look, words: str) -> None:
    assert words in str(_stops(BARE, look))
    assert _stops(BARE, replace(look, reward=0.2)) is None


def test_the_first_look_travels_in_a_checkpoint() -> None:
    before, after = Guards(GuardLimits(), 6.0), Guards(GuardLimits(), 6.0)
    before.check_held_out(FIRST)
    after.load_state(json.loads(json.dumps(before.state(), allow_nan=False)))
    with pytest.raises(GuardStop, match="reward_hacking"):
        after.check_held_out(replace(FIRST, reward=UP, verified=0.1))


def test_members_disagree_by_the_deviation_of_their_scores() -> None:
    def scored(**components: float) -> Scored:
        return Scored(0.0, 0.0, None, None, components)

    apart = [scored(normalised_a=1.0, normalised_b=3.0, model=2.0), scored(normalised_a=0.0, normalised_b=0.0)]
    assert heldout._disagreement(apart) == pytest.approx(0.5)
    assert heldout._disagreement([scored(raw_a=1.0, model=0.0)]) is None


def test_no_look_unless_asked_for_and_a_senseless_interval_is_refused() -> None:
    assert LookSettings.of(Settings({}, "config")) is None
    assert LookSettings.of(Settings({"heldout": {"every": 0, "prompts": 8}}, "config")) is None
    assert LookSettings.of(Settings({"heldout": {"every": 3}}, "config")) == LookSettings(3, 64)
    with pytest.raises(SpecError, match=r"config\.heldout\.every is -1"):
        LookSettings.of(Settings({"heldout": {"every": -1}}, "config"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return rewarded_store(shared_root(tmp_path_factory))


@pytest.fixture(scope="module")
def looked(store: Store) -> Started:
    done = run_here(store, ppo_spec(store, salt="looked", heldout={"every": 2, "prompts": 4}))
    assert done.code == 0, done.report.message
    return done


def test_looks_are_taken_before_the_first_update_and_every_few_after(looked: Started) -> None:
    at = {line["step"]: {name for name in line if name.startswith("heldout_")} for line in looked.lines}
    names = {"heldout_reward", "heldout_tokens", "heldout_verified_share"}
    after = names | {"heldout_best_step"}
    assert at == {1: {f"{name}_first" for name in names}, 2: after, 3: set(), 4: after}
    assert all(0 <= line["heldout_verified_share"] <= 1 for line in looked.lines if "heldout_verified_share" in line)


def _without_looks(*attempts: Started) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if not name.startswith("heldout_")} for line in curve(*attempts)]


def test_looking_changes_no_bit_of_the_training(store: Store, looked: Started) -> None:
    plain = run_here(store, ppo_spec(store, salt="not looked"))
    assert weights_of(plain) == weights_of(looked)
    assert rollouts_of(plain) == rollouts_of(looked)
    assert _without_looks(plain) == _without_looks(looked)


def test_resumed_between_two_looks_it_sees_the_same(store: Store, looked: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ppo_spec(store, salt="looked and resumed", heldout={"every": 2, "prompts": 4})
    first = signalled(store, spec, 3, monkeypatch)
    second = run_here(store, spec, n=2)
    assert second.report.first_step == 3
    assert curve(first, second) == curve(looked)


def test_what_the_guard_saw_ends_the_run_and_stands_in_its_curves(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([FIRST, replace(FIRST, reward=UP, verified=0.1)])
    monkeypatch.setattr(HeldOut, "look", lambda *_: next(looks))
    stopped = run_here(store, ppo_spec(store, salt="hacked", heldout={"every": 2, "prompts": 4}, guards={}), save_every_steps=1)
    assert (stopped.report.stop_reason, stopped.report.summary["guard"]) == ("guard", "reward_hacking")
    assert "on held-out prompts" in stopped.report.message
    assert (stopped.lines[-1]["step"], stopped.lines[-1]["heldout_verified_share"]) == (2, 0.1)
    assert [path.name for path in (stopped.folder / "checkpoints").iterdir()] == ["step-1"]


def test_the_checkpoint_of_the_best_look_stays_and_a_resumed_run_knows_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {0: 0.95, 1: 0.6, 2: 0.9, 3: 0.8, 4: 0.8, 5: 0.7}
    monkeypatch.setattr(HeldOut, "due", lambda self, iterations: setattr(self, "at", iterations) or True)
    monkeypatch.setattr(HeldOut, "look", lambda self, _: replace(FIRST, verified=seen[self.at]))
    spec = ppo_spec(store, salt="best look", heldout={"every": 1, "prompts": 4}, epochs=1, iterations=5)
    kept = {"save_every_steps": 1, "keep_checkpoints": 1, "keep_best": 1}
    first = signalled(store, spec, 3, monkeypatch, **kept)
    assert {path.name for path in (first.folder / "checkpoints").iterdir()} == {"step-2", "step-3"}
    second = run_here(store, spec, n=2, **kept)
    assert [line["heldout_best_step"] for line in (*first.lines, *second.lines)] == [1, 2, 2, 2, 2]
    assert second.report.metrics["heldout_best_step"] == 2
    assert {path.name for path in (second.folder / "checkpoints").iterdir()} == {"step-5"}


def test_a_look_is_better_by_right_answers_first_then_by_the_reward() -> None:
    best = BestLook()
    assert [best.see(step, look) for step, look in enumerate((FIRST, FIRST, replace(FIRST, reward=0.2)), 1)] == [True, False, True]
    assert not best.see(4, replace(FIRST, verified=0.5, reward=9.0))
    assert best.see(5, replace(FIRST, verified=0.7, reward=-9.0))
    assert (best.step, best.verified, best.reward) == (5, 0.7, -9.0)
    bare = BestLook()
    assert [bare.see(1, BARE), bare.see(2, replace(BARE, reward=0.0)), bare.see(3, replace(BARE, reward=UP))] == [True, False, True]


def test_without_a_validation_prompt_a_look_is_refused_before_anything_is_learnt(store: Store) -> None:
    rows = [question(a, b) for a, b in sums()[:24]]
    store.dataset("no validation", "prompt", [SidedRow(p.prompt_id, "train", p.split_group, "rl", p.to_json()) for p in rows])
    inputs = {"policy": "policy", "reference": "policy", "reward_model": "reward_model", "prompts": "no validation"}
    refused = run_here(store, store.spec("ppo", inputs, {**PPO, "heldout": {"every": 2}}))
    assert (refused.report.outcome, refused.report.last_step) == ("failed", 0)
    assert "has 0 validation prompts" in refused.report.message


def test_where_nothing_watches_the_quality_report_and_log_say_so(store: Store, looked: Started, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [replace(question(a, b), reference=None) for a, b in sums()[:30]]
    sided = [SidedRow(p.prompt_id, "train" if at < 24 else "validation", p.split_group, "rl", p.to_json()) for at, p in enumerate(rows)]
    store.dataset("bare", "prompt", sided)
    inputs = {"policy": "policy", "reference": "policy", "reward_model": "reward_model", "prompts": "bare"}
    blind = run_here(store, store.spec("ppo", inputs, {**PPO, "iterations": 1, "epochs": 1}))
    assert blind.code == 0, blind.report.message
    assert any("nothing watches the quality of answers" in said for said in blind.report.summary["warnings"])
    assert "warning: nothing watches the quality of answers" in capfd.readouterr().err
    bare = [Prompt.from_json(row.record) for row in sided]
    assert heldout.unwatched(LookSettings(2, 4), bare) is None
    assert heldout.unwatched(None, [*bare, question(1, 2)]) is None
    assert not any("nothing watches" in said for said in looked.report.summary["warnings"])


def test_several_ranks_see_the_same_even_where_one_has_nothing_to_answer(store: Store) -> None:
    alone, both = (
        run(ppo_spec(store, salt=f"looked by {name}", iterations=1, heldout={"every": 1, "prompts": 1}))
        for name, run in (("one", lambda spec: run_here(store, spec)), ("two", lambda spec: store.run_ranks(spec, 2)))
    )
    assert both.code == 0, both.stderr
    names = [name for name in alone.lines[0] if name.startswith("heldout_")]
    assert len(names) == 7
    assert {name: both.lines[0][name] for name in names} == pytest.approx({name: alone.lines[0][name] for name in names}, abs=1e-4)
